"""What training costs, and which part of it is wasted.

Pecan's model (§6.1): cost = t (c_a n_a + c_w n_w).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment

# Prices are for an hour, runs in seconds.
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
    # At most 1: a wait is measured by other clocks than the stretch.
    share = min(1.0, (waiting or 0.0) / seconds) if seconds else 0.0
    return Cost(host, remote, (host + remote) * share)


def amount(name: str, value: float) -> float:
    """Return the value if it is an amount: finite and not negative."""
    if not 0 <= value < math.inf:
        raise PlanError(f"{name} must be a finite number >= 0, but got {value!r}.")
    return value
