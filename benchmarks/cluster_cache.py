"""What deciding on a cluster's cache and pipe costs, and simulating it.

    python benchmarks/cluster_cache.py [--jobs 1000] [--nodes 5000] [--items 1000000]

`allocate` under every policy, one event of a cluster's simulation with so many jobs on so many nodes of eight GPUs, and
one item of a sampler.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.reproduction.cache_policies import POLICIES, allocate
from benchmarks.reproduction.shared_cache import simulate_cache
from benchmarks.reproduction.silod_figures import draw_jobs
from pecan_ray.cache import ClusterResources, JobDemand, SubstitutionSampler

GPUS_PER_NODE = 8
BYTES_PER_NODE = 0.05e12
"""So little cache that jobs contend for it."""
IO_PER_JOB = 20e6
REPEATS, BATCH = 15, 512


def measure_allocate(jobs: int, cluster: ClusterResources) -> None:
    """Time every policy."""
    demands = [
        JobDemand(job.name, job.ideal_bytes_per_s, job.dataset_bytes, gpus=job.gpus)
        for job in draw_jobs(0, jobs, cluster.gpus or 1)
    ]
    for policy in POLICIES:
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            allocate(demands, cluster, policy)
            times.append(time.perf_counter() - begin)
        told = f"{1e3 * median(times):.1f} ms (median of {REPEATS}), at most {1e3 * max(times):.1f}"
        print(f"allocate, {jobs} jobs, {policy}: {told}")


def measure_simulation(jobs: int, nodes: int, cluster: ClusterResources) -> None:
    """Time a whole run under SiloD's greedy policy."""
    begin = time.perf_counter()
    run = simulate_cache(draw_jobs(0, jobs, cluster.gpus or 1), cluster, "greedy")
    seconds, events = time.perf_counter() - begin, len(run.timeline)
    most = max(moment.running for moment in run.timeline)
    print(
        f"simulation, {jobs} jobs ({most} at once) on {nodes} nodes: {events:,} events, "
        f"{run.makespan_s / 86400:.1f} days in {seconds:.1f} s, {1e3 * seconds / events:.2f} ms an event"
    )


def measure_sampler(items: int) -> None:
    """Time an epoch with two chunks of ten cached, and one with nothing."""
    for chunks in (2, 0):
        sampler = SubstitutionSampler(items, 10, 0)
        cached = set().union(*(sampler.items_of(chunk) for chunk in range(chunks)))
        begin = time.perf_counter()
        while sampler.next_batch(BATCH, cached):
            pass
        seconds = time.perf_counter() - begin
        print(f"sampler, {items:,} items, {chunks} of 10 chunks cached: {1e6 * seconds / items:.2f} us an item")


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--items", type=int, default=1_000_000)
    options = parser.parse_args()
    gpus = GPUS_PER_NODE * options.nodes
    cluster = ClusterResources(BYTES_PER_NODE * options.nodes, IO_PER_JOB * options.jobs, gpus)
    measure_allocate(options.jobs, cluster)
    measure_sampler(options.items)
    measure_simulation(options.jobs, options.nodes, cluster)


if __name__ == "__main__":
    main()
