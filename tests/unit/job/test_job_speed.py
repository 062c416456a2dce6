"""How fast a job is, and would be if it never waited for data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.messages import AskLeases, TrainerProgress, TrainerReport, WorkerProgress
from pecan_ray.job.speed import MOST_BYTES_PER_S, JobSpeed, SpeedMeter
from pecan_ray.options import Workers
from pecan_ray.plan.stage_seconds import StageSeconds
from tests.unit.job.job_rig import JobRig

ROW_BYTES = 1000


class Run:
    """A job whose trainer and worker tell what a test says, second by second."""

    def __init__(self) -> None:
        self.rig, self.meter, self.number = JobRig(workers=Workers(1)), SpeedMeter(), 0
        (self.worker,) = self.rig.begin(splits=4)
        self.trainer, self.made = TrainerProgress(), WorkerProgress()

    def second(self, rows: int, waited_s: float, hits: float = 0.0, stages: StageSeconds | None = None) -> JobSpeed:
        self.number += 1
        before = self.trainer
        self.trainer = TrainerProgress(
            before.yielded, before.rows + rows, before.waited_s + waited_s, before.elapsed_s + 1.0
        )
        nbytes = rows * ROW_BYTES
        self.made = replace(
            self.made,
            elements=self.made.elements + rows,
            remote_bytes=self.made.remote_bytes + round(nbytes * (1 - hits)),
            node_bytes=self.made.node_bytes + round(nbytes * hits),
            stages=stages or self.made.stages,
        )
        self.rig.handle(events.WorkerTold(self.worker, self.made), 1.0)
        self.rig.handle(events.TrainerReported(TrainerReport(0, "t0", self.number, progress=self.trainer)))
        return self.meter.look(self.rig.job, self.rig.now)


def test_of_a_job_that_waits_half_of_the_time_the_ideal_is_twice_its_speed_in_the_last_seconds() -> None:
    run = Run()
    for _ in range(20):
        run.second(10, 0.0)
    for _ in range(20):
        speed = run.second(100, 0.5, hits=0.75)
    assert speed.rows_per_s == pytest.approx(100)
    assert (speed.wait_share, speed.hit_share) == pytest.approx((0.5, 0.75), abs=0.01)
    assert speed.bytes_per_s == pytest.approx(100 * ROW_BYTES)
    assert speed.ideal_bytes_per_s == pytest.approx(200 * ROW_BYTES, rel=0.01)


def test_a_loop_that_does_nothing_is_as_fast_as_its_workers_compute() -> None:
    run = Run()
    stages = StageSeconds(watched_s=10.0, threads_s=20.0, operators=(("decode", 4.0),))
    for second in range(3):
        speed = run.second(100, 1.0, stages=stages)
        assert second == 0 or speed.ideal_bytes_per_s == pytest.approx((second + 1) * 100 / 2.0 * ROW_BYTES)


def test_before_anything_has_come_nothing_is_known_and_no_speed_is_endless() -> None:
    run = Run()
    assert run.meter.look(run.rig.job, 0.0) == JobSpeed()
    run.second(0, 1.0)
    speed = run.second(10**9, 1.0)
    assert speed.ideal_bytes_per_s == MOST_BYTES_PER_S
    stopped = run.second(0, 0.0)
    assert stopped.ideal_bytes_per_s is not None


@pytest.mark.parametrize("told_every", [1, 3, 6])
def test_the_size_of_a_dataset_is_known_from_a_part_of_it_although_workers_tell_seldom(told_every: int) -> None:
    splits, lot, size = 400, 4, 1 << 20
    rig, meter = JobRig(workers=Workers(1)), SpeedMeter()
    (worker,) = rig.begin(splits=splits)
    epoch = rig.assign(worker).epoch
    taken = read = 0
    found: list[float | None] = []
    for second in range(1, 80):
        read += 4
        while taken < min(splits, read + lot):  # one lot is asked for while the one before is being read
            rig.answer(worker, AskLeases(epoch, 0, lot))
            taken += lot
        if second % told_every == 0:
            rig.handle(events.WorkerTold(worker, WorkerProgress(remote_bytes=read * size)), 1.0)
        found.append(meter.look(rig.job, rig.now).dataset_bytes)
    known = [one for one in found if one is not None]
    assert len(known) > 60, "from a twentieth of an epoch on"
    assert known == pytest.approx([splits * size] * len(known), rel=0.02)
