"""Many jobs, one pool of CPUs: a worker goes where it saves most, and of equals to the job that holds it already.

A job's demand is a curve: what training costs an hour of the trainer's own work, with k workers of the pool,

    L(k) = batch time(k) / own step * (c_a n_a + c_w k)

and the saving of the k-th worker, L(k-1) - L(k).  Savings are made to fall with k (of a worker that brings nothing
alone, and much together with the next one, the mean counts), so dealing workers out one by one, each to the highest
bid for a CPU, makes the sum of all bills as small as it can be.

    bid(k) = saving(k) / CPUs of a worker * (1 + HOLDS where the job holds the k-th worker already)

Before savings count, the slowest job is helped, as long as any is slower than SLOWEST allows: the sum of all bills
would leave a cheap job to crawl beside dear ones.  There is no arbiter: every job computes the same deal from what all
have told, and obeys its own share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from pecan_ray.placement.setting import Setting
from pecan_ray.placement.trial_history import Known
from pecan_ray.plan.windows import Deployment

HOLDS = 0.15
"""Share by which a worker must save more elsewhere before it is taken from a job: starting another one is not free."""
STARVED = 10.0
"""A job without any worker does nothing at all: it counts as so many times slower than with one."""
# Decision 26: dealt by savings alone, cheap jobs crawled at a fourth to a sixth of their pace beside dear ones.
SLOWEST = 3.0
"""No job is to be so many times slower than with all workers that it wants, while others have more than they need."""

# Why a worker is bid for, the most urgent last.
SAVES, SLOW, NEEDED = range(3)
Bid: TypeAlias = tuple[int, float]
"""Why a worker is bid for, and how much: $ per CPU that it saves, or how slow the job is without it."""


@dataclass(frozen=True)
class Demand:
    """What one job bids for workers of a pool."""

    job: str
    cost_reductions: tuple[float, ...]
    """$ for an hour of the trainer's own work that the first, second ... worker saves, beyond its price; falling."""
    holds: int = 0
    least: int = 0
    """Workers without which it cannot run."""
    cpus: float = 1.0
    """Of one worker."""
    time_factor: tuple[float, ...] = ()
    """How many times slower it is without any worker, with the first, the second ... than with all that it wants."""

    @property
    def wants(self) -> int:
        """Workers that are worth their price, or needed."""
        return max(self.least, sum(saving > 0 for saving in self.cost_reductions))

    def bid(self, workers: int) -> Bid | None:
        """Return what the job bids for one more worker than so many; None for one that is not worth it."""
        if workers < self.least:
            return NEEDED, math.inf
        if workers >= self.wants:
            return None
        slow = self.time_factor[workers] if workers < len(self.time_factor) else 0.0
        if slow > SLOWEST:
            return SLOW, slow
        return SAVES, self.cost_reductions[workers] / self.cpus * (1 + HOLDS if workers < self.holds else 1.0)


def allocate(demands: Sequence[Demand], cpus: float) -> dict[str, int]:
    """Deal the workers that fit into a pool of so many CPUs; the same for every job that computes it."""
    given = {demand.job: 0 for demand in demands}
    pool_requests: list[tuple[int, float, int, str, Demand]] = []

    def enter(demand: Demand) -> None:
        if bid := demand.bid(given[demand.job]):
            # Of equal bids the job's name decides, because every job must compute the same deal (decision 26).
            heapq.heappush(pool_requests, (-bid[0], -bid[1], given[demand.job] - demand.holds, demand.job, demand))

    for demand in demands:
        enter(demand)
    left = cpus
    while pool_requests:
        *_, demand = heapq.heappop(pool_requests)
        # It bids no more, because CPUs only become fewer.
        if demand.cpus > left + 1e-9:
            continue
        left -= demand.cpus
        given[demand.job] += 1
        enter(demand)
    return given


def decreasing_steps(costs: Sequence[float]) -> tuple[float, ...]:
    """Return the savings from one cost to the next, so that they fall (those of the lower convex hull), if any."""
    hull: list[tuple[int, float]] = []
    for point in enumerate(costs):
        while len(hull) > 1 and _rise(hull[-2], hull[-1]) >= _rise(hull[-2], point):
            hull.pop()
        hull.append(point)
    cost_reductions: list[float] = []
    for before, after in pairwise(hull):
        cost_reductions += [-_rise(before, after)] * (after[0] - before[0])
    return tuple(saving for saving in cost_reductions if saving > 0)


def _rise(before: tuple[int, float], after: tuple[int, float]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


def cost_per_hour(batch_s: Sequence[float], own_s: float, per_hour: Sequence[float]) -> list[float]:
    """Return $ for an hour of the trainer's own work; what stands still is as dear as STARVED says."""
    # Decision 26: for an hour of the trainer's own work, so that a job with a dear host bids more.
    costs = [seconds / own_s * price for seconds, price in zip(batch_s, per_hour, strict=True)]
    most = max((cost for cost in costs if cost < math.inf), default=0.0)
    return [cost if cost < math.inf else STARVED * most for cost in costs]


def relative_times(batch_s: Sequence[float], wants: int) -> tuple[float, ...]:
    """Return how many times slower a job is with fewer workers than it wants."""
    return tuple(seconds / batch_s[wants] for seconds in batch_s[:wants]) if batch_s[wants] < math.inf else ()


@dataclass(frozen=True)
class WorkerValue:
    """What the first, second ... worker is worth to a job."""

    cost_reductions: tuple[float, ...] = ()
    time_factor: tuple[float, ...] = ()


def estimate_worker_value(
    known: Known, batch: int, setting: Setting, here: Deployment, side: str, most: int
) -> WorkerValue:
    """Return what workers of one side, `most` at most, are worth by the rates that were seen, with batches of so many
    rows; those of the other side that run `here` stay.  A side that was never seen counts as the other one.
    """
    local_rate, remote_rate = known.each[0] or known.each[1], known.each[1] or known.each[0]
    if not local_rate:
        return WorkerValue()
    counts = range(most + 1)
    shown = [Deployment(n, here.remote) if side == "local" else Deployment(here.local, n) for n in counts]
    supply = [(at.local * local_rate + at.remote * remote_rate) / batch / setting.clients for at in shown]
    # 1e-9 s: before a step was seen nothing is divided by zero, and supply alone decides.
    own_s = max(known.step_s, 1e-9)
    batch_s = [max(own_s, 1 / rate) if rate else math.inf for rate in supply]
    rates = local_rate, remote_rate
    per_hour = [setting.with_transfer(at, seconds, rates) for at, seconds in zip(shown, batch_s, strict=True)]
    cost_reductions = decreasing_steps(cost_per_hour(batch_s, own_s, per_hour))
    return WorkerValue(cost_reductions, relative_times(batch_s, len(cost_reductions)))


def min_required_workers(here: Deployment, side: str, *, waits: bool, unknown: bool) -> int:
    """Return how many workers of a side a job cannot do without, beside those of the other side that run `here`.

    One where it has no other worker, and one where its trainer waits and no worker of that side was ever seen: counted
    as a worker of the other side, a share of none would keep the job from finding out for ever.
    """
    mine, other = (here.local, here.remote) if side == "local" else (here.remote, here.local)
    # Of two equal sides one has to be named, or both would claim that they are all the job has.
    alone = mine > other or (mine == other and side == "local")
    return int(alone or (waits and unknown))


def shares(demands: Mapping[str, Demand], cpus: float) -> dict[str, int | None]:
    """Return the most workers that each job may have; None where the pool suffices for all."""
    # In the order of names: floats added up in another order could give another deal to another job.
    known = [demands[job] for job in sorted(demands)]
    if sum(demand.wants * demand.cpus for demand in known) <= cpus + 1e-9:
        return dict.fromkeys(demands)
    return dict(allocate(known, cpus))
