"""A reader whose group is lost: what it goes on with, and what it counts as skipped."""

from __future__ import annotations

from typing import Any

import pytest

from pecan_ray.job.reader_position import GroupState, ReaderPosition, RestOfEpoch
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, ResumePoint
from pecan_ray.job.saved_state import SavedState
from pecan_ray.job.share_group import Place
from pecan_ray.options import Order
from pecan_ray.plan.splits import OUTPUT_BITS

WIDTH = 1 << OUTPUT_BITS
FIRST = 3
"""The epoch with which the group has begun."""


def state_of(epoch: int, *, made: int = 0, order: Order = "relaxed", since: int = 0) -> GroupState:
    point = ResumePoint(epoch, (BranchPoint(Cursor(0, 2)),), (KnownListing(),), made)
    return GroupState(SavedState(point, 7, 0, "python", (), order, FIRST).to_json(), since)


def spans(split: int, start: int, stop: int) -> dict[Any, Any]:
    return {(0, 0, split): [(start * WIDTH, stop * WIDTH)]}


def reader(epochs: int | None, since: Place | None = None) -> ReaderPosition:
    position = ReaderPosition(epochs)
    position.join(since or Place(FIRST))
    return position


def point_of(rest: RestOfEpoch | None) -> ResumePoint:
    assert rest is not None and rest.state is not None
    return SavedState.from_json(rest.state).point


def test_of_batches_in_one_sequence_their_number_is_told() -> None:
    position = reader(None)
    position.take(FIRST, {}, 0, state_of(FIRST, made=4, since=2))
    position.take(FIRST, {}, 3)
    assert point_of(position.rest()).used_batches == 4 + 2 + 4, "those that were skipped are behind it"
    assert position.epochs is None and position.skipped == 3


def test_what_was_skipped_since_the_state_comes_after_all() -> None:
    position = reader(1)
    position.take(FIRST, spans(0, 0, 1), 0, state_of(FIRST))
    position.take(FIRST, spans(0, 9, 10), 8, state_of(FIRST, since=3))  # two of the eight are behind the state
    position.take(FIRST, spans(1, 0, 1), 9)
    assert position.rest() is not None and position.skipped == 6
    strict = reader(1)
    strict.take(FIRST, spans(0, 0, 1), 0, state_of(FIRST, order="strict"))
    strict.take(FIRST, spans(0, 2, 3), 1)
    assert strict.rest() is None, "a sequence with a gap is no sequence"


@pytest.mark.parametrize(
    ("epoch", "had", "left", "skipped", "ends"),
    [(FIRST, 1, 1, 40, False), (FIRST + 1, 3, 0, 40, False), (FIRST + 2, 3, 0, 37, True)],
)
def test_a_reader_that_began_in_the_middle_of_an_epoch_ends_at_the_end_of_one(
    epoch: int, had: int, left: int, skipped: int, ends: bool
) -> None:
    position = reader(2, Place(FIRST, 40))
    for number in range(had):
        position.take(epoch, spans(0, number, number + 1), 0, None if number else state_of(epoch))
    rest = position.rest()
    assert rest is not None and (position.epochs, position.skipped, rest.state is None) == (left, skipped, ends)


def test_without_a_batch_a_reader_joins_again_and_without_a_state_it_cannot_go_on() -> None:
    position = reader(2)
    assert position.rest() == RestOfEpoch(None) and position.epochs == 2
    position.take(FIRST, spans(0, 0, 1), 0, state_of(FIRST))
    position.take(FIRST + 1, spans(0, 0, 1), 0)
    assert position.rest() is None
    ended = reader(2)
    ended.take(FIRST, spans(0, 0, 1), 0, state_of(FIRST + 1))
    assert ended.rest() == RestOfEpoch(None, 1) and ended.epochs == 1, "that was the last batch of its epoch"
