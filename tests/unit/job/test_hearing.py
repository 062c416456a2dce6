"""When a party is dead: what excuses silence, and for how long."""

from __future__ import annotations

import pytest

from pecan_ray.job import events
from pecan_ray.job.active_clock import LONGEST_GAP_S
from pecan_ray.job.hearing import LEAST_COUNTED, Hearing
from pecan_ray.job.instructions import KillWorker, LookForWorkers
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, of_kind

DEADLINE_S = 60.0


@pytest.mark.parametrize(
    ("now", "hearing", "lost"),
    [
        (60.0, Hearing(), False),
        (60.5, Hearing(), True),
        (60.5, Hearing(found=30.0), False),
        (90.5, Hearing(found=30.0), True),
        (60.5, Hearing(found=30.0, ended=True), True),
        (59.0, Hearing(ended=True), False),
        (119.0, Hearing(starved_s=1.0, looked_s=2.0), False),
        (121.0, Hearing(starved_s=1.0, looked_s=2.0), True),
        (500.0, Hearing(starved_s=500.0, looked_s=500.0), False),
        (DEADLINE_S / LEAST_COUNTED + 1, Hearing(starved_s=1e9, looked_s=500.0), True),
        (119.0, Hearing(told_share=0.5), False),
        (121.0, Hearing(told_share=0.5), True),
        (60.5, Hearing(told_share=0.5, looked_s=2.0), True),
        (500.0, Hearing(found=500.0), False),
    ],
)
def test_silence_is_death_once_what_excuses_it_is_taken_off(now: float, hearing: Hearing, lost: bool) -> None:
    assert hearing.is_lost(now, DEADLINE_S) is lost


def test_who_speaks_begins_anew_and_what_was_found_of_it_stays() -> None:
    spoke = Hearing(starved_s=50.0, found=40.0, ended=True).asked(45.0).heard(50.0)
    assert spoke == Hearing(50.0, found=40.0, checked_at=45.0, ended=True) and not spoke.was_asked
    assert spoke.asked(51.0).was_asked and not spoke.should_look(50.5, 1.0) and spoke.should_look(51.0, 1.0)


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


def test_who_stands_in_line_is_named_as_such_and_not_as_one_that_hangs() -> None:
    rig, lost = silent(1.0, 100)
    (text,) = [
        one for one in rig.job.worker_table.waiting_for(rig.now, DEADLINE_S).values() if "has said nothing" in one
    ]
    assert lost is None and "other programs have the CPUs of its node" in text and "up to 600 s" in text


def test_what_is_found_of_a_worker_that_has_spoken_since_excuses_nothing() -> None:
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.begin()
    assert of_kind(LookForWorkers, rig.handle(events.TimePassed(), after=31.0))
    rig.handle(events.WorkerProgressReported(worker, WorkerProgress()), after=1.0)
    rig.handle(events.WorkerChecked(worker, 31.0, 31.0))
    assert rig.job.worker_table.workers[worker].hearing == Hearing(32.0, checked_at=31.0)


def test_a_controller_that_comes_late_itself_looks_before_it_calls_a_worker_dead() -> None:
    rig = JobRig(workers=Workers(1), worker_timeout_s=5.0)
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
