"""A job's quota of remote reads: dealt to its workers in equal parts, whatever happens to them."""

from __future__ import annotations

import math
import random

import pytest

from pecan_ray.job import events
from pecan_ray.job.instructions import Instruction, LimitRemoteIo
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import Workers
from tests.long_form import some_later
from tests.unit.job.job_rig import JobRig, of_kind


def limits(done: list[Instruction]) -> dict[str, float | None]:
    return {one.worker: one.bytes_per_s for one in of_kind(LimitRemoteIo, done)}


def test_workers_start_with_their_share_and_are_told_when_it_grows_or_shrinks() -> None:
    rig = JobRig(workers=Workers(3), remote_io=900.0)
    first, second, third = rig.come()
    starts = of_kind(StartWorker, rig.done[-1])
    assert [one.remote_io for one in starts] == [300.0] * 3
    assert limits(rig.place(first)) == {first: 900.0}
    assert limits(rig.place(second)) == {first: 450.0, second: 450.0}
    assert limits(rig.place(third)) == {first: 300.0, second: 300.0, third: 300.0}
    assert not limits(rig.handle(events.TimePassed(), 1.0)), "told again what they know"
    lost = rig.handle(events.WorkerLost(second, "process"))
    assert limits(lost) == {first: 450.0, third: 450.0}
    (again,) = of_kind(StartWorker, lost)
    assert again.remote_io == 300.0
    assert limits(rig.place(again.worker)) == {first: 300.0, third: 300.0, again.worker: 300.0}


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
        running = [one.name for one in rig.job.fleet.workers.values() if one.running]
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
            done = rig.handle(events.ScaleAsked(draw.randrange(1, 5), 0))
        elif kind == "restart":
            done = rig.handle(events.ControllerRestarted())
        starting += [one.worker for one in of_kind(StartWorker, done) if one.worker not in starting]
        starting = [name for name in starting if name in rig.job.fleet.workers]
        known.update(limits(done))
        shares = [known[one.name] for one in rig.job.fleet.workers.values() if one.running]
        if quota is None:
            assert all(share is None for share in shares)
        elif shares:
            assert math.fsum(share or math.inf for share in shares) == pytest.approx(quota)


def test_rooms_are_told_with_the_shares_and_a_quota_that_is_renewed_often_fills_no_report() -> None:
    rig = JobRig(workers=Workers(2))
    first, second = rig.begin(splits=4)
    rooms = (("s3://bucket/set", 1 << 20),)
    told = of_kind(LimitRemoteIo, rig.handle(events.RemoteIoSet(10.0, rooms, why=", by the cluster")))
    assert told == [LimitRemoteIo(first, 5.0, rooms), LimitRemoteIo(second, 5.0, rooms)]
    assert not of_kind(LimitRemoteIo, rig.handle(events.RemoteIoSet(10.0, rooms, why=", by the cluster")))
    for step in range(5):
        rig.handle(events.RemoteIoSet(10.0 + step / 10, rooms, why=", by the cluster"))
    assert [one.kind for one in rig.job.told].count("remote io") == 1
    rig.handle(events.RemoteIoSet(20.0, rooms, why=", by the cluster"))
    assert [one.text for one in rig.job.told if one.kind == "remote io"][1].endswith("from now on, by the cluster")
    (again,) = of_kind(StartWorker, rig.handle(events.WorkerLost(second, "process")))
    assert again.rooms == rooms
