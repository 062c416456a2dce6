"""Whole splits in order: whose rows are taken without room, and who makes way for a maker of the next ones."""

from __future__ import annotations

from pecan_ray.job import events
from pecan_ray.job import trainer_events as told
from pecan_ray.job.blocks import RowRange, place_of
from pecan_ray.job.credits import EARLY_SHARE
from pecan_ray.job.instructions import DrainWorker
from pecan_ray.job.joins import Joins
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import NextMakers, Receipts, TrainerReport, TrainerUpdate
from pecan_ray.job.next_makers import BLOCKED_S, COMING_S
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.trainer import TrainerState
from pecan_ray.options import Workers
from pecan_ray.plan.splits import END, Lease, Split
from tests.unit.job.job_rig import JobRig, elements, of_kind

SHAPE = LedgerShape(in_row_order=True, joined=True, one_row_each=True, batch_size=2)
ROOM = 1000


def files_job(*whole: bool, about: int = 10**6) -> tuple[JobRig, list[tuple[str, Lease]]]:
    """Return a job of two workers that have begun with the first two splits, of which some are whole."""
    rig = JobRig(SHAPE, Workers(2))
    workers = rig.begin([Split(index, about=about, whole=one) for index, one in enumerate(whole)])
    given = []
    for worker in workers:
        rig.assign(worker)
        (lease,) = rig.take(worker)
        given.append((worker, lease))
    return rig, given


def makers(rig: JobRig) -> NextMakers | None:
    """Return what trainers are told."""
    return rig.job.trainer_update(0).next_makers


def test_the_maker_of_the_next_split_is_told_and_where_none_is_whole_nobody_waits() -> None:
    rig, [(first, lease), (second, _)] = files_job(True, True, True)
    assert makers(rig) == NextMakers(0, (first,))
    rig.acknowledge(first, lease, 0, 10**6)
    assert makers(rig) == NextMakers(0, (first,)), "an estimate says nothing about the end"
    rig.job.ledger.ack(0, first, 0, {lease.key: [(elements(10**6)[0], END)]}, 1, 1)
    rig.handle(events.TimePassed())
    assert makers(rig) == NextMakers(1, (second,))
    rig, _ = files_job(False, False)
    assert makers(rig) is None


def test_a_maker_of_other_splits_waits_for_no_room_because_the_window_bounds_them() -> None:
    rig, [(first, _), (second, lease)] = files_job(True, False, about=4)
    assert not lease.split.whole and makers(rig) == NextMakers(0, (first, second))


def lose_the_next_maker(rig: JobRig, worker: str) -> list[str]:
    """Let a worker be lost, and say that nothing of it has come; return the workers that are started for it."""
    done = rig.handle(events.WorkerLost(worker, "process", "it died"))
    settled = TrainerReport(0, "t0", 1, Receipts(), settled=(worker,))
    done += rig.handle(events.TrainerReported(settled))
    return [one.worker for one in of_kind(StartWorker, done)]


def test_a_worker_makes_way_if_nobody_can_make_what_comes_next_and_the_one_that_comes_is_late() -> None:
    rig, [(first, _), (second, _)] = files_job(True, True, True)
    (third,) = lose_the_next_maker(rig, first)
    rig.handle(events.TimePassed())
    assert not of_kind(DrainWorker, rig.handle(events.TimePassed(), after=COMING_S - 1)), "one is being started"
    done = rig.handle(events.TimePassed(), after=2.0)
    assert of_kind(DrainWorker, done) == [DrainWorker(second)]
    (fourth,) = (one.worker for one in of_kind(StartWorker, done))
    rig.place(fourth)
    rig.assign(fourth)
    (lease,) = rig.take(fourth)
    assert (lease.split.index, lease.spans) == (0, ((0, END),)) and third != fourth
    assert makers(rig) == NextMakers(0, (second, fourth)), "of a worker that drains all is taken"


def test_a_worker_that_is_idle_makes_what_comes_next_and_nobody_makes_way() -> None:
    rig, [(first, _), _] = files_job(True, True)
    (third,) = lose_the_next_maker(rig, first)
    rig.place(third)
    rig.handle(events.TimePassed())
    assert not of_kind(DrainWorker, rig.handle(events.TimePassed(), after=2 * BLOCKED_S))
    rig.assign(third)
    (lease,) = rig.take(third)
    assert lease.split.index == 0 and makers(rig) == NextMakers(0, (third,))


# --- at the trainer -------------------------------------------------------------------------------------------


def trainer(makers: NextMakers | None) -> TrainerState:
    """Return a trainer whose loop waits, with the streams of the workers a and b."""
    state = TrainerState(0, 1, "t0", ROOM, 0.0, Joins(1))
    state.handle(told.UpdateReceived(TrainerUpdate(1, new_workers=("a", "b"), next_makers=makers)), 0.0)
    state.handle(told.BatchRequested(), 0.0)
    return state


def come(state: TrainerState, worker: str, number: int, split: int, element: int, nbytes: int) -> int:
    """Let a row of an element of a split come; return how many more messages its worker may send."""
    begin = place_of(split, elements(element)[0])
    end = elements(element)[1]
    row_range = RowRange(begin, place_of(split, end), split, (1,), end.to_bytes(8, "little"))
    batch = told.ReceivedBatch(number, worker, 0, {(0, 0, split): [elements(element)]}, 1, nbytes, row_range=row_range)
    done = state.handle(told.BatchesReceived(worker, (batch,)), 0.0)
    return sum(one.credits for one in of_kind(told.Grant, done) if one.worker == worker)


def test_rows_of_whole_splits_before_their_turn_have_most_of_the_room_and_the_next_ones_what_they_need() -> None:
    state = trainer(NextMakers(0, ("a",)))
    early = round(EARLY_SHARE * ROOM)
    assert come(state, "b", 1, 1, 0, early - 10) == 1 and come(state, "b", 2, 1, 1, 10) == 0
    assert come(state, "a", 3, 0, 1, 10 * ROOM) > 0, "the loop waits for the row before it"
    assert come(trainer(None), "b", 1, 1, 0, 10 * ROOM) > 0


def test_a_maker_waits_for_room_once_its_split_has_had_its_turn_until_the_job_knows_who_makes_the_next_one() -> None:
    state = trainer(NextMakers(0, ("a",)))
    come(state, "b", 1, 1, 1, ROOM)
    row_range = RowRange(0, place_of(0, END), 0, (1,), elements(0)[1].to_bytes(8, "little"))
    last = told.ReceivedBatch(2, "a", 0, {(0, 0, 0): [(0, END)]}, 1, 1, row_range=row_range)
    done = state.handle(told.BatchesReceived("a", (last,)), 0.0)
    assert not of_kind(told.Grant, done)
    done = state.handle(told.UpdateReceived(TrainerUpdate(2, next_makers=NextMakers(1, ("b",)))), 0.0)
    assert {one.worker for one in of_kind(told.Grant, done)} == {"b"}
