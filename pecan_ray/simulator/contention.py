"""What a deployment can do in the long run: the pace of trainer and workers when they share the trainer's host.

    batch time = max( step, 1 / (local supply + remote supply) )

On the host three kinds of work compete for CPUs: local workers, receiving what remote ones send, and loading batches
onto the accelerators.  The last two come first (they are few threads, always runnable); local workers share the rest:

    local supply = min( l * cpus of a worker, host CPUs - load * pace - receive * pace * share from remote ) / work
    work         = CPU seconds of a batch, times 1 + crowding * (l - 1)

and every busy local worker, and a host at its limit, makes the step longer.  Every worker serves all clients alike: on
a host, batches of the local workers of other hosts are received as those of remote ones are.  Pace and supply depend
on each other: they are iterated to a fixed point.  All functions work on arrays of deployments at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pecan_ray.simulator.workload import Worker, Workload

Vector: TypeAlias = NDArray[np.float64]
# Half steps towards the rate at which supply and contention agree: 0.5**60 is below a float's precision.
ITERATIONS = 60
# Share of its time: times are divided by it, also of a worker that hardly works.
LEAST_BUSY = 0.01
CALM = 0.8
"""Utilization of the host up to which the step is not prolonged."""


@dataclass(frozen=True)
class DeploymentTimes:
    """Arrays, one entry per deployment; times in seconds per batch of one client."""

    batch_s: Vector
    """Mean time between two batches, when nothing varies."""
    step_s: Vector
    """The trainer's own time, disturbed as it is."""
    local_s: Vector
    """Of one local worker; infinite where there is none."""
    remote_s: Vector
    """Of one remote worker."""
    busy: Vector
    """Share of the time in which the workers work, not held up by full queues."""


def work_of(worker: Worker, ordered: bool) -> float:
    """Return the CPU seconds of a batch."""
    return worker.ordered_cpu_s if ordered else worker.cpu_s


def step_times(workload: Workload, local: ArrayLike, remote: ArrayLike, ordered: bool = False) -> DeploymentTimes:
    """Return the pace of deployments (totals over all clients), the same length for `local` and `remote`."""
    here = np.atleast_1d(np.asarray(local, dtype=float)) / workload.clients
    there = np.atleast_1d(np.asarray(remote, dtype=float)) / workload.clients
    here, there = np.broadcast_arrays(here, there)
    host, trainer = workload.host, workload.trainer
    work = work_of(workload.local, ordered) * (1 + workload.local.crowding * np.maximum(here - 1, 0))
    each = work_of(workload.remote, ordered) / workload.remote.cpus
    remote_supply = there / each
    step = np.full_like(here, trainer.step_s)
    rate = np.minimum(1 / step, np.maximum(here * workload.local.cpus / work + remote_supply, 1e-12))
    elsewhere = (workload.clients - 1) / workload.clients
    from_remote = np.where(there > 0, 1.0, elsewhere)
    for _ in range(ITERATIONS):
        own = (host.load_cpu_s + host.receive_cpu_s * from_remote) * rate
        # A little is always left: local workers are slow then, and never stand still.
        left = np.maximum(host.cpus - own, 1e-3 * host.cpus)
        local_supply = np.minimum(here * workload.local.cpus, left) / work
        supply = np.maximum(local_supply + remote_supply, 1e-12)
        from_remote = (remote_supply + local_supply * elsewhere) / supply
        busy = np.minimum(1.0, rate / supply)
        used = own + busy * local_supply * work
        crowded = np.maximum(0.0, used / host.cpus - CALM) / (1 - CALM)
        step = trainer.step_s * (1 + trainer.disturbance * here * busy + trainer.overload * crowded)
        rate = 0.5 * rate + 0.5 * np.minimum(1 / step, supply)
    return DeploymentTimes(
        batch_s=1 / rate,
        step_s=step,
        local_s=np.where(here > 0, here / np.maximum(local_supply, 1e-12), np.inf),
        remote_s=np.full_like(here, each),
        busy=busy,
    )


def epoch_costs(workload: Workload, local: ArrayLike, remote: ArrayLike, ordered: bool = False) -> Vector:
    """Return $ per epoch of deployments, by pace alone."""
    times = step_times(workload, local, remote, ordered).batch_s
    counts = np.broadcast_to(np.asarray(remote), times.shape)
    return np.array([workload.epoch_cost(float(time), float(count)) for time, count in zip(times, counts, strict=True)])


class DeploymentTimeTable:
    """The pace of every deployment that a workload allows, computed once."""

    def __init__(self, workload: Workload, ordered: bool = False) -> None:
        self._most_local, self._most_remote = max(1, workload.max_local), max(1, workload.max_remote)
        local, remote = np.meshgrid(
            np.arange(self._most_local + 1), np.arange(self._most_remote + 1), indexing="ij", sparse=False
        )
        found = step_times(workload, local.ravel(), remote.ravel(), ordered)
        shape = local.shape
        self._step = found.step_s.reshape(shape).tolist()
        self._local = found.local_s.reshape(shape).tolist()
        self._remote = found.remote_s.reshape(shape).tolist()
        self._busy = np.maximum(found.busy, LEAST_BUSY).reshape(shape).tolist()

    def at(self, local: int, remote: int) -> tuple[float, float, float, float]:
        """Return step, time of a local and of a remote worker in seconds, and how busy they are.

        Counts beyond the table are those at its edge.
        """
        here, there = min(local, self._most_local), min(remote, self._most_remote)
        return self._step[here][there], self._local[here][there], self._remote[here][there], self._busy[here][there]
