"""A trainer that says nothing: as long as its process exists it is waited for, and said so."""

from __future__ import annotations

import pytest

from pecan_ray.errors import ClusterError, RankTakenError, StaleJobError
from pecan_ray.job import events
from pecan_ray.job.instructions import EndJob, LookForTrainers, RejectTrainer
from pecan_ray.job.ledger_shape import LedgerShape
from tests.unit.job.job_rig import JobRig, of_kind

TIMEOUT_S = 60.0


def begun_job(ranks: int = 1) -> JobRig:
    rig = JobRig(LedgerShape(world_size=ranks), trainer_timeout_s=TIMEOUT_S)
    for rank in range(ranks):
        rig.handle(events.TrainerCame(rank, f"t{rank}", "node", (), f"process-{rank}"))
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
                rig.handle(events.TrainerLookedFor(one.rank, one.incarnation, state))  # type: ignore[arg-type]  # not None
    return asked


def ended(rig: JobRig) -> bool:
    return any(of_kind(EndJob, done) for done in rig.done)


def test_the_only_trainer_is_waited_for_as_long_as_its_process_exists() -> None:
    rig = begun_job()
    assert pass_time(rig, 3600.0, "exists") <= 4 * 60, "not asked all the time"
    assert not ended(rig) and rig.job.error is None
    rig.handle(events.TrainerWaiting(0, "t0"))
    pass_time(rig, 10.0, None, speaks=(0,))
    assert not ended(rig)


@pytest.mark.parametrize("state", [None, "ended"])
def test_where_nobody_can_answer_and_where_it_has_ended_the_deadline_holds(state: events.ProcessState | None) -> None:
    rig = begun_job(2)
    pass_time(rig, TIMEOUT_S - 1.0, state, speaks=(1,))
    assert rig.job.error is None
    pass_time(rig, 3.0, state, speaks=(1,))
    assert isinstance(rig.job.error, ClusterError)
    why = "its process has ended" if state else "nobody could tell whether its process exists"
    assert why in str(rig.job.error) and "rank 0 on node node has not been heard for 61 s" in str(rig.job.error)


def test_the_others_are_told_for_whom_they_wait() -> None:
    rig = begun_job(2)
    pass_time(rig, 40.0, "exists", speaks=(1,))
    assert not [one.text for one in rig.job.told if "If nobody can tell" in one.text], "the answer came in time"
    (said,) = [text for text in rig.job.orders(1).waits if "rank 0" in text]
    assert "rank 0 on node node has said nothing for" in said and "its process exists, and is waited for" in said
    rig.handle(events.TrainerWaiting(0, "t0"))
    pass_time(rig, 2.0, "exists", speaks=(0, 1))
    assert not [text for text in rig.job.orders(1).waits if "has said nothing" in text]


def test_another_run_does_not_take_the_place_of_a_process_that_stands_still() -> None:
    rig = begun_job(2)
    pass_time(rig, 30.0, "exists")
    asked = of_kind(LookForTrainers, rig.handle(events.TrainerCame(0, "new", "node")))
    for _ in range(10):
        for one in (one for looks in asked for one in looks.trainers):
            rig.handle(events.TrainerLookedFor(one.rank, one.incarnation, "exists"))
        done = rig.handle(events.TrainerCame(0, "new", "node"), after=1.0)
        asked = of_kind(LookForTrainers, done)
        assert isinstance(of_kind(RejectTrainer, done)[0].error, RankTakenError) and not of_kind(EndJob, done)


def test_another_run_takes_the_place_of_one_whose_processes_have_ended_at_once() -> None:
    rig = begun_job(2)
    pass_time(rig, 2.0, None)
    done = rig.handle(events.OtherRunCame("new"))
    assert isinstance(of_kind(RejectTrainer, done)[0].error, RankTakenError)
    for one in of_kind(LookForTrainers, done)[0].trainers:
        rig.handle(events.TrainerLookedFor(one.rank, one.incarnation, "ended"))
    done = rig.handle(events.OtherRunCame("new"), after=0.2)
    assert isinstance(of_kind(RejectTrainer, done)[0].error, StaleJobError) and of_kind(EndJob, done)
