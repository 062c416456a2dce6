"""What training costs, and which part of it is wasted.

Pecan's model (§6.1) is cost = t (c_a n_a + c_w n_w).  tf.data service's (§4.1, equation 1) charges workers by what
they use, as what they leave goes back to the cluster, and trainers' hosts by what they have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices, checked_price
from pecan_ray.plan.windows import Deployment

HOUR_S = 3600.0


@dataclass(frozen=True)
class Cost:
    """Dollars of a stretch of training."""

    host: float
    """The trainers' hosts with their accelerators."""
    remote: float
    """The remote workers."""
    wasted: float
    """Of the total, what was paid while the trainers waited for input."""

    @property
    def total(self) -> float:
        """Everything together."""
        return self.host + self.remote

    @property
    def wasted_share(self) -> float:
        """Share of the total that was paid for waiting; 0 if nothing was paid."""
        return self.wasted / self.total if self.total else 0.0


def cost_of(
    seconds: float,
    deployment: Deployment,
    prices: Prices,
    clients: int = 1,
    waiting: float | None = None,
    remote_per_hour: float | None = None,
) -> Cost:
    """Return the cost of running a deployment for so long.

    Args:
        seconds: How long it runs.
        deployment: The numbers of workers.
        prices: $ per hour.
        clients: The trainers' hosts.
        waiting: The seconds in which the trainers waited.
        remote_per_hour: $ per hour of its remote workers; None: as if they filled the cheapest tiers.
    """
    amount("seconds", seconds)
    amount("waiting", waiting or 0.0)
    if clients < 1:
        raise PlanError(f"clients must be at least 1, but got {clients}.")
    host = seconds / HOUR_S * prices.accelerator_host * clients
    rate = prices.remote_per_hour(deployment.remote) if remote_per_hour is None else remote_per_hour
    remote = seconds / HOUR_S * rate
    share = min(1.0, (waiting or 0.0) / seconds) if seconds else 0.0
    return Cost(host, remote, (host + remote) * share)


def cost_of_epoch(
    batches: int,
    batch_time: float,
    deployment: Deployment,
    prices: Prices,
    clients: int = 1,
    wait_time: float | None = None,
) -> Cost:
    """Return the cost of an epoch of so many batches (of one client) at a steady batch time, in seconds."""
    waiting = None if wait_time is None else batches * wait_time
    return cost_of(amount("batches", batches) * amount("batch_time", batch_time), deployment, prices, clients, waiting)


@dataclass(frozen=True)
class UnitPrices:
    """$ per hour of one CPU, one GiB of memory and one accelerator."""

    cpu: float
    memory: float
    accelerator: float

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "accelerator"):
            checked_price(name, getattr(self, name))


@dataclass(frozen=True)
class Host:
    """What one trainer's host has: charged in full, whatever is used of it."""

    cpus: float
    memory_gib: float
    accelerators: int

    def __post_init__(self) -> None:
        for name in ("cpus", "memory_gib", "accelerators"):
            amount(name, getattr(self, name))


@dataclass(frozen=True)
class WorkerUse:
    """What one remote worker uses, on average."""

    cpus: float
    memory_gib: float

    def __post_init__(self) -> None:
        for name in ("cpus", "memory_gib"):
            amount(name, getattr(self, name))


def cost_by_use(
    seconds: float,
    deployment: Deployment,
    unit: UnitPrices,
    host: Host,
    worker: WorkerUse,
    clients: int = 1,
    waiting: float | None = None,
) -> Cost:
    """Return the cost with workers charged by what they use (tf.data service §4.1, equation 1).

    C = t (C_cpu (n_w cpu_used + n_t cpu_host) + C_mem (n_w mem_used + n_t mem_host) + C_acc n_t n_acc)
    """
    per_host = unit.cpu * host.cpus + unit.memory * host.memory_gib + unit.accelerator * host.accelerators
    per_worker = unit.cpu * worker.cpus + unit.memory * worker.memory_gib
    return cost_of(seconds, deployment, Prices(per_host, per_worker), clients, waiting)


def amount(name: str, value: float) -> float:
    """Return the value if it is an amount: finite and not negative."""
    if not 0 <= value < math.inf:
        raise PlanError(f"{name} must be a finite number >= 0, but got {value!r}.")
    return value
