"""What a state is when it is saved: plain values, small, checked, and refused where it does not fit."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import StateError
from pecan_ray.job import events, state_numbers
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.listing_digest import ListingCheck
from pecan_ray.job.resume_point import BranchPoint, Cursor, KnownListing, Rest, ResumePoint, Step
from pecan_ray.job.saved_state import SavedState, checksum_of, compatible_state
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.state import JobState
from pecan_ray.job.state_numbers import StateNumbers
from pecan_ray.options import IterOptions
from pecan_ray.plan.splits import END, OUTPUT_BITS, Split
from pecan_ray.sampling.spans import Spans
from tests.long_form import examples

WIDTH = 1 << OUTPUT_BITS
PARTS = (("source TextLines", "ab"), ("operator parse", "cd"))


def elements(numbers: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple(Spans((number * WIDTH, (number + 1) * WIDTH) for number in numbers))


def a_state(*remaining_parts: Rest, cursor: Cursor | None = None) -> SavedState:
    point = ResumePoint(
        2, (BranchPoint(cursor or Cursor(), remaining_parts),), (KnownListing(70, True, ("aa", "bb")),), made=5
    )
    return SavedState(replace(point, op_order=(("parse", "crop"),), decoders=("parse",)), 12, 3, "python", PARTS)


def through_json(state: SavedState) -> SavedState:
    return SavedState.from_json(json.loads(json.dumps(state.to_json())))


intervals = st.lists(st.integers(0, 1 << 40), max_size=40).map(lambda some: tuple(Spans(_pairs(sorted(set(some))))))


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=False))


several_rests = st.lists(
    st.builds(Rest, st.integers(0, 1 << 20), st.integers(0, 3), intervals),
    max_size=20,
    unique_by=lambda rest: (rest.repetition, rest.index),
).map(lambda remaining_parts: sorted(remaining_parts, key=lambda rest: (rest.repetition, rest.index)))


@given(several_rests, intervals, st.integers(1, 9))
def test_what_was_saved_comes_back(remaining_parts: list[Rest], places: Any, ranks: int) -> None:
    """Also what each rank had last."""
    had = tuple((tuple(remaining_parts[rank::ranks]), ()) for rank in range(ranks))
    state = a_state(*remaining_parts, cursor=Cursor(1, 7, places, ((0, 4), (3, 70))))
    assert through_json(state) == state
    branches, listings = state.point.branches * 2, state.point.listings * 2
    steps = (Step(2, had), Step(1, had[::-1]))
    point = replace(state.point, branches=branches, listings=listings, steps=steps, passes=3)
    assert through_json(replace(state, point=point)) == replace(state, point=point)


@pytest.mark.parametrize("files", [100_000, 1_000_000])
def test_a_thousand_of_many_files_that_are_half_read_leave_a_state_of_less_than_64_kib(files: int) -> None:
    """Of 32 workers with 32 files open each; one element of each, in another thread, is not ready."""
    random = Random(0)
    places = tuple((start, start + 5) for start in range(0, files, files // 1024))
    begun = [random.randrange(10, 1000) for _ in range(1024)]
    remaining_parts = [
        Rest(index, 0, (*elements([count // 2]), (count * WIDTH, END)))
        for index, count in zip(sorted(random.sample(range(files), 1024)), begun, strict=True)
    ]
    state = a_state(*remaining_parts, cursor=Cursor(0, files, places, tuple((n, n * 1250) for n in range(60))))
    assert len(json.dumps(state.to_json())) < 64 << 10


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda state: {**state, "epoch": 3}, "damaged"),
        (lambda state: {**state, "more": 1}, "damaged"),
        (lambda state: {name: state[name] for name in state if name != "sources"}, "damaged"),
        (lambda state: {**state, "pecan_ray_state": 3}, "format 3"),
        (lambda state: {"model": 1}, "no state of pecan_ray"),
        (lambda state: [state], "no state of pecan_ray"),
        (lambda state: None, "no state of pecan_ray"),
        (lambda state: {"pecan_ray_state": 1, 1: 2}, r"cannot be read|damaged"),
        (lambda state: {"pecan_ray_state": 1, "x": object()}, r"cannot be read|damaged"),
        (lambda state: {"pecan_ray_state": 1, "sources": 7}, r"cannot be read|damaged"),
    ],
)
def test_what_is_no_whole_state_is_refused(damage: Any, said: str) -> None:
    with pytest.raises(StateError, match=said):
        SavedState.from_json(damage(a_state().to_json()))


# --- damage with a right checksum -----------------------------------------------------------------------------


def mended(fields: dict[str, Any]) -> dict[str, Any]:
    """A state with the checksum of what it holds now."""
    fields = {name: value for name, value in fields.items() if name != "checksum"}
    return {**fields, "checksum": checksum_of(fields)}


def a_rich_state() -> dict[str, Any]:
    """A state in which something stands everywhere."""
    many = tuple(Rest(index, 0, elements([3, 7])) for index in range(40))
    cursor = Cursor(1, 60, ((2, 5), (9, 30)), ((0, 4), (3, 70)))
    step = Step(2, (((element_of(1),),), ((element_of(2),),)))
    state = a_state(*many, cursor=cursor)
    point = replace(state.point, steps=(step, step), bad=(7, 9, 1 << 31), passes=2)
    return replace(state, point=point).to_json()


def element_of(split: int) -> Rest:
    return Rest(split, 0, elements([4]))


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
    state = json.loads(json.dumps(a_rich_state()))
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
    assert all(type(number) is int for number in (found.batches, found.seed, found.point.epoch, found.point.made))
    job = JobState(JobSpec("job", LedgerShape(epochs=None), start=found.point), 0.0)
    job.handle(events.TrainerCame(0, "t0", "node"), 0.0)
    job.handle(events.SplitsListed(0, tuple(splits(70))), 0.0)
    job.handle(events.ListingEnded(0), 0.0)
    assert job.error is None or isinstance(job.error, StateError)


@pytest.mark.parametrize("number", [b"\0", b"\xff\xff\x01", b"\x80"])
def test_numbers_without_end_are_refused_before_they_take_memory(number: bytes) -> None:
    bomb = base64.b85encode(zlib.compress(number * ((1 << 24) // len(number)), 9)).decode()
    state = a_rich_state()
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
    state, some = a_rich_state(), StateNumbers().packed([0] * 1000)
    monkeypatch.setattr(state_numbers, "MOST_NUMBERS", 3000)
    with pytest.raises(StateError, match="more than 3,000 numbers"):
        SavedState.from_json(mended({**state, "sources": [{**state["sources"][0], "grown": some}] * 4}))
    too_large = a_state(*(Rest(index, 0, elements([3, 7])) for index in range(1000)))
    with pytest.raises(StateError, match=r"cannot be saved: it has more than 3,000 numbers\. Use smaller"):
        too_large.to_json()


def test_a_state_of_another_pipeline_is_refused_by_what_differs() -> None:
    state = a_state()

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
        "one worker is in it": replace(middle, branches=(BranchPoint(),), made=4),
    }
    parts = (PARTS[0], ("operator another", "ee"))

    def fitted(point: ResumePoint, **changes: Any) -> SavedState:
        state = replace(a_state(), point=point).to_json()
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


# --- the data is still the same -------------------------------------------------------------------------------


def splits(count: int, **changed: str) -> list[Split]:
    """A listing, in which some splits have another version."""
    return [Split(n, path=f"part-{n}", version=changed.get(f"v{n}", "1")) for n in range(count)]


def check(before: list[Split], now: list[Split], *, complete: bool = True, page: int = 7) -> list[str]:
    """What a listing is told to have changed in, when a state was taken of another one."""
    first = ListingCheck([KnownListing()])
    first.add(0, before)
    if complete:
        first.end(0)
    second = ListingCheck(first.known())
    said = [second.add(0, now[at : at + page], now.__getitem__) for at in range(0, len(now), page)]
    return [one for one in (*said, second.end(0)) if one]


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200, 5000])
@pytest.mark.parametrize("page", [1, 64, 100_000])
def test_the_same_listing_has_not_changed_however_it_is_paged(count: int, page: int) -> None:
    assert check(splits(count), splits(count), page=page) == []


@pytest.mark.parametrize("place", [0, 64, 130, 199])
def test_a_file_of_another_version_is_told_by_where_it_is(place: int) -> None:
    (said,) = check(splits(200), splits(200, **{f"v{place}": "2"}))
    places, _, names = said.removeprefix("other files, or versions of them, are among splits ").partition(": ")
    low, high = map(int, places.split(" to "))
    assert low <= place <= high < low + 64
    assert names == f"part-{place}"


def folder(count: int, *changed: int) -> list[Split]:
    """Splits of 64 files each, of which some have another version."""
    return [
        Split(
            number,
            path=f"image-{first}",
            files=tuple(f"image-{n}" for n in range(first, first + 64)),
            versions=tuple("2" if n in changed else "1" for n in range(first, first + 64)),
        )
        for number, first in enumerate(range(0, count, 64))
    ]


@given(st.sets(st.integers(0, 64 * 157 - 1), min_size=1, max_size=3))
@examples(10)
def test_of_ten_thousand_images_the_few_that_were_replaced_are_named(changed: set[int]) -> None:
    (said,) = check(folder(10_000), folder(10_000, *changed), page=50)
    names = said.partition(": ")[2].split(", ")
    assert {f"image-{n}" for n in changed} <= set(names)
    assert len(names) <= len(changed) + 1, "another one by chance, once in thousands of times"


def test_more_and_fewer_splits_are_told() -> None:
    assert check(splits(100), splits(90)) == ["there were at least 100 splits, and now there are 90"]
    (said,) = check(splits(100), splits(101), page=100)
    assert said == "there were 100 splits, and now there are more, from part-100"
    assert check(splits(100), splits(120), complete=False) == [], "the listing had not ended"
