"""States of ranks that have used different numbers of batches become one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pecan_ray import merge_states
from pecan_ray.errors import StateError
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.job.saved_state import SavedState
from pecan_ray.plan.splits import OUTPUT_BITS

WIDTH = 1 << OUTPUT_BITS


def element(number: int, split: int = 0) -> Rest:
    return Rest(split, 0, ((number * WIDTH, (number + 1) * WIDTH),))


def step(*numbers: int, epoch: int = 0) -> Step:
    """What each rank had: one element of split 0."""
    return Step(epoch, tuple(((element(number),),) for number in numbers))


def state_of(
    batches: int, *steps: Step, epoch: int = 0, remaining_parts: tuple[Rest, ...] = (), **other: Any
) -> SavedState:
    point = ResumePoint(
        epoch, (BranchPoint(Cursor(0, 1), remaining_parts),), (KnownListing(1, True, ("aa",)),), steps=steps
    )
    return replace(SavedState(point, batches, 3, "python", (("source Arrays", "ab"),)), **other)


def merged(*states: SavedState) -> SavedState:
    return SavedState.from_json(merge_states([state.to_json() for state in states]))


def test_a_rank_behind_at_the_end_of_an_epoch_ends_it() -> None:
    first, second = state_of(1, step(0, 1)), state_of(2, step(2, 3), step(0, 1), epoch=1)
    first, second = in_order(first, "a", "b"), in_order(second, "b", "a")
    found = merged(first, second).point
    assert found.op_order == (("a", "b"),), "that of the epoch with which it goes on"
    assert found.epoch == 0 and found.branches[0].remaining_parts == (element(2),)
    assert found.branches[0].cursor.taken > 1, "and nothing more of it is begun"


def in_order(state: SavedState, *names: str) -> SavedState:
    """The state of a run whose operators ran in this order."""
    return replace(state, point=replace(state.point, op_order=(names,)))


MANY = state_of(9, *(step(2 * n, 2 * n + 1) for n in reversed(range(1, 9))))


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "there are no states"),
        ([{"model": 1}], "no state of pecan_ray"),
        ([MANY, state_of(0)], "have used 0 to 9 batches, and a state of this job knows the last 8"),
        ([state_of(8, seed=4), MANY], "the state of rank 1 is of another pipeline or seed"),
        ([state_of(8), state_of(8), MANY], "3 states of 2 ranks"),
        ([state_of(0), state_of(2, step(2, 3, epoch=1), step(0, 1), epoch=1)], "begun epoch 1"),
        ([state_of(8, order="strict"), replace(MANY, order="strict")], "one sequence"),
        ([state_of(2, remaining_parts=(element(9),)), state_of(2)], "of another run"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_what_is_in_the_way(states: list[Any], said: str) -> None:
    with pytest.raises(StateError, match=said):
        merge_states([one.to_json() if isinstance(one, SavedState) else one for one in states])
