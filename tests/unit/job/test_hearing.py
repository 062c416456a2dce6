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


def lost_after(starved: float | None, told: float | None = None) -> int:
    """Let a job's only worker say nothing; return after how many seconds it is killed.

    `starved`: the share of the time for which it is seen to stand in line for a CPU; None: nobody sees it.
    `told`: the share that it has told of before.
    """
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.begin()
    if told is not None:
        rig.handle(events.WorkerProgressReported(worker, WorkerProgress(in_line_share=told)))
    looked_at: float | None = None
    for second in range(1, 700):
        done = rig.handle(events.TrainerWaiting(0, "t0"), after=0.5) + rig.handle(events.TimePassed(), after=0.5)
        if any(one.worker == worker for one in of_kind(KillWorker, done)):
            return second
        for asked in of_kind(LookForWorkers, done):
            if starved is None:
                continue
            (look,) = asked.workers
            assert (look.worker, look.node, look.again) == (worker, "node", looked_at is not None)
            if looked_at is not None:
                rig.handle(events.WorkerChecked(worker, starved * (rig.now - looked_at), rig.now - looked_at))
            looked_at = rig.now
    raise AssertionError("it is waited for ever")


@pytest.mark.parametrize(
    ("starved", "told", "first", "last"),
    [(0.0, None, 60, 61), (0.5, None, 115, 125), (1.0, None, 600, 610), (None, 0.02, 60, 64), (None, 0.75, 236, 246)],
)
def test_a_worker_is_lost_when_it_says_nothing_though_it_had_a_cpu_as_far_as_is_seen_or_was_told(
    starved: float | None, told: float | None, first: int, last: int
) -> None:
    assert first <= lost_after(starved, told) <= last


def test_a_controller_that_comes_late_itself_looks_before_it_calls_a_worker_dead() -> None:
    rig = JobRig(workers=Workers(1), timeouts=Timeouts(worker_s=5.0))
    (worker,) = rig.begin()
    for starved in (0.0, 3.0, 3.0):  # the first look has nothing to compare with
        done = rig.handle(events.TimePassed(), after=LONGEST_GAP_S)
        assert not of_kind(KillWorker, done)
        assert of_kind(LookForWorkers, done)
        if starved:
            rig.handle(events.WorkerChecked(worker, starved, LONGEST_GAP_S))
