"""Who gets which part of the cluster's cache, and of its pipe to remote storage (SiloD §4 to §6).

- `greedy` (SiloD's Algorithm 2): a byte of cache goes where it saves most of the pipe, that is by f* / d; the pipe goes
  first to those that miss least, as each byte of it then lets them read most.  This makes the sum of all speeds as
  large as it can be where the dataset that is cached in part misses no more than the pipe carries.
- `sjf`: jobs in ascending order of the resources that they need, times how long they need them.
- `max_min` (Gavel's objective): of all jobs the least speed, over that with an equal part of everything, is as large
  as it can be.

For speeds s a cache saves most of the pipe where s / d is largest; so whether some speeds can be had at all is seen by
filling the cache in that order, and adding up what still misses. The last two policies are searches for such speeds.

Decisions: docs/decisions/shared-cache-and-pipe.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecan_ray.cache.demands import Allocation, ClusterResources, JobDemand
from pecan_ray.cache.division import Demands, Division
from pecan_ray.cache.pipe import evenly, in_order, in_turn_but_some_for_all
from pecan_ray.cache.store_model import Numbers
from pecan_ray.errors import PlanError

AllocationPolicy: TypeAlias = Literal["greedy", "sjf", "max_min"]
# 2**-44 of the interval is 6e-14, far below SAME.
HALVINGS = 44
"""Of the interval in which a speed lies."""
SAME = 1e-9
"""Relative differences of speeds that are nothing but rounding: a float has 2e-16, and thousands of them are added
up."""
MOST_ORDERS = 12
"""Orders in which `greedy` tries to cache the datasets; one is enough where the pipe carries what is missed."""


def allocate(
    jobs: Sequence[JobDemand], cluster: ClusterResources, policy: AllocationPolicy = "greedy"
) -> dict[str, Allocation]:
    """Return what each job may use of the cluster's cache and of its pipe, by its name.

    The cache is divided for the speeds that jobs have once it is filled; the pipe for what misses now, where a job says
    what is cached of its dataset (`JobDemand.cached_bytes`).  What nobody needs is given to nobody.
    """
    if not jobs:
        return {}
    if policy not in POLICIES:
        raise PlanError(f"allocate(policy=...) must be one of {', '.join(POLICIES)}, but got {policy!r}.")
    if cluster.cache_bytes < len(jobs):
        raise PlanError(
            f"allocate: {len(jobs)} jobs are to share ClusterResources(cache_bytes={cluster.cache_bytes:g}), less than "
            "a byte each; give the cluster more cache, or run these jobs without one."
        )
    demands = Demands.of(jobs)
    return allocations(jobs, demands, divide(demands, cluster, policy))


def allocations(jobs: Sequence[JobDemand], demands: Demands, given: Division) -> dict[str, Allocation]:
    """Return what each job is given, by its name."""
    columns = (given.cache, given.io, given.hits, demands.throughput(given.hits, given.io))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {job.name: Allocation(*row) for job, row in zip(jobs, rows, strict=True)}


def divide(demands: Demands, cluster: ClusterResources, policy: AllocationPolicy) -> Division:
    """Do what `allocate` does, for callers that ask often: arrays in, arrays out."""
    return POLICIES[policy](demands, cluster)


def greedy(demands: Demands, cluster: ClusterResources) -> Division:
    """Cache by cache efficiency; the pipe by the share that each would miss if its cache were filled.

    Where the dataset that is cached in part misses more than the pipe carries, its cache is of little use: then it is
    tried to cache it first, behind the next one, and last, and the largest sum of speeds is taken.
    """
    sizes = demands.dataset_sizes
    orders = [_rank_by_value(demands, demands.ideal, sizes)]
    best, most = np.zeros_like(demands.ideal), 0.0
    for turn in range(MOST_ORDERS):
        if turn == len(orders):
            break
        order = orders[turn]
        cache = in_order(sizes, order, cluster.cache_bytes)[demands.dataset]
        missed = 1 - cache / demands.size
        speeds = demands.throughput(1 - missed, _by_misses(demands.ideal * missed, missed, cluster.remote_io))
        # Of equal sums the first order stays, which is the paper's.
        if speeds.sum() > most * (1 + SAME):
            best, most = cache, float(speeds.sum())
        slow = (missed > 0) & (cache > 0) & (speeds < demands.ideal * (1 - SAME))
        waits = demands.of_datasets(slow.astype(np.float64)) > 0
        if waits.any():
            short, others = order[waits[order]], order[~waits[order]]
            orders += [np.concatenate(parts) for parts in ((others, short), (short, others))[: 2 if turn == 0 else 1]]
            if (place := int(np.argmax(waits[order]))) + 1 < len(order):
                orders.append(np.concatenate([order[:place], order[[place + 1, place]], order[place + 2 :]]))
    # Decision 42: who misses least once all is filled comes first while it fills, too. By what it misses now, a new job
    # would be last, and never fill the cache that it was given.
    hits = demands.hits(best)
    missed = 1 - best / demands.size
    return Division(best, hits, _by_misses(demands.ideal * (1 - hits), missed, cluster.remote_io))


def _by_misses(demand: Numbers, missed: Numbers, pipe: float) -> Numbers:
    # Rounded, because only equal ranks share the pipe evenly.
    return in_turn_but_some_for_all(demand, np.round(missed, 12), pipe)


def cache_by_value(demands: Demands, speeds: Numbers, room: float) -> Numbers:
    """Cache the datasets from which most is read for their size: speeds are added up over the jobs that read them.

    Of equal ones the first is cached before the next is begun: two halves would save no more, and fill more slowly.
    """
    sizes = demands.dataset_sizes
    return in_order(sizes, _rank_by_value(demands, speeds, sizes), room)[demands.dataset]


def _rank_by_value(demands: Demands, speeds: Numbers, sizes: Numbers) -> NDArray[np.intp]:
    return np.argsort(-demands.of_datasets(speeds) / sizes, kind="stable")


def rank_of(order: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return at which place of an order each stands."""
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank


def need(demands: Demands, speeds: Numbers, cluster: ClusterResources) -> float:
    """Return the bytes a second that remote storage has to give so that jobs can read so fast, with the best cache."""
    sizes = demands.dataset_sizes
    saved = demands.of_datasets(speeds) / sizes
    order = np.argsort(-saved)
    ordered = sizes[order]
    cached = np.clip(cluster.cache_bytes - (np.cumsum(ordered) - ordered), 0.0, ordered)
    return float(speeds.sum() - (saved[order] * cached).sum())


def max_min(demands: Demands, cluster: ClusterResources) -> Division:
    """Raise all speeds, in units of those with equal parts of everything, as far as cache and pipe allow."""
    count = len(demands.ideal)
    equal_hits = np.minimum(1.0, cluster.cache_bytes / count / demands.size)
    equal = demands.throughput(equal_hits, np.full(count, cluster.remote_io / count))
    # At that level each job has its ideal speed, so the answer lies below.
    low, high = 0.0, float((demands.ideal / equal).max())
    for _ in range(HALVINGS):
        level = (low + high) / 2
        fits = need(demands, np.minimum(demands.ideal, level * equal), cluster) <= cluster.remote_io
        low, high = (level, high) if fits else (low, level)
    cache = cache_by_value(demands, np.minimum(demands.ideal, low * equal), cluster.cache_bytes)
    hits = demands.hits(cache)
    missed = 1 - hits
    return Division(cache, hits, evenly(demands.ideal * missed, cluster.remote_io, equal * missed))


def sjf(demands: Demands, cluster: ClusterResources) -> Division:
    """Let the job with the least score run as fast as it can, then the next one as fast as it can beside it, and so on.

    So many run at full speed as fit, and one with what is left; the others live on what is dealt out to all.
    """
    rank = rank_of(np.argsort(sjf_scores(demands, cluster), kind="stable"))
    # By bisection: what the first n jobs need grows with n.
    full, none = 0, len(rank) + 1
    while none - full > 1:
        count = (full + none) // 2
        fits = need(demands, np.where(rank < count, demands.ideal, 0.0), cluster) <= cluster.remote_io
        full, none = (count, none) if fits else (full, count)
    speeds, low, high = np.where(rank < full, demands.ideal, 0.0), 0.0, 1.0
    for _ in range(HALVINGS if full < len(rank) else 0):
        part = (low + high) / 2
        fits = need(demands, np.where(rank == full, part * demands.ideal, speeds), cluster) <= cluster.remote_io
        low, high = (part, high) if fits else (low, part)
    cache = cache_by_value(demands, np.where(rank == full, low * demands.ideal, speeds), cluster.cache_bytes)
    hits = demands.hits(cache)
    return Division(cache, hits, in_turn_but_some_for_all(demands.ideal * (1 - hits), rank, cluster.remote_io))


def sjf_scores(demands: Demands, cluster: ClusterResources) -> Numbers:
    """Return SiloD's score of each job: the least of (sum of its shares of all resources) times its duration.

    While the pipe carries what misses at full speed, the score is linear in the cache; where it carries less, the score
    is concave in it. So the least is with no cache, with as much as fits, or with just so much that the pipe suffices.
    """
    most = np.minimum(demands.size, cluster.cache_bytes)
    enough = np.clip(demands.size * (1 - cluster.remote_io / demands.ideal), 0.0, most)
    gpus, pipe = demands.gpus / demands.gpus_of(cluster), np.full_like(demands.ideal, cluster.remote_io)
    scores = []
    for cache in (np.zeros_like(most), enough, most):
        hits = cache / demands.size
        speed = demands.throughput(hits, pipe)
        shares = gpus + cache / cluster.cache_bytes + speed * (1 - hits) / cluster.remote_io
        scores.append(shares * demands.remaining / speed)
    least: Numbers = np.minimum.reduce(scores)
    return least


POLICIES: dict[AllocationPolicy, Callable[[Demands, ClusterResources], Division]] = {
    "greedy": greedy,
    "sjf": sjf,
    "max_min": max_min,
}
