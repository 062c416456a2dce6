"""The trainers of a job: who may take part, who must run the same, and what happens when they are heard no more."""

from __future__ import annotations

import pytest

from pecan_ray.errors import ClusterError, RankTakenError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.instructions import EndJob, Instruction, KillWorker, RejectTrainer, TellTrainers
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.trainers import Trainers
from tests.unit.job.job_rig import JobRig, of_kind


def came(rank: int, incarnation: str = "", **described: str) -> events.TrainerCame:
    return events.TrainerCame(rank, incarnation or f"t{rank}", f"n{rank % 2}", tuple(described.items()))


def refusal(done: list[Instruction]) -> str:
    (refused,) = of_kind(RejectTrainer, done)
    return str(refused.error)


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
    text = refusal(rig.handle(came(1, **theirs)))
    assert told in text and "rank 1" in text
    assert not of_kind(RejectTrainer, rig.handle(came(1, **mine))), "it may come again as the others are"


@pytest.mark.parametrize("killed", [False, True])
def test_a_rank_that_is_gone_with_batches_it_has_not_used_ends_the_others_though_all_is_delivered(killed: bool) -> None:
    rig = JobRig(LedgerShape(world_size=2), trainer_timeout_s=30.0)
    rig.come()
    rig.handle(events.ListingEnded(0))
    rig.report(1, progress=TrainerProgress(queued=3))
    assert rig.job.orders(0).finished
    if killed:
        rig.handle(events.TrainerWaiting(0, "t0"), after=20.0)
        done = rig.handle(events.TimePassed(), after=11.0)
        assert "rank 1 on node node has not been heard" in str(rig.job.error)
    else:
        done = rig.handle(events.TrainerLeft(1, "t1", unused=3))
        assert "rank 1 has left before the end" in str(rig.job.error)
    assert isinstance(rig.job.error, ClusterError) and not of_kind(EndJob, done)
    assert of_kind(TellTrainers, done) == [TellTrainers((0,))]


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


@pytest.mark.parametrize(("world_size", "stale_s"), [(1, 5.0), (1000, 50.0)])
def test_a_new_process_ends_a_job_that_was_left_behind_and_no_other(world_size: int, stale_s: float) -> None:
    """Many trainers report seldom: that all of them are quiet for a while means nothing."""
    trainers = Trainers("job", world_size, 60.0, 0.0)
    for rank in range(world_size):
        assert trainers.come(came(rank), 0.0) is None
    assert isinstance(trainers.come(came(0, "new"), stale_s), RankTakenError)
    assert isinstance(trainers.come(came(0, "new"), stale_s + 0.1), StaleJobError)


@pytest.mark.parametrize(("world_size", "timeout_s"), [(2, 5.0), (1000, 30.0)])
def test_a_deadline_shorter_than_three_reports_is_these(world_size: int, timeout_s: float) -> None:
    trainers = Trainers("job", world_size, 5.0, 0.0)
    for rank in range(world_size):
        trainers.come(came(rank), 0.0)
    assert trainers.silent(timeout_s) == [] and not trainers.orphaned(timeout_s)
    assert trainers.silent(timeout_s + 0.1) == list(range(world_size)) and trainers.orphaned(timeout_s + 0.1)


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
    assert rig.job.orders(1).allowed == 1
    assert told == [TellTrainers((1,)), TellTrainers((0,), only_limit_raised=True)], "rank 1 can take no more meanwhile"
