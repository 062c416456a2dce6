"""Quotas of jobs make up the pipe, and the shares of workers make up the quota of a job."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.cache_options import ClusterIo
from pecan_ray.errors import PlanError
from pecan_ray.job import events
from pecan_ray.job.cluster_io import MIB, ClusterIoRegistry, JobIo
from pecan_ray.job.instructions import Instruction, LimitRemoteIo
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.speed import LATELY_S, SpeedMeter
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


def test_a_job_that_needs_nothing_of_the_pipe_has_all_of_it() -> None:
    book = ClusterIoRegistry()
    book.update(job("all is kept", size=1.0 * MIB, hit_share=1.0), 0.0)
    assert book.quota("all is kept", 1.0).bytes_per_s == PIPE
    assert book.given["all is kept"].remote_io == 0.0


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


def test_the_share_of_hits_is_of_what_was_read_since_the_look_before() -> None:
    rig, meter = JobRig(), SpeedMeter()
    (worker,) = rig.begin()
    found = []
    for remote_bytes, node_bytes in ((100, 100), (300, 100), (300, 300), (400, 600)):
        told = WorkerProgress(remote_bytes=remote_bytes, node_bytes=node_bytes)
        rig.handle(events.WorkerProgressReported(worker, told), after=LATELY_S)
        found.append(meter.look(rig.job, rig.now).hit_share)
    assert found == [0.0, 0.0, 1.0, 0.75]
