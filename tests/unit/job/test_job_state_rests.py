"""What is missing of many splits in a state: small, read again also from states of versions before, and checked."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from pecan_ray.errors import StateError
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.job.saved_state import SavedState, checksum_of
from pecan_ray.job.state_numbers import StateNumbers
from pecan_ray.job.state_remaining_parts import COLUMNS, pack_remaining_parts, unpack_remaining_parts
from pecan_ray.plan.splits import END, OUTPUT_BITS
from pecan_ray.sampling.spans import Spans
from tests.long_form import some_later

WIDTH = 1 << OUTPUT_BITS
FILES = 400_000
PARTS = (("source TextLines", "ab"), ("operator parse", "cd"))
CURSOR = Cursor(1, 60, ((2, 5), (9, 30)), ((0, 4), (3, 70)))
FEW = (Rest(4, 0, ((5 * WIDTH, END),)), Rest(2, 1, ((7, 9), (3 * WIDTH, 4 * WIDTH))))
MANY = tuple(Rest(3 * n, n // 20, ((n % 7 * WIDTH, (n % 7 + 1) * WIDTH), (9 * WIDTH, 10 * WIDTH))) for n in range(30))


def a_state(*branches: BranchPoint, steps: tuple[Step, ...] = ()) -> SavedState:
    listings = (KnownListing(70, True, ("aa", "bb")),) * len(branches)
    point = ResumePoint(2, branches, listings, 5, steps, 2, (7, 9, 1 << 31), (("parse", "crop"),), ("parse",))
    return SavedState(point, 12, 3, "python", PARTS)


def held_in_a_buffer(buffer: int, split_elements: int) -> tuple[Rest, ...]:
    """What a shuffle buffer holds after three times as many draws, of splits that come in a random order."""
    random = Random(0)
    held, order = list(range(buffer)), list(range(FILES))
    random.shuffle(order)
    for element in range(buffer, 4 * buffer):
        held[random.randrange(buffer)] = element
    by_split = defaultdict[int, list[int]](list)
    for element in sorted(held):
        by_split[order[element // split_elements]].append(element % split_elements)
    spans = {split: Spans((one * WIDTH, (one + 1) * WIDTH) for one in held) for split, held in by_split.items()}
    return tuple(Rest(split, 0, tuple(spans[split])) for split in sorted(spans))


@pytest.mark.parametrize("split_elements", some_later([1, 2, 10, 100, 1000], 10, 100))
@pytest.mark.parametrize("buffer", some_later([1000, 20_000], 20_000))
def test_a_buffers_elements_cost_at_most_a_byte_each_in_however_many_files_they_lie(
    buffer: int, split_elements: int
) -> None:
    remaining_parts = held_in_a_buffer(buffer, split_elements)
    state = a_state(BranchPoint(Cursor(0, FILES, (), ((0, FILES),)), remaining_parts))
    written = json.dumps(state.to_json())
    assert len(written) < (64 << 10) + buffer
    assert len(json.dumps(pack_remaining_parts(remaining_parts, StateNumbers()))) < 1.6 * buffer + 1500
    assert SavedState.from_json(json.loads(written)) == state


def test_a_state_that_a_version_before_has_saved_is_read() -> None:
    """Written by the version with format 1, of the values that stand above."""
    found = SavedState.from_json(json.loads(OF_FORMAT_1))
    step = Step(2, (((FEW[0],), (FEW[1],)), ((), ())))
    assert found == a_state(BranchPoint(CURSOR, FEW), BranchPoint(CURSOR, MANY), steps=(step,))
    assert SavedState.from_json(found.to_json()) == found and found.to_json()["pecan_ray_state"] == 2


def test_positions_within_elements_and_open_ends_come_back() -> None:
    remaining_parts = (
        Rest(0, 0, ((0, 1), (3, END))),
        Rest(7, 0, ()),
        Rest(7, 2, ((WIDTH, END),)),
        Rest(0, 3, ((5, WIDTH),)),
    )
    assert (
        tuple(unpack_remaining_parts(pack_remaining_parts(remaining_parts, StateNumbers()), StateNumbers()))
        == remaining_parts
    )
    assert tuple(unpack_remaining_parts(pack_remaining_parts((), StateNumbers()), StateNumbers())) == ()


@pytest.mark.parametrize(
    ("column", "numbers"),
    [
        ("splits", [3, 0]),  # the same split twice
        ("counts", [1, 3]),
        ("counts", [1]),
        ("counts", [1, 0]),
        ("fine", [0, 2]),
        ("lengths", [1, 0, 1]),
        ("lengths", [1, 1]),
        ("gaps", [1, 1, 0]),  # touches the one before
        ("gaps", [1, 1 << 62, 1]),
        ("splits", [3, 1 << 54]),
        ("splits", None),
        ("gaps", "~~~"),
    ],
)
def test_columns_that_tell_of_no_intervals_are_refused(column: str, numbers: Any) -> None:
    remaining_parts = (Rest(3, 0, ((WIDTH, 2 * WIDTH),)), Rest(9, 0, ((0, WIDTH), (3 * WIDTH, 4 * WIDTH))))
    state = a_state(BranchPoint(CURSOR, remaining_parts)).to_json()
    assert set(state["sources"][0]["rests"]) == set(COLUMNS)
    state["sources"][0]["rests"][column] = numbers
    del state["checksum"]
    with pytest.raises(StateError, match="cannot be read"):
        SavedState.from_json({**state, "checksum": checksum_of(state)})


OF_FORMAT_1 = """
{"pecan_ray_state": 1, "epoch": 2, "batches": 12, "made": 5, "seed": 3, "engine": "python", "order": "relaxed",
"pipeline": [["source TextLines", "ab"], ["operator parse", "cd"]],
"orders": [["parse", "crop"]], "decoders": ["parse"],
"sources": [{"repetition": 1, "begun": 60,
"missing": [2, 5, 9, 30], "grown": [0, 4, 3, 70],
"rests": [0, 4, 4294967296, 2, 5, 1073741819, 1, 2, 1, 4, 7, 2, 12884901879, 4294967296],
"splits": 70, "complete": true, "digests": ["aa", "bb"], "marks": ""}, {"repetition": 1, "begun": 60,
"missing": [2, 5, 9, 30], "grown": [0, 4, 3, 70],
"rests":
"c-l?O(FOux6h+~^=AZd1qC^Z45fKp)5fKp)5xq{2UYv`w*VVfEr0>6JD~71V!vNLzhKfe<g$|A5TUs=\
U?<i;%Uun?X%-+m}nM*TQX0FZLn7K7`XXf6_gPBJ&Pib;alS`Uh)8v*W_cVE=$<xf2nQt>cY5oAT5=5u",
"splits": 70, "complete": true, "digests": ["aa", "bb"], "marks": ""}],
"passes": 2, "bad": [7, 2, 2147483639], "steps": [{"epoch": 2, "ranks": 2,
"had": [6, 0, 4, 4294967296, 2, 5, 1073741819, 8, 1, 2, 1, 4, 7, 2, 12884901879, 4294967296, 0, 0]}],
"checksum": "3b957c32"}
"""
