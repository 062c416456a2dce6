"""What the jobs of a cluster may read and keep, and how a job deals its quota out to its workers."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.cache import ClusterResources, JobDemand, allocate
from pecan_ray.cache_options import ClusterIo, SharingPolicy
from pecan_ray.errors import PlanError
from pecan_ray.job import events
from pecan_ray.job.cluster_io import DECIDE_S, LEAST_SHARE, MIB, REPORT_S, SILENT_S, ClusterIoRegistry, JobIo
from pecan_ray.job.instructions import Instruction, LimitRemoteIo
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import Config, Workers
from tests.long_form import some_later
from tests.unit.job.job_rig import JobRig, of_kind

PIPE, CACHE = 100e6, 1000 * MIB


def job(name: str, ideal: float | None = 50e6, size: float | None = 2000.0 * MIB, **more: object) -> JobIo:
    about = JobIo(
        name, PIPE, CACHE, "greedy", CACHE, (f"s3://bucket/{name}",), dataset_bytes=size, ideal_bytes_per_s=ideal
    )
    return replace(about, **more)  # type: ignore[arg-type]  # a test's own


def told(book: ClusterIoRegistry, *jobs: JobIo, now: float = 0.0) -> dict[str, float | None]:
    for one in jobs:
        book.update(one, now)
    return {one.job: book.quota(one.job, now).bytes_per_s for one in jobs}


@pytest.mark.parametrize("policy", ["greedy", "sjf", "max_min"])
def test_quotas_are_what_the_policy_gives_and_no_more_than_the_pipe(policy: SharingPolicy) -> None:
    book = ClusterIoRegistry()
    fast, slow = job("fast", 200e6, 1200.0 * MIB, policy=policy), job("slow", 60e6, 6000.0 * MIB, policy=policy)
    quotas = told(book, fast, slow)
    wanted = allocate(
        [
            JobDemand("fast", 200e6, 1200.0 * MIB, "f", cached_bytes=0.0),
            JobDemand("slow", 60e6, 6000.0 * MIB, "s", cached_bytes=0.0),
        ],
        ClusterResources(CACHE, PIPE),
        policy,
    )
    assert math.fsum(quota or 0.0 for quota in quotas.values()) == pytest.approx(PIPE)
    for name, given in wanted.items():
        assert quotas[name] == pytest.approx(given.remote_io, rel=0.1, abs=2 * LEAST_SHARE * PIPE)
    cache_limits = dict(book.quota("fast", 0.0).cache_limits)
    assert cache_limits["s3://bucket/fast"] > cache_limits["s3://bucket/slow"]
    assert sum(cache_limits.values()) <= CACHE


def test_rooms_are_for_datasets_by_what_is_kept_of_them() -> None:
    same = ("s3://bucket/same",)
    book = ClusterIoRegistry()
    told(book, job("a", size=800.0 * MIB, datasets=same), job("b", size=900.0 * MIB, datasets=same))
    assert book.quota("a", 0.0).cache_limits == ((same[0], CACHE),), "of which nobody else wants any"
    assert book.given["a"].cache_bytes == book.given["b"].cache_bytes == pytest.approx(900.0 * MIB)
    book = ClusterIoRegistry()
    told(book, job("a", source_bytes=0), job("b", ideal=1e6))
    assert book.quota("a", 0.0).cache_limits == (("s3://bucket/b", CACHE),), "a keeps nothing"
    book = ClusterIoRegistry()
    told(book, job("small", 90e6, 500.0 * MIB, size_measured=True), job("large", 50e6))
    cache_limits = dict(book.quota("small", 0.0).cache_limits)
    assert cache_limits["s3://bucket/small"] == 510 * MIB, "a size that was measured has a little room to spare"
    assert sum(cache_limits.values()) == CACHE


def test_nothing_is_bounded_before_somebody_has_said_what_there_is() -> None:
    book = ClusterIoRegistry()
    unsaid = {"bytes_per_s": None, "cache_bytes": None, "policy": None}
    assert told(book, job("a", **unsaid)) == {"a": None}
    quotas = told(book, job("b", policy="max_min"), job("a", **unsaid), now=DECIDE_S)
    assert math.fsum(quota or 0.0 for quota in quotas.values()) == pytest.approx(PIPE)
    assert book.shared.policy == "max_min", "which holds for those that say nothing"


def test_it_is_decided_anew_when_jobs_come_and_go_and_when_speeds_change_and_not_else() -> None:
    book = ClusterIoRegistry()
    first = told(book, job("a", 80e6), job("b", 80e6))
    assert book.update(job("a", 83e6), 1.0) == "", "which is nearly what it was"
    assert told(book, job("a", 83e6), job("b", 80e6), now=2.0) == first
    assert book.update(job("a", 20e6), 3.0)
    slower = book.quota("a", 3.0).bytes_per_s
    assert slower is not None and slower < (first["a"] or 0.0)
    assert book.remove("b") and not book.remove("b")
    assert book.quota("a", 3.1).bytes_per_s == pytest.approx(PIPE), "soon after the one before, since a job has gone"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0, 0.0])
def test_numbers_that_are_none_are_not_known(wrong: float) -> None:
    book = ClusterIoRegistry()
    odd = job("odd", wrong, wrong, bytes_per_s=wrong, hit_share=wrong, remaining_bytes=wrong)
    quotas = told(book, job("good"), odd)
    assert all(quota is not None and 0 < quota < PIPE for quota in quotas.values())
    assert not book.last_error
    replay_result = ClusterIoRegistry()
    assert replay_result.replay(book.written().splitlines(), 0.0) == 0 and replay_result.jobs == book.jobs


def test_a_job_whose_data_is_all_cached_may_read_and_leaves_the_rest_of_the_pipe_to_others() -> None:
    book = ClusterIoRegistry()
    quotas = told(book, job("cached", 50e6, 100.0 * MIB, hit_share=1.0), job("other", 20e6, 1e12))
    assert (quotas["cached"] or 0.0) >= LEAST_SHARE * PIPE / 2
    assert (quotas["other"] or 0.0) > 0.98 * PIPE, "though the other one is thought to need a fifth of it"


def test_jobs_that_are_not_heard_are_silent_and_a_thousand_report_more_seldom() -> None:
    book = ClusterIoRegistry()
    told(book, job("a"), job("b"))
    long = SILENT_S + 4 * REPORT_S
    told(book, job("b"), now=long)
    assert book.timed_out(long) == ["a"]
    for number in range(998):
        book.update(job(str(number)), long)
    assert book.quota("0", long).report_interval_s == 10.0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *((name, 0.0) for name in ("bytes_per_s", "ideal_bytes_per_s", "dataset_bytes")),
        *(("bytes_per_s", wrong) for wrong in (-1.0, math.nan, math.inf)),
        ("policy", "fair"),
        ("cache_bytes", -1),
    ],
)
def test_nonsense_is_refused_when_it_is_said(name: str, wrong: Any) -> None:
    with pytest.raises(PlanError, match=name):
        Config(remote_io=ClusterIo(**{"bytes_per_s": 1e6, name: wrong}))


@pytest.mark.parametrize("seed", range(8))
def test_a_journal_brings_the_same_about_and_quotas_always_make_up_the_pipe(seed: int) -> None:
    draw, book, lines, now = random.Random(seed), ClusterIoRegistry(), list[str](), 0.0
    for _ in range(60):
        now += draw.uniform(0.0, 1.0)
        name = f"job-{draw.randrange(6)}"
        if draw.random() < 0.2:
            lines.append(book.remove(name))
        else:
            numbers = draw.choice((None, 1.0, 1e6, 1e9)), draw.choice((None, 5e8, 3e9))
            policy = draw.choice(("greedy", "sjf", "max_min"))
            lines.append(book.update(job(name, *numbers, policy=policy, hit_share=draw.random()), now))
    now += 1.0
    quotas = {name: book.quota(name, now) for name in book.jobs}
    assert not book.last_error
    if quotas:
        assert math.fsum(quota.bytes_per_s or 0.0 for quota in quotas.values()) == pytest.approx(PIPE)
        assert all(sum(room for _, room in quota.cache_limits) <= CACHE for quota in quotas.values())
    for journal in (lines, book.written().splitlines()):
        other = ClusterIoRegistry()
        assert other.replay([line for line in journal if line], now) == 0
        assert other.jobs == book.jobs
        assert not book.jobs or other.shared == book.shared
    assert ClusterIoRegistry().replay(['{"io": {"job', '{"io": 3}', '{"io of": {"what": 1}}'], now) == 3


def test_a_pool_of_nodes_keeps_more_than_a_node_and_copies_on_each_count_so_often() -> None:
    one, two = job("one", 90e6, 2000.0 * MIB, pool_nodes=10), job("two", 80e6, 6000.0 * MIB, pool_nodes=10)
    book = ClusterIoRegistry()
    told(book, one, two)
    cache_limits = dict(book.quota("one", 0.0).cache_limits)
    assert cache_limits == {"s3://bucket/one": 250 * MIB, "s3://bucket/two": 750 * MIB}, "both whole, and what is left"
    assert book.given["two"].cache_bytes == 6000.0 * MIB
    book = ClusterIoRegistry()
    told(book, one, replace(two, pool_nodes=1))
    cache_limits = dict(book.quota("one", 0.0).cache_limits)
    assert cache_limits == {"s3://bucket/one": 200 * MIB, "s3://bucket/two": 800 * MIB}, (
        "each node keeps what it can of two"
    )


def limits(done: list[Instruction]) -> dict[str, float | None]:
    return {one.worker: one.bytes_per_s for one in of_kind(LimitRemoteIo, done)}


@pytest.mark.parametrize("seed", some_later(range(40), *range(5, 40)))
def test_the_shares_of_those_that_run_always_make_up_the_quota(seed: int) -> None:
    draw = random.Random(seed)
    rig = JobRig(workers=Workers(3), remote_io=draw.choice((None, 1e6)))
    quota = rig.spec.remote_io
    known: dict[str, float | None] = {}
    starting = rig.come()
    rig.list_splits(100)
    for _ in range(60):
        kind = draw.choice(("ready", "ready", "lost", "quota", "scale", "restart"))
        running = [one.name for one in rig.job.worker_table.workers.values() if one.running]
        done: list[Instruction] = []
        if kind == "ready" and starting:
            done = rig.place(starting.pop(0))
        elif kind == "lost" and running and rig.job.error is None:
            rig.now += 1000.0  # one now and then is no reason to end the job
            done = rig.handle(events.WorkerLost(draw.choice(running), "node"))
        elif kind == "quota":
            quota = draw.choice((None, 1.0, 5e5, 3e9))
            done = rig.handle(events.RemoteIoSet(quota))
        elif kind == "scale":
            done = rig.handle(events.ScaleRequested(draw.randrange(1, 5), 0))
        elif kind == "restart":
            done = rig.handle(events.ControllerRestarted())
        starting += [one.worker for one in of_kind(StartWorker, done) if one.worker not in starting]
        starting = [name for name in starting if name in rig.job.worker_table.workers]
        known.update(limits(done))
        shares = [known[one.name] for one in rig.job.worker_table.workers.values() if one.running]
        if quota is None:
            assert all(share is None for share in shares)
        elif shares:
            assert math.fsum(share or math.inf for share in shares) == pytest.approx(quota)


def test_rooms_are_told_with_the_shares_and_a_quota_that_is_renewed_often_fills_no_report() -> None:
    rig = JobRig(workers=Workers(2))
    first, second = rig.begin(splits=4)
    cache_limits = (("s3://bucket/set", 1 << 20),)
    told = of_kind(LimitRemoteIo, rig.handle(events.RemoteIoSet(10.0, cache_limits, why=", by the cluster")))
    assert told == [LimitRemoteIo(first, 5.0, cache_limits), LimitRemoteIo(second, 5.0, cache_limits)]
    assert not of_kind(LimitRemoteIo, rig.handle(events.RemoteIoSet(10.0, cache_limits, why=", by the cluster")))
    for step in range(5):
        rig.handle(events.RemoteIoSet(10.0 + step / 10, cache_limits, why=", by the cluster"))
    assert [one.kind for one in rig.job.story].count("remote io") == 1
    rig.handle(events.RemoteIoSet(20.0, cache_limits, why=", by the cluster"))
    assert [one.text for one in rig.job.story if one.kind == "remote io"][1].endswith("from now on, by the cluster")
    (again,) = of_kind(StartWorker, rig.handle(events.WorkerLost(second, "process")))
    assert (again.remote_io, again.cache_limits) == (10.0, cache_limits)
