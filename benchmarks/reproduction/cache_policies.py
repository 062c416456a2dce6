"""The caches that SiloD was compared with, as policies of the same form: CoorDL, an LRU (Alluxio), and Quiver.

None of them looks after the pipe: those that miss share it evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np

from benchmarks.reproduction.quiver_benefit import CachedPart, ProbedJob, choose_caching
from pecan_ray.cache import allocation
from pecan_ray.cache.demands import Allocation, ClusterResources, JobDemand
from pecan_ray.cache.division import Demands, Division
from pecan_ray.cache.pipe import evenly, within
from pecan_ray.cache.store_model import Numbers

ROUNDS = 12
"""Of an LRU's hits and the speeds that follow from them, each round half of the way."""
# Of Newton's method, which comes from below and doubles its digits with each step.
MOST_STEPS = 40
NEAR = 1e-7
"""Steps of the time for which an LRU keeps an item: how many, and which is the last."""
TINY = 1e-300
"""Stands for a share of 0 in divisions and logarithms."""


def coordl(demands: Demands, cluster: ClusterResources) -> Division:
    """Give each job the cache of its own GPUs' part of the nodes; nothing is shared."""
    # CoorDL shares nothing: each job has the cache of the nodes that its GPUs are on.
    part = within(cluster.cache_bytes * demands.gpus / demands.gpus_of(cluster), cluster.cache_bytes)
    cache = np.minimum(demands.size, part)
    hits = demands.hits(cache)
    return Division(cache, hits, evenly(demands.ideal * (1 - hits), cluster.remote_io))


def quiver(demands: Demands, cluster: ClusterResources) -> Division:
    """Cache datasets as a whole or two chunks of them, by benefit per byte: what was probed is what each would do."""
    alone = evenly(demands.ideal, cluster.remote_io)
    readers = np.bincount(demands.dataset)[demands.dataset]
    sharing = 1 - 1 / readers
    together = demands.throughput(sharing, evenly(demands.ideal * (1 - sharing), cluster.remote_io))
    columns = (demands.dataset, alone, demands.ideal, together, readers, demands.gpus)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    jobs = [
        ProbedJob(str(job), str(dataset), 1 / miss, 1 / hit, 1 / shared if count > 1 else None, int(gpus))
        for job, (dataset, miss, hit, shared, count, gpus) in enumerate(rows)
    ]
    sizes = {str(number): size for number, size in enumerate(demands.dataset_sizes.tolist())}
    chosen = choose_caching(jobs, sizes, cluster.cache_bytes)
    served: Mapping[CachedPart, Numbers] = {
        "whole": demands.hits(demands.size),
        "two chunks": sharing,
        "none": np.zeros_like(sharing),
    }
    parts = [chosen[str(number)] for number in demands.dataset.tolist()]
    cache = np.array([part.nbytes for part in parts])
    hits = np.array([served[part.part][job] for job, part in enumerate(parts)])
    return Division(cache, hits, evenly(demands.ideal * (1 - hits), cluster.remote_io))


def lru(demands: Demands, cluster: ClusterResources) -> Division:
    """Keep what was read last, whoever did: fast jobs drive out what slow ones have not come back to."""
    speeds = demands.ideal
    for turn in range(ROUNDS):
        resident, fresh = lru_hits(demands, speeds, cluster.cache_bytes)
        hits = np.where(demands.cached > 0, fresh, 0.0)
        io = evenly(demands.ideal * (1 - hits), cluster.remote_io)
        # Half of the way: hits and speeds depend on each other, and full steps swing between two answers.
        speeds = (speeds + demands.throughput(hits, io)) / 2 if turn else demands.throughput(hits, io)
    return Division(within(resident, cluster.cache_bytes)[demands.dataset], hits, io)


def lru_hits(demands: Demands, speeds: Numbers, room: float) -> tuple[Numbers, Numbers]:
    """Return the bytes of each dataset that an LRU holds while jobs read so fast, and each job's share of hits.

    An item is kept for a time that is the same for all (Che's approximation): as long as all that is read meanwhile
    fills the cache.  That time is found by Newton's method, which comes from below, as what is held grows ever slower.
    """
    sizes = demands.dataset_sizes
    if sizes.sum() <= room:
        return sizes, np.ones_like(speeds)
    rate_values, kept_s = speeds / demands.size, 0.0
    for _ in range(MOST_STEPS):
        missing = 1 - kept(kept_s * rate_values)
        absent = _unused_share(demands, missing)
        growth = (
            demands.of_datasets(rate_values * (1 - found(kept_s * rate_values)) / np.maximum(missing, TINY))
            * absent
            * sizes
        )
        step = (room - float((sizes * (1 - absent)).sum())) / float(growth.sum())
        kept_s += step
        if step <= NEAR * kept_s:
            break
    missing = 1 - kept(kept_s * rate_values)
    absent = _unused_share(demands, missing)
    # A hit: read by the job itself in the epoch before, or by another one that reads the same.
    others = np.minimum(1.0, absent[demands.dataset] / np.maximum(missing, TINY))
    return sizes * (1 - absent), 1 - (1 - found(kept_s * rate_values)) * others


def _unused_share(demands: Demands, missing: Numbers) -> Numbers:
    """Return the share of each dataset that none of its jobs has read lately."""
    return np.exp(demands.of_datasets(np.log(np.maximum(missing, TINY))))


def found(passes: Numbers) -> Numbers:
    """Return how much of its dataset a job finds that was read at most so many passes before.

    A byte is read at random places of one epoch and of the next: from 0 to 2 passes lie between, 1 most likely.
    """
    x = np.clip(passes, 0, 2)
    return np.where(x <= 1, x**2 / 2, 1 - (2 - x) ** 2 / 2)


def kept(passes: Numbers) -> Numbers:
    """Return how much of its dataset a job has read in so many passes: epochs overlap, and some twice."""
    x = np.clip(passes, 0, 2)
    return np.where(x <= 1, x - x**3 / 6, 1 - (2 - x) ** 3 / 6)


ComparedPolicy: TypeAlias = Literal["greedy", "sjf", "max_min", "coordl", "alluxio", "quiver"]
"""SiloD's three, and the caches that it was compared with ("alluxio" stands for any LRU)."""
POLICIES: dict[ComparedPolicy, Callable[[Demands, ClusterResources], Division]] = {
    "greedy": allocation.greedy,
    "sjf": allocation.sjf,
    "max_min": allocation.max_min,
    "coordl": coordl,
    "alluxio": lru,
    "quiver": quiver,
}


def allocate(
    jobs: Sequence[JobDemand], cluster: ClusterResources, policy: ComparedPolicy = "greedy"
) -> dict[str, Allocation]:
    """Return what each job may use, as `pecan_ray.cache.allocate` does, by any of the policies."""
    demands = Demands.of(jobs)
    return allocation.allocations(jobs, demands, POLICIES[policy](demands, cluster))
