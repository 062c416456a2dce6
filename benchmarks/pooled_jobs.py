"""Jobs that share a pool too small for them, in the long run: who gets which workers, what that costs, who suffers.

Pace and cost are those of `contention`, without noise: a job with k workers of the pool takes the best number of local
ones, and its bill is for an hour of its trainer's own work.  Jobs are random workloads that want workers of the pool.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pecan_ray.placement.pool import Demand, allocate, cost_per_hour, decreasing_steps, relative_times
from pecan_ray.simulator.contention import step_times
from pecan_ray.simulator.random_workloads import draw
from pecan_ray.simulator.workload import Workload


@dataclass(frozen=True)
class PooledJob:
    """A job's time and bill by its workers of the pool."""

    name: str
    time_factor: tuple[float, ...]
    """Time of a batch over the trainer's own step."""
    bill: tuple[float, ...]
    """$ for an hour of the trainer's own work."""

    @property
    def wants(self) -> int:
        """Workers with which it is cheapest."""
        return int(np.argmin(self.bill))

    def demand(self) -> Demand:
        """Return what it bids."""
        time_factor = relative_times(self.time_factor, self.wants)
        return Demand(
            self.name,
            decreasing_steps(self.bill),
            least=0 if math.isfinite(self.time_factor[0]) else 1,
            time_factor=time_factor,
        )


@dataclass(frozen=True)
class DistributedPool:
    """What came of distributing a pool."""

    bill: float
    """$ for an hour of own work of every trainer."""
    worst: float
    """Greatest time of a batch, over that with all workers that are wanted."""
    workers: int
    """Workers distributed."""


def pooled_job(workload: Workload, most: int = 64) -> PooledJob:
    """Compute a job's curve."""
    local, remote = np.meshgrid(np.arange(workload.max_local + 1), np.arange(most + 1), indexing="ij")
    times = step_times(workload, local.ravel(), remote.ravel()).batch_s.reshape(local.shape) / workload.trainer.step_s
    times[0, 0] = math.inf
    time_factor = times.min(axis=0).tolist()
    per_hour = [workload.prices.per_hour(workload.clients, count) for count in range(most + 1)]
    return PooledJob(workload.name, tuple(time_factor), tuple(cost_per_hour(time_factor, 1.0, per_hour)))


def jobs_of(seed: int, count: int) -> list[PooledJob]:
    """Draw so many jobs that want workers of the pool, of prices that they share."""
    found: list[PooledJob] = []
    for number in naturals(1000 * seed):
        job = pooled_job(draw(number))
        if job.wants:
            found.append(job)
        if len(found) == count:
            return found
    raise AssertionError("there are always more workloads")


def naturals(start: int) -> Iterator[int]:
    """Count."""
    while True:
        yield start
        start += 1


DistributionRule = Callable[[Sequence[PooledJob], int, random.Random], list[int]]


def first_come(jobs: Sequence[PooledJob], workers: int, chance: random.Random) -> list[int]:
    """Let each job take what it wants, in random order, as long as there is some."""
    given = [0] * len(jobs)
    for place in chance.sample(range(len(jobs)), len(jobs)):
        given[place] = min(jobs[place].wants, workers - sum(given))
    return given


def in_proportion(jobs: Sequence[PooledJob], workers: int, chance: random.Random) -> list[int]:
    """Give each job the same share of what it wants, one worker after the other to the one that has least of it."""
    given = [0] * len(jobs)
    for _ in range(min(workers, sum(job.wants for job in jobs))):
        short = [place for place, job in enumerate(jobs) if given[place] < job.wants]
        given[min(short, key=lambda place: (given[place] / jobs[place].wants, place))] += 1
    return given


def where_it_saves_most(jobs: Sequence[PooledJob], workers: int, chance: random.Random) -> list[int]:
    """Distribute workers by their marginal savings."""
    given = allocate([job.demand() for job in jobs], workers)
    return [given[job.name] for job in jobs]


RULES: dict[str, DistributionRule] = {
    "first come": first_come,
    "in proportion": in_proportion,
    "where it saves most": where_it_saves_most,
}


def distribute(jobs: Sequence[PooledJob], how: str, share: float, seed: int) -> DistributedPool:
    """Distribute a pool that has such a share of what the jobs want."""
    workers = math.floor(share * sum(job.wants for job in jobs))
    given = RULES[how](jobs, workers, random.Random(seed))
    bill = sum(job.bill[count] for job, count in zip(jobs, given, strict=True))
    slower = [job.time_factor[count] / job.time_factor[job.wants] for job, count in zip(jobs, given, strict=True)]
    return DistributedPool(bill, max(slower), sum(given))
