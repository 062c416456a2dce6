"""States of a job: what they are taken of, and when those of several ranks cannot be merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray import merge_states
from pecan_ray.errors import StateError
from pecan_ray.job import events
from pecan_ray.job.delivery_log import MOST_STEPS, MOST_UNUSED, Delivery, DeliveryLog
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import EndData, Receipts, ReceivedBatches
from pecan_ray.job.resume import resume_point
from pecan_ray.job.resume_point import WHOLE, BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.job.saved_state import SavedState
from pecan_ray.plan.splits import END, Lease
from pecan_ray.sampling.spans import merged
from tests.unit.job.job_rig import JobRig, elements


def test_ranks_that_ask_after_the_same_batches_are_told_the_same_words() -> None:
    """Meanwhile elements were found to yield nothing: each rank may go on from the state that it has saved itself."""
    rig = JobRig(LedgerShape(world_size=2))
    (worker,) = rig.begin(splits=2)
    rig.assign(worker)
    (lease,) = rig.take(worker)
    for rank in range(2):
        spans = {lease.key: (elements(rank),)}
        ack = ReceivedBatches(worker, 0, spans, 1, 1, 10)
        rig.report(rank, received=Receipts((ack,), kept=1, delivery_records=(Delivery(1, 0, spans),)))
    told = rig.job.resume_point(1)
    assert told is not None
    rig.response(worker, EndData(0, {lease.key: (elements(2),)}))
    assert rig.job.resume_point(1) == told
    assert resume_point(rig.job.ledger, rig.job.log, 1) != replace(told, listings=()), "more is known by now"
    assert rig.job.resume_point(2) is None
    rig.job.log.used([2, 2])
    assert rig.job.resume_point(1) == told, "a loader may have fetched the last one ahead"
    rig.job.log.used([2 + max(MOST_STEPS, MOST_UNUSED)] * 2)
    assert rig.job.resume_point(1) is None, "nobody asks for it any more, so it is not kept"


# Orders of operators.
FIRST, SECOND, USERS = (("crop", "parse"),), (("parse", "flip", "crop"),), (("parse", "crop"),)


def deliver(rig: JobRig, worker: str, kept: int) -> Lease:
    """Let the worker take a split, and the trainer receive its only element as a batch."""
    (lease,) = rig.take(worker)
    spans = {lease.key: (elements(0),)}
    ack = ReceivedBatches(worker, lease.epoch, spans, 1, 1, 10)
    rig.report(received=Receipts((ack,), kept=kept, delivery_records=(Delivery(kept, lease.epoch, spans),)))
    return lease


def order_at(rig: JobRig, batches: int) -> Any:
    point = rig.job.resume_point(batches)
    assert point is not None
    return point.epoch, point.op_order


def test_a_state_tells_the_order_of_operators_of_the_epoch_in_which_it_stands() -> None:
    rig = JobRig(LedgerShape(epochs=3), ordered=False, op_order=USERS)
    (worker,) = rig.begin(splits=2)
    rig.handle(events.OrderKnown(changed=True, order=FIRST))
    assert order_at(rig, 0) == (0, FIRST)
    rig.assign(worker)
    first = deliver(rig, worker, kept=1)
    rig.handle(events.PlanChanged("the first epoch shows it", SECOND))
    assert order_at(rig, 1) == (0, FIRST), "the new order is for epochs that have not begun"
    second = deliver(rig, worker, kept=2)
    rig.end(worker, lengths=((first.key, 1), (second.key, 1)))
    assert rig.job.ledger.epoch == 1
    assert order_at(rig, 2) == (1, SECOND), "of an epoch of which nothing was given out: it may have the newest one"
    assert order_at(rig, 1) == (0, FIRST), "a loop that is still in the epoch before"
    rig.assign(worker)
    rig.handle(events.PlanChanged("and back", FIRST))
    assert order_at(rig, 2) == (1, SECOND)


@pytest.mark.parametrize(("ranks", "kept"), [(1, 0), (2, MOST_STEPS), (128, 4), (1000, 0)])
def test_of_many_ranks_less_is_kept_of_each(ranks: int, kept: int) -> None:
    log = DeliveryLog(ranks)
    for rank in range(ranks):
        log.received(rank, 20, [Delivery(one, 0, {}) for one in range(20)])
    assert len(list(log.before(20))) == kept
    log.used([20] * ranks)
    for rank in range(ranks):
        log.received(rank, 20, ())
    assert len(list(log.before(log.first_known))) == kept, "the first state that may be asked for has all of its steps"


# --- rows in order --------------------------------------------------------------------------------------------


CELLS = [elements(0), elements(1), (elements(2)[0], END)]
"""Of a split: two elements, and what may be behind them."""
SPLITS, PASSES = 3, 2
PLACES = [(pass_index, split, cell) for pass_index in range(PASSES) for split in range(SPLITS) for cell in range(3)]


@given(st.data())
def test_a_state_is_a_beginning_if_nothing_is_used_behind_what_is_missing(data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(PLACES)))
    begun = data.draw(st.integers(-(-first // 3), len(PLACES) // 3))
    holes = data.draw(st.sets(st.sampled_from(range(len(PLACES))), max_size=2))
    missing = {n for n in range(3 * begun) if (n >= first) != (n in holes)}
    cursor_pass, taken = divmod(begun, SPLITS) if begun % SPLITS or not begun else (begun // SPLITS - 1, SPLITS)
    of_split: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pass_index, split, cell in (PLACES[n] for n in sorted(missing)):
        of_split.setdefault((pass_index, split), []).append(CELLS[cell])
    rests = {key: merged(spans) for key, spans in of_split.items()}
    whole = [key for key, spans in rests.items() if spans == WHOLE and key[0] == cursor_pass]
    told = data.draw(st.sets(st.sampled_from(whole))) if whole else set()
    cursor = Cursor(cursor_pass, taken, tuple((split, split + 1) for _, split in sorted(told)))
    parts = tuple(Rest(split, of, spans) for (of, split), spans in sorted(rests.items()) if (of, split) not in told)
    point = ResumePoint(0, (BranchPoint(cursor, parts),), (KnownListing(SPLITS, True),), passes=PASSES)
    assert point.is_beginning == (sorted(missing) == list(range(min(missing, default=0), 3 * begun)) or not missing)


# --- states that cannot be merged -----------------------------------------------------------------------------


def step(*numbers: int, epoch: int = 0) -> Step:
    """What each rank had: one element of split 0."""
    return Step(epoch, tuple(((Rest(0, 0, (elements(number),)),),) for number in numbers))


def state_after(
    batches: int, *steps: Step, epoch: int = 0, remaining_parts: tuple[Rest, ...] = (), **other: Any
) -> SavedState:
    point = ResumePoint(
        epoch, (BranchPoint(Cursor(0, 1), remaining_parts),), (KnownListing(1, True, ("aa",)),), steps=steps
    )
    return replace(SavedState(point, batches, 3, "python", (("source Arrays", "ab"),)), **other)


MANY = state_after(9, *(step(2 * n, 2 * n + 1) for n in reversed(range(1, 9))))


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "there are no states"),
        ([{"model": 1}], "no state of pecan_ray"),
        ([MANY, state_after(0)], "have used 0 to 9 batches, and a state of this job knows the last 8"),
        ([state_after(8, seed=4), MANY], "the state of rank 1 is of another pipeline or seed"),
        ([state_after(8), state_after(8), MANY], "3 states of 2 ranks"),
        ([state_after(0), state_after(2, step(2, 3, epoch=1), step(0, 1), epoch=1)], "begun epoch 1"),
        ([state_after(8, order="strict"), replace(MANY, order="strict")], "one sequence"),
        ([state_after(2, remaining_parts=(Rest(0, 0, (elements(9),)),)), state_after(2)], "of another run"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_what_is_in_the_way(states: list[Any], said: str) -> None:
    with pytest.raises(StateError, match=said):
        merge_states([one.to_json() if isinstance(one, SavedState) else one for one in states])
