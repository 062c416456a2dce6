"""For how long a worker is waited for that says nothing."""

from __future__ import annotations

import pytest

from pecan_ray.job import events
from pecan_ray.job.active_clock import LONGEST_GAP_S
from pecan_ray.job.instructions import KillWorker, LookForWorkers
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.spec import Timeouts
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, of_kind


def silent(starved: float, seconds: int) -> tuple[JobRig, float | None]:
    """Let a job's only worker say nothing, and stand in line for that share of the time; return when it was killed."""
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.begin()
    looked_at: float | None = None
    for second in range(1, seconds):
        done = rig.handle(events.TrainerWaiting(0, "t0"), after=0.5) + rig.handle(events.TimePassed(), after=0.5)
        if any(one.worker == worker for one in of_kind(KillWorker, done)):
            return rig, second
        for asked in of_kind(LookForWorkers, done):
            (look,) = asked.workers
            assert (look.worker, look.node, look.again) == (worker, "node", looked_at is not None)
            if looked_at is not None:
                rig.handle(events.WorkerChecked(worker, starved * (rig.now - looked_at), rig.now - looked_at))
            looked_at = rig.now
    return rig, None


@pytest.mark.parametrize(("starved", "lost_at"), [(0.0, (60, 61)), (0.5, (115, 125)), (1.0, (600, 610))])
def test_a_worker_is_lost_when_it_says_nothing_though_it_had_a_cpu(starved: float, lost_at: tuple[int, int]) -> None:
    _, at = silent(starved, 700)
    assert at is not None and lost_at[0] <= at <= lost_at[1]


def test_a_controller_that_comes_late_itself_looks_before_it_calls_a_worker_dead() -> None:
    rig = JobRig(workers=Workers(1), timeouts=Timeouts(worker_s=5.0))
    (worker,) = rig.begin()
    for starved in (0.0, 3.0, 3.0):  # the first look has nothing to compare with
        done = rig.handle(events.TimePassed(), after=LONGEST_GAP_S)
        assert not of_kind(KillWorker, done)
        assert of_kind(LookForWorkers, done)
        if starved:
            rig.handle(events.WorkerChecked(worker, starved, LONGEST_GAP_S))


def test_a_worker_of_another_node_that_has_told_that_it_starves_is_waited_for() -> None:
    def lost_at(share: float) -> float:
        rig = JobRig(workers=Workers(1))
        (worker,) = rig.begin()
        rig.handle(events.WorkerProgressReported(worker, WorkerProgress(in_line_share=share)))
        for second in range(700):
            done = rig.handle(events.TrainerWaiting(0, "t0"), after=0.5) + rig.handle(events.TimePassed(), after=0.5)
            if any(one.worker == worker for one in of_kind(KillWorker, done)):
                return second
        raise AssertionError("it is waited for ever")

    assert 59 <= lost_at(0.02) <= 63 and 235 <= lost_at(0.75) <= 245 and 595 <= lost_at(1.0) <= 610
