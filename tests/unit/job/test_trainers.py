"""The trainers of a job: who may take part, whose place another takes, and what happens when one is heard no more."""

from __future__ import annotations

import pytest

from pecan_ray.errors import ClusterError, RankTakenError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.instructions import EndJob, KillWorker, Log, LookForTrainers, RejectTrainer
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import TrainerReport
from pecan_ray.job.registration import NoResponse, Registration, Rejected, Retry, StopWithError
from pecan_ray.job.spec import Timeouts
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.trainers import Trainers
from tests.unit.job.job_rig import JobRig, of_kind

TIMEOUT_S = 60.0


def came(rank: int, incarnation: str = "", **described: str) -> events.TrainerRegistered:
    return events.TrainerRegistered(rank, incarnation or f"t{rank}", f"n{rank % 2}", tuple(described.items()))


def test_a_job_ends_itself_when_nobody_comes_or_all_are_silent_and_turns_away_who_comes_then() -> None:
    rig = JobRig(timeouts=Timeouts(30.0))
    assert rig.handle(events.TimePassed(), after=29.0) == []
    assert of_kind(EndJob, rig.handle(events.TimePassed(), after=2.0)) == [EndJob(orphaned=True)]
    rig = JobRig(LedgerShape(world_size=2), timeouts=Timeouts(30.0))
    (worker,) = rig.begin()
    for _ in range(3):
        rig.now += 20.0
        rig.report()
        assert not of_kind(EndJob, rig.handle(events.TrainerWaiting(1, "t1"))), "both are heard"
    done = rig.handle(events.TimePassed(), after=31.0)
    assert of_kind(KillWorker, done) == [KillWorker(worker)] and of_kind(EndJob, done) == [EndJob(orphaned=True)]
    assert rig.handle(events.TimePassed()) == []
    for trainer in (came(0, "new"), came(1)):
        (refused,) = of_kind(RejectTrainer, rig.handle(trainer))
        assert isinstance(refused.error, StaleJobError) and refused.incarnation == trainer.incarnation


@pytest.mark.parametrize(("world_size", "stale_s"), [(1, 5.0), (100, 5.0), (1000, 50.0)])
def test_a_new_process_ends_a_job_that_was_left_behind_and_no_other_and_is_told_when(
    world_size: int, stale_s: float
) -> None:
    """Many trainers report seldom: that all of them are quiet for a while means nothing."""
    trainers = Trainers("job", world_size, TIMEOUT_S, 0.0)
    for rank in range(world_size):
        assert trainers.register(came(rank), 0.0) is None
    refused = trainers.register(came(0, "new"), stale_s)
    assert isinstance(refused, RankTakenError) and refused.fields == {"patience_s": stale_s + 3.0}
    again = Registration("job", world_size, 0.0).decide(Rejected(refused), stale_s + 3.0)
    assert isinstance(again, Retry) and f"not heard for {stale_s:g} s gives way" in again.say
    assert isinstance(trainers.register(came(0, "new"), stale_s + 0.1), StaleJobError)


def test_a_name_that_is_taken_is_waited_for_anew_when_its_controller_has_answered_in_between() -> None:
    registration, taken = Registration("job", 1, 0.0), NoResponse("taken", "it is taken")
    assert isinstance(registration.decide(taken, 6.0), Retry)
    assert isinstance(registration.decide(Rejected(StaleJobError("it ends")), 7.0), Retry)
    assert isinstance(registration.decide(taken, 10.0), Retry)
    assert isinstance(registration.decide(taken, 18.0), Retry)
    assert isinstance(registration.decide(taken, 18.1), StopWithError)


# --- a process that is replaced --------------------------------------------------------------------------------


def test_what_workers_may_have_sent_to_the_process_before_comes_from_others() -> None:
    """The process of rank 0 is gone when rank 1 was heard last."""
    rig = JobRig(LedgerShape(world_size=2), timeouts=Timeouts(TIMEOUT_S))
    (worker,) = rig.begin()
    rig.handle(events.TrainerWaiting(0, "t0", met=1))
    rig.handle(events.TrainerWaiting(1, "t1", met=1), after=10.0)
    rig.assign(worker)
    (lease,) = rig.take(worker)
    done = rig.handle(events.TrainerRegistered(0, "new", "node"))
    assert of_kind(KillWorker, done) == [KillWorker(worker)] and len(of_kind(StartWorker, done)) == 1
    for told in (log.text for log in of_kind(Log, done)), (event.text for event in rig.job.story):
        assert any("rank 0 has a new process" in text for text in told)
    assert rig.job.error is None and rig.job.worker_table.losses.count == 0
    (other,) = rig.job.worker_table.workers
    rig.place(other)
    for rank, incarnation in ((0, "new"), (1, "t1")):
        settled = TrainerReport(rank, incarnation, 1, settled=(worker,))
        rig.handle(events.TrainerReported(settled))
    rig.assign(other)
    assert [again.split for again in rig.take(other)] == [lease.split]


# --- a process that says nothing -------------------------------------------------------------------------------


def pass_time(rig: JobRig, seconds: float, state: events.ProcessState | None) -> None:
    """Let time pass in which rank 1 alone is heard, while the cluster answers (None: it cannot)."""
    for _ in range(int(seconds)):
        rig.handle(events.TrainerWaiting(1, "t1"))
        for looks in of_kind(LookForTrainers, rig.handle(events.TimePassed(), after=1.0)):
            for one in looks.trainers if state is not None else ():
                assert one.process == f"process-{one.rank}"
                rig.handle(events.TrainerChecked(one.rank, one.incarnation, state))  # type: ignore[arg-type]  # not None


@pytest.mark.parametrize("state", [None, "ended"])
def test_where_nobody_can_answer_and_where_it_has_ended_the_deadline_holds(state: events.ProcessState | None) -> None:
    rig = JobRig(LedgerShape(world_size=2), timeouts=Timeouts(TIMEOUT_S))
    for rank in range(2):
        rig.handle(events.TrainerRegistered(rank, f"t{rank}", "node", (), f"process-{rank}"))
    rig.handle(events.RoomFound((("node", 4.0),), ()))
    rig.list_splits(1)
    pass_time(rig, TIMEOUT_S - 1.0, state)
    assert rig.job.error is None
    pass_time(rig, 3.0, state)
    assert isinstance(rig.job.error, ClusterError)
    why = "its process has ended" if state else "nobody could tell whether its process exists"
    assert why in str(rig.job.error) and "rank 0 on node node has not been heard for 61 s" in str(rig.job.error)
