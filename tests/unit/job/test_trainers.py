"""The trainers of a job: who may take part, whose place another takes, and what happens when one is heard no more."""

from __future__ import annotations

from typing import Any

import pytest

from pecan_ray.errors import ClusterError, RankTakenError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.instructions import EndJob, KillWorker, Log, LookForTrainers, RejectTrainer, Response, TellTrainers
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskAssignment, ReceivedBatches, TrainerReport, WorkerProgress
from pecan_ray.job.registration import Registration, Rejected, Retry
from pecan_ray.job.rounds import Rounds, expand_rounds
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.trainers import Trainers
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, of_kind

TIMEOUT_S = 60.0


def came(rank: int, incarnation: str = "", **described: str) -> events.TrainerRegistered:
    return events.TrainerRegistered(rank, incarnation or f"t{rank}", f"n{rank % 2}", tuple(described.items()))


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({"map decode": "1"}, {"map decode": "2"}, "differs from rank 0 in map decode: 2 instead of 1"),
        ({"batch": "1"}, {"batch": "1", "shuffle": "9"}, "in shuffle: 9 instead of none"),
        ({"batch": "1", "shuffle": "9"}, {"batch": "1"}, "in shuffle: it has none instead of 9"),
    ],
)
def test_a_rank_that_runs_something_else_is_told_in_which_part(
    mine: dict[str, str], theirs: dict[str, str], told: str
) -> None:
    rig = JobRig(LedgerShape(world_size=2))
    rig.handle(came(0, **mine))
    (refused,) = of_kind(RejectTrainer, rig.handle(came(1, **theirs)))
    assert told in str(refused.error) and "rank 1" in str(refused.error)
    assert not of_kind(RejectTrainer, rig.handle(came(1, **mine))), "it may come again as the others are"


def test_a_job_ends_itself_when_nobody_comes_or_all_are_silent_and_turns_away_who_comes_then() -> None:
    rig = JobRig(trainer_timeout_s=30.0)
    assert rig.handle(events.TimePassed(), after=29.0) == []
    assert of_kind(EndJob, rig.handle(events.TimePassed(), after=2.0)) == [EndJob(orphaned=True)]
    rig = JobRig(LedgerShape(world_size=2), trainer_timeout_s=30.0)
    (worker,) = rig.begin()
    for _ in range(3):
        rig.now += 20.0
        rig.report()
        assert not of_kind(EndJob, rig.handle(events.TrainerWaiting(1, "t1"))), "both are heard"
    done = rig.handle(events.TimePassed(), after=31.0)
    assert of_kind(KillWorker, done) == [KillWorker(worker)] and of_kind(EndJob, done) == [EndJob(orphaned=True)]
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


@pytest.mark.parametrize(("world_size", "timeout_s"), [(2, 5.0), (1000, 30.0)])
def test_a_deadline_shorter_than_three_reports_is_these(world_size: int, timeout_s: float) -> None:
    trainers = Trainers("job", world_size, 5.0, 0.0)
    for rank in range(world_size):
        trainers.register(came(rank), 0.0)
    assert trainers.timed_out(timeout_s) == [] and not trainers.orphaned(timeout_s)
    assert trainers.timed_out(timeout_s + 0.1) == list(range(world_size)) and trainers.orphaned(timeout_s + 0.1)


def test_that_more_may_be_used_is_told_at_once_to_those_alone_that_wait_for_it() -> None:
    rig = JobRig(LedgerShape(world_size=3))
    (worker,) = rig.begin()
    rig.assign(worker)
    (lease,) = rig.take(worker)
    for rank in range(2):
        assert of_kind(TellTrainers, rig.acknowledge(worker, lease, rank, rank=rank)) == []
    assert of_kind(TellTrainers, rig.report(0, held=True)) == []
    assert of_kind(TellTrainers, rig.report(1, held=True, full=True)) == []
    told = of_kind(TellTrainers, rig.acknowledge(worker, lease, 2, rank=2))
    assert rig.job.trainer_update(1).allowed == 1
    assert told == [TellTrainers((1,)), TellTrainers((0,), only_limit_raised=True)], "rank 1 can take no more meanwhile"


# --- a process that is replaced --------------------------------------------------------------------------------


def left_job(met: int = 0, **told: Any) -> JobRig:
    """Two ranks and a worker; the process of rank 0 is gone when rank 1 was heard last."""
    rig = JobRig(LedgerShape(world_size=2), trainer_timeout_s=TIMEOUT_S)
    rig.begin()
    rig.handle(events.TrainerWaiting(0, "t0", met=met))
    if told:
        rig.report(0, **told)
    rig.handle(events.TrainerWaiting(1, "t1", met=met), after=10.0)
    return rig


def test_a_process_that_was_replaced_and_lives_is_told_so() -> None:
    rig = left_job()
    assert not of_kind(RejectTrainer, rig.handle(events.TrainerRegistered(0, "new", "node")))
    for said in (events.TrainerWaiting(0, "t0"), events.TrainerReported(TrainerReport(0, "t0", 9))):
        (refused,) = of_kind(RejectTrainer, rig.handle(said))
        assert refused.incarnation == "t0" and "another process has taken its place" in str(refused.error)
    assert rig.job.trainers.present == [0, 1]


def test_what_workers_may_have_sent_to_the_process_before_comes_from_others() -> None:
    rig = left_job(met=1)
    (worker,) = rig.job.worker_table.workers
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


def test_the_process_of_a_rank_that_has_had_batches_is_not_replaced() -> None:
    ack = ReceivedBatches("w", 0, {}, 1, 1, 10)
    (refused,) = of_kind(
        RejectTrainer, left_job(received_batches=(ack,)).handle(events.TrainerRegistered(0, "new", "node"))
    )
    assert isinstance(refused.error, RankTakenError)


# --- a process that says nothing -------------------------------------------------------------------------------


def begun_job(ranks: int = 1) -> JobRig:
    rig = JobRig(LedgerShape(world_size=ranks), trainer_timeout_s=TIMEOUT_S)
    for rank in range(ranks):
        rig.handle(events.TrainerRegistered(rank, f"t{rank}", "node", (), f"process-{rank}"))
    rig.handle(events.RoomFound((("node", 4.0),), ()))
    rig.list_splits(1)
    return rig


def pass_time(rig: JobRig, seconds: float, state: events.ProcessState | None, speaks: tuple[int, ...] = ()) -> int:
    """Let time pass, while the cluster answers (None: it cannot); return how many questions it was asked."""
    asked = 0
    for _ in range(int(seconds)):
        for rank in speaks:
            rig.handle(events.TrainerWaiting(rank, f"t{rank}"))
        done = rig.handle(events.TimePassed(), after=1.0)
        for looks in of_kind(LookForTrainers, done):
            asked += len(looks.trainers)
            for one in looks.trainers if state is not None else ():
                assert one.process == f"process-{one.rank}"
                rig.handle(events.TrainerChecked(one.rank, one.incarnation, state))  # type: ignore[arg-type]  # not None
    return asked


@pytest.mark.parametrize("state", [None, "ended"])
def test_where_nobody_can_answer_and_where_it_has_ended_the_deadline_holds(state: events.ProcessState | None) -> None:
    rig = begun_job(2)
    pass_time(rig, TIMEOUT_S - 1.0, state, speaks=(1,))
    assert rig.job.error is None
    pass_time(rig, 3.0, state, speaks=(1,))
    assert isinstance(rig.job.error, ClusterError)
    why = "its process has ended" if state else "nobody could tell whether its process exists"
    assert why in str(rig.job.error) and "rank 0 on node node has not been heard for 61 s" in str(rig.job.error)


def test_another_run_takes_the_place_of_one_whose_processes_have_ended_at_once() -> None:
    rig = begun_job(2)
    pass_time(rig, 2.0, None)
    done = rig.handle(events.OtherRunRegistered("new"))
    assert isinstance(of_kind(RejectTrainer, done)[0].error, RankTakenError)
    for one in of_kind(LookForTrainers, done)[0].trainers:
        rig.handle(events.TrainerChecked(one.rank, one.incarnation, "ended"))
    done = rig.handle(events.OtherRunRegistered("new"), after=0.2)
    assert isinstance(of_kind(RejectTrainer, done)[0].error, StaleJobError) and of_kind(EndJob, done)
    late = events.WorkerRequestReceived("worker", "run", 7, AskAssignment(WorkerProgress()))
    assert rig.handle(late) == [Response("worker", "run", 7, "stop")], "it must not wait for a job that has ended"


# --- rounds ---------------------------------------------------------------------------------------------------


def turns(rounds: Rounds) -> list[str]:
    rounds.schedule_rounds(0)
    return list(expand_rounds(rounds.first, rounds.schedule, rounds.first))


def test_workers_have_their_turns_one_after_the_other_and_nobody_waits_for_a_slow_one() -> None:
    rounds = Rounds(2)
    for worker, made in (("a", 4), ("b", 2)):
        for rank in range(2):
            rounds.received(rank, worker, made)
    assert turns(rounds) == ["a", "b", "a", "b", "a", "a"]
    for worker in ("a", "b"):
        for rank in range(2):
            rounds.received(rank, worker, 1)
    assert turns(rounds)[6:] == ["b", "a"], "after a it is the turn of b"


def test_ranks_that_others_wait_for_are_named_after_some_seconds_and_in_the_report() -> None:
    rig = JobRig(LedgerShape(world_size=3, coordinated=True), Workers(1), say_after_s=5.0)
    (worker,) = rig.begin()
    rig.assign(worker)
    (lease,) = rig.take(worker)
    for rank in (0, 2):
        rig.acknowledge(worker, lease, rank, rank=rank)
    rig.report(0, held=True)
    rig.now += 3.0
    assert not of_kind(Log, rig.report(2, held=True))
    rig.now += 4.0
    rig.report(0, held=True)
    rig.handle(events.TimePassed())
    said = [one.text for one in of_kind(Log, rig.handle(events.TimePassed(), after=5.5))]
    assert any(text.startswith("rank 1 must yet receive a batch of the round") for text in said), said
    rig.acknowledge(worker, lease, 1, rank=1)
    assert rig.job.stats(rig.now).held_up[1] == pytest.approx(12.5)
    assert rig.job.ledger.allowed() == 1
