"""The cluster's cache and pipe: SiloD's policies against brute force, and limits; its table: docs/reproduction.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.reproduction.cache_policies import ComparedPolicy, allocate
from pecan_ray.cache import ClusterResources, JobDemand, silod_perf
from tests.long_form import examples

POLICIES: tuple[ComparedPolicy, ...] = get_args(ComparedPolicy)
TB = 1e12
V100S = ClusterResources(2 * TB, 200e6, gpus=8)
STEPS = 40
"""Parts of the cache that brute force deals out."""

amounts = st.floats(0, 2).map(lambda exponent: float(10**exponent))
clusters = st.builds(
    ClusterResources, st.floats(1.5, 4.5).map(lambda e: float(10**e)), st.floats(-1, 2.5).map(lambda e: float(10**e))
)


@st.composite
def some_jobs(draw: st.DrawFn, most: int = 3, sharing: bool = False) -> list[JobDemand]:
    """Jobs with a hundred to ten thousand bytes each."""
    jobs = []
    for number in range(draw(st.integers(1, most))):
        shared = draw(st.sampled_from([None, "a", "b"])) if sharing else None
        size = {"a": 700.0, "b": 4000.0}[shared] if shared else 100 * draw(amounts)
        cached = draw(st.none() | st.floats(0, 2e4))
        jobs.append(JobDemand(str(number), draw(amounts), size, shared, 1000 * draw(amounts), draw(st.integers(1, 8))))
        jobs[-1] = replace(jobs[-1], cached_bytes=cached) if sharing else jobs[-1]
    return jobs


def splits(jobs: Sequence[JobDemand], cluster: ClusterResources) -> Iterator[list[float]]:
    """For every way to deal the cache out in steps: what share of its reads each job misses."""
    for parts in itertools.product(range(STEPS + 1), repeat=len(jobs) - 1):
        if sum(parts) <= STEPS:
            caches = [part * cluster.cache_bytes / STEPS for part in (*parts, STEPS - sum(parts))]
            yield [max(0.0, 1 - cache / job.dataset_bytes) for cache, job in zip(caches, jobs, strict=True)]


def best_sum(jobs: Sequence[JobDemand], cluster: ClusterResources) -> float:
    """The largest sum of speeds: for each split the pipe goes first to those that miss least."""
    best = 0.0
    for misses in splits(jobs, cluster):
        left, total = cluster.remote_io, 0.0
        for missed, job in sorted(zip(misses, jobs, strict=True), key=lambda one: one[0]):
            io = min(left, job.ideal_bytes_per_s * missed)
            left -= io
            total += io / missed if missed else job.ideal_bytes_per_s
        best = max(best, total)
    return best


def fair_speeds(jobs: Sequence[JobDemand], cluster: ClusterResources) -> list[float]:
    """The speed of each job with an equal part of everything."""
    count = len(jobs)
    return [
        silod_perf(job.ideal_bytes_per_s, cluster.remote_io / count, cluster.cache_bytes / count, job.dataset_bytes)
        for job in jobs
    ]


def best_least(jobs: Sequence[JobDemand], cluster: ClusterResources) -> float:
    """The largest level that all jobs reach, in units of their fair speeds."""
    fair, best = fair_speeds(jobs, cluster), 0.0
    most = min(job.ideal_bytes_per_s / speed for job, speed in zip(jobs, fair, strict=True))
    for misses in splits(jobs, cluster):
        need = sum(speed * missed for speed, missed in zip(fair, misses, strict=True))
        best = max(best, min(most, cluster.remote_io / need if need else most))
    return best


@given(some_jobs(6, sharing=True), clusters, st.sampled_from(POLICIES))
@examples(400)
def test_nobody_is_given_what_is_not_there(
    jobs: list[JobDemand], cluster: ClusterResources, policy: ComparedPolicy
) -> None:
    found = allocate(jobs, cluster, policy)
    assert list(found) == [job.name for job in jobs]
    of_datasets: dict[str, float] = {}
    for job in jobs:
        given_to, key = found[job.name], job.dataset or f"of {job.name}"
        if policy == "coordl":
            key = job.name
        of_datasets[key] = given_to.cache_bytes
        assert 0 <= given_to.cache_bytes <= job.dataset_bytes and 0 <= given_to.hit_share <= 1
        assert given_to.remote_io > 0 or given_to.hit_share == 1 or policy in ("coordl", "quiver", "alluxio")
        assert given_to.remote_io >= 0
        assert given_to.bytes_per_s <= job.ideal_bytes_per_s * (1 + 1e-9)
        assert given_to.remote_io == pytest.approx(given_to.bytes_per_s * (1 - given_to.hit_share), rel=1e-6, abs=1e-6)
    assert sum(of_datasets.values()) <= cluster.cache_bytes
    assert sum(given_to.remote_io for given_to in found.values()) <= cluster.remote_io


@given(some_jobs(3), clusters)
@example(
    [JobDemand("0", 100.0, 3162.2776), JobDemand("1", 10.0, 316.22776), JobDemand("2", 1.0, 1000.0)],
    ClusterResources(1000.0, 10.0),
)
@examples(60)
def test_greedy_makes_the_sum_of_two_speeds_as_large_as_can_be_and_of_more_where_the_pipe_carries_them(
    jobs: list[JobDemand], cluster: ClusterResources
) -> None:
    found = allocate(jobs, cluster, "greedy")
    parts = [(job, found[job.name].cache_bytes / job.dataset_bytes) for job in jobs]
    carried = sum(job.ideal_bytes_per_s * (1 - part) for job, part in parts if 0 < part < 1) <= cluster.remote_io
    close = carried or len(jobs) <= 2
    assert sum(one.bytes_per_s for one in found.values()) >= (0.97 if close else 0.8) * best_sum(jobs, cluster)


@given(some_jobs(3), clusters)
@examples(60)
def test_max_min_lets_the_least_job_do_as_well_as_brute_force_does(
    jobs: list[JobDemand], cluster: ClusterResources
) -> None:
    found, fair = allocate(jobs, cluster, "max_min"), fair_speeds(jobs, cluster)
    least = min(found[job.name].bytes_per_s / speed for job, speed in zip(jobs, fair, strict=True))
    assert least >= (1 - 1e-6) * best_least(jobs, cluster)


def test_jobs_with_one_dataset_share_what_is_cached_of_it() -> None:
    """Two slow readers of one dataset are worth more than one faster reader of another."""
    jobs = [JobDemand("a", 60.0, 1000.0, "x"), JobDemand("b", 60.0, 1000.0, "x"), JobDemand("c", 100.0, 1000.0)]
    found = allocate(jobs, ClusterResources(1000.0, 50.0))
    assert [found[name].cache_bytes for name in "abc"] == [1000.0, 1000.0, 0.0]
    assert [found[name].bytes_per_s for name in "abc"] == [60.0, 60.0, 50.0]
    namesake = JobDemand("x", 60.0, 2000.0)
    assert "x" in allocate([*jobs, namesake], V100S), "a job's own dataset is not the one that has the job's name"
