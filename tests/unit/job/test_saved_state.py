"""What a state is when it is saved: plain values, small, checked, and refused where it does not fit."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from collections import defaultdict
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import StateError
from pecan_ray.job import events, state_numbers
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.job.saved_state import SavedState, checksum_of, compatible_state, no_state_of
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState
from pecan_ray.job.state_numbers import StateNumbers
from pecan_ray.job.state_remaining_parts import pack_remaining_parts, unpack_remaining_parts
from pecan_ray.options import IterOptions
from pecan_ray.plan.splits import END, OUTPUT_BITS, Split
from pecan_ray.sampling.spans import Spans
from tests.long_form import examples, some_later

WIDTH = 1 << OUTPUT_BITS
PARTS = (("source TextLines", "ab"), ("operator parse", "cd"))
FILES = 400_000
CURSOR = Cursor(1, 60, ((2, 5), (9, 30)), ((0, 4), (3, 70)))
FEW = (Rest(4, 0, ((5 * WIDTH, END),)), Rest(2, 1, ((7, 9), (3 * WIDTH, 4 * WIDTH))))
MANY = tuple(Rest(3 * n, n // 20, ((n % 7 * WIDTH, (n % 7 + 1) * WIDTH), (9 * WIDTH, 10 * WIDTH))) for n in range(30))


def elements(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple(Spans((number * WIDTH, (number + 1) * WIDTH) for number in numbers))


def a_state(*branches: BranchPoint, steps: tuple[Step, ...] = ()) -> SavedState:
    """A state in which something stands everywhere."""
    listings = (KnownListing(70, True, ("aa", "bb")),) * len(branches)
    point = ResumePoint(2, branches, listings, 5, steps, 2, (7, 9, 1 << 31), (("parse", "crop"),), ("parse",))
    return SavedState(point, 12, 3, "python", PARTS)


RICH = a_state(
    BranchPoint(CURSOR, tuple(Rest(index, 0, elements([3, 7])) for index in range(40))),
    steps=(Step(2, (((Rest(1, 0, elements([4])),),), ((Rest(2, 0, elements([4])),),))),) * 2,
).to_json()


def through_json(state: SavedState) -> SavedState:
    return SavedState.from_json(json.loads(json.dumps(state.to_json())))


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


# --- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda state: {**state, "epoch": 3}, "damaged"),
        (lambda state: {**state, "pecan_ray_state": 3}, "format 3"),
        (lambda state: {"model": 1}, "no state of pecan_ray"),
        (lambda state: None, "no state of pecan_ray"),
        (lambda state: {"pecan_ray_state": 1, 1: 2}, r"cannot be read|damaged"),
        (lambda state: {"pecan_ray_state": 1, "x": object()}, r"cannot be read|damaged"),
        (lambda state: {"pecan_ray_state": 1, "sources": 7}, r"cannot be read|damaged"),
        (lambda state: mended({**state, "sources": [{**state["sources"][0], "marks": "none"}]}), "cannot be read"),
    ],
)
def test_what_is_no_whole_state_is_refused(damage: Any, said: str) -> None:
    with pytest.raises(StateError, match=said):
        SavedState.from_json(damage(RICH))


@pytest.mark.parametrize(
    ("spans", "said"), [(((0, WIDTH), (WIDTH, 2 * WIDTH)), "overlap"), (((0, END + WIDTH),), "outside a split")]
)
def test_intervals_that_touch_or_leave_their_split_are_refused(spans: Any, said: str) -> None:
    packed = pack_remaining_parts([Rest(0, 0, spans)], StateNumbers())
    with pytest.raises(ValueError, match=said):
        list(unpack_remaining_parts(packed, StateNumbers()))


@pytest.mark.parametrize("longer", [("gaps",), ("lengths",), ("gaps", "lengths")])
def test_intervals_of_no_split_are_refused(longer: tuple[str, ...]) -> None:
    packed, more = (
        pack_remaining_parts([Rest(0, 0, tuple((at * WIDTH, at * WIDTH + 1) for at in range(0, count, 2)))], numbers)
        for count, numbers in ((2, StateNumbers()), (4, StateNumbers()))
    )
    damaged = {**packed, **{column: more[column] for column in longer}}
    with pytest.raises(ValueError, match="belong to no split"):
        list(unpack_remaining_parts(damaged, StateNumbers()))


def mended(fields: dict[str, Any]) -> dict[str, Any]:
    """A state with the checksum of what it holds now."""
    fields = {name: value for name, value in fields.items() if name != "checksum"}
    return {**fields, "checksum": checksum_of(fields)}


irregular = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers(-3, 70)
    | st.integers(-(1 << 70), 1 << 70)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=9,
)
packed = st.lists(st.integers(0, 300) | st.integers(0, 1 << 62), max_size=20).map(
    lambda some: StateNumbers().packed(some * 30)
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A state of which one value or another is something else, with a right checksum."""
    state = json.loads(json.dumps(RICH))
    for _ in range(draw(st.integers(1, 3))):
        at: Any = state
        while True:
            key = draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not (isinstance(at[key], (dict, list)) and at[key]) or draw(st.booleans()):
                break
            at = at[key]
        if draw(st.integers(0, 9)) == 0:
            del at[key]
        else:
            at[key] = draw(irregular | packed)
    return mended(state)


@examples(600)
@given(damaged())
def test_a_damaged_state_with_a_right_checksum_is_refused_or_is_another_whole_one(state: dict[str, Any]) -> None:
    try:
        found = SavedState.from_json(state)
    except StateError:
        return
    assert through_json(found) == found
    assert all(
        type(number) is int for number in (found.batches, found.seed, found.point.epoch, found.point.used_batches)
    )
    job = JobState(JobSpec("job", LedgerShape(epochs=None), start=found.point), 0.0)
    job.handle(events.TrainerRegistered(0, "t0", "node"), 0.0)
    job.handle(events.SplitPageReceived(0, tuple(Split(index) for index in range(70))), 0.0)
    job.handle(events.ListingEnded(0), 0.0)
    assert job.error is None or isinstance(job.error, StateError)


@pytest.mark.parametrize("number", [b"\0", b"\xff\xff\x01", b"\x80"])
def test_numbers_without_end_are_refused_before_they_take_memory(number: bytes) -> None:
    bomb = base64.b85encode(zlib.compress(number * ((1 << 24) // len(number)), 9)).decode()
    state = RICH
    for column in ("rests", "missing"):
        damaged_one = mended({**state, "sources": [{**state["sources"][0], column: bomb}] * 50})
        tracemalloc.start()
        with pytest.raises(StateError, match=r"cut off, or far too many|4,194,304 numbers|number is too long"):
            SavedState.from_json(damaged_one)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 128 << 20


def test_the_numbers_of_all_sources_are_bounded_together_and_too_many_are_not_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, some = RICH, StateNumbers().packed([0] * 1000)
    monkeypatch.setattr(state_numbers, "MOST_NUMBERS", 3000)
    with pytest.raises(StateError, match="more than 3,000 numbers"):
        SavedState.from_json(mended({**state, "sources": [{**state["sources"][0], "grown": some}] * 4}))
    too_large = a_state(BranchPoint(CURSOR, tuple(Rest(index, 0, elements([3, 7])) for index in range(1000))))
    with pytest.raises(StateError, match=r"cannot be saved: it has more than 3,000 numbers\. Use smaller"):
        too_large.to_json()


def test_a_state_of_another_pipeline_is_refused_by_what_differs() -> None:
    state = a_state(BranchPoint())

    def fitted(order: Any = None, **changes: Any) -> SavedState:
        mine = dict[str, Any](engine="python", seed=None, parts=PARTS) | changes
        return compatible_state(state.to_json(), IterOptions(epochs=5, order=order), **mine)

    assert fitted() == fitted(seed=3) == state
    changed: list[tuple[dict[str, Any], str]] = [
        ({"engine": "another"}, "engine"),
        ({"seed": 4}, r"seed \(3\)"),
        ({"order": "strict"}, r"order \(relaxed\) where this one has order \(strict\)"),
        ({"parts": (PARTS[0], ("operator parse", "ee"))}, r"operator parse \(cd\).*operator parse \(ee\)"),
        ({"parts": PARTS[:1]}, r"operator parse \(cd\) where this one has nothing"),
    ]
    for changes, said in changed:
        with pytest.raises(StateError, match=said):
            fitted(**changes)


def test_another_pipeline_over_the_same_source_begins_the_epoch_behind_the_state() -> None:
    middle = ResumePoint(2, (BranchPoint(Cursor(0, 40)),), (KnownListing(70, True, ("aa", "bb")),))
    used, ahead = BranchPoint(Cursor(0, 70)), BranchPoint(Cursor(0, 9, ((3, 9),)), (Rest(1, 0, ((WIDTH, END),)),))
    at_an_end = {
        "the run has finished": (replace(middle, branches=(BranchPoint(),)), 2),
        "all of it is used": (replace(middle, branches=(used,)), 3),
    }
    not_at_one = {
        "some splits wait": middle,
        "something is left": replace(middle, branches=(replace(used, remaining_parts=ahead.remaining_parts),)),
        "a pass is left": replace(middle, branches=(used,), passes=2),
        "passes have no end": replace(middle, branches=(used,), passes=0),
        "it has been begun": replace(middle, branches=(ahead,)),
        "one worker is in it": replace(middle, branches=(BranchPoint(),), used_batches=4),
    }
    parts = (PARTS[0], ("operator another", "ee"))

    def fitted(point: ResumePoint, **changes: Any) -> SavedState:
        state = replace(a_state(BranchPoint()), point=point).to_json()
        other = dict[str, Any](engine="tensorflow", seed=3, parts=parts) | changes
        return compatible_state(state, IterOptions(epochs=5), **other)

    for said, (point, epoch) in at_an_end.items():
        assert fitted(point).point == ResumePoint(epoch, (BranchPoint(),), point.listings), said
        assert fitted(point, engine="python", parts=PARTS).point == point, said
        for changes in ({"seed": 4}, {"parts": (("source TextLines", "ac"), *parts[1:])}):
            with pytest.raises(StateError, match=r"of another pipeline: it has \w+ [^.]*\.$"):
                fitted(point, **changes)
    for said, point in not_at_one.items():
        with pytest.raises(StateError, match="taken in the middle of epoch 2"):
            raise AssertionError(said, fitted(point))


def test_a_coordinated_job_has_a_state_unless_data_may_be_lost() -> None:
    options = IterOptions(rank=1, world_size=2, coordinated=True)
    assert no_state_of(options) == ""
    assert "lets data be lost" in no_state_of(replace(options, visitation="at_most_once"))


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
