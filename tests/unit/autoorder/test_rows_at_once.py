"""Maps that run on many elements at a time: which may, and that elements become what they become one by one."""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
import pecan_ray.autoorder.in_rows as in_rows_rule
from pecan_ray.autoorder import accepted
from pecan_ray.autoorder.accepted import Ordered, Ordering
from pecan_ray.autoorder.kept_order import KeptOrder, pinned_order
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import apply_rewrites
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.plain_functions import why_not_plain
from pecan_ray.engines.python.row_maps import RowMaps, stacked
from pecan_ray.engines.python.rows import NotInRowsError
from pecan_ray.errors import OpError, PlanError
from pecan_ray.options import OnError
from pecan_ray.plan.operators import BatchInRows, Map, Plan
from pecan_ray.plan.splits import Element, Lease, Split
from pecan_ray.reorder import Mode
from tests.unit.engines.engine_leases import ListedLeases, column, delivered, missing, run_engine, whole_leases

ROWS = 200
Function = Callable[[Element], Element]


def elements(count: int = ROWS, width: int = 7) -> list[Element]:
    rng = np.random.default_rng(3)
    return [
        {
            "x": rng.normal(size=width).astype(np.float32),
            "s": np.float32(rng.normal()),
            "n": np.int64(place),
            "text": f"number {place}",
        }
        for place in range(count)
    ]


def in_rows(fn: Function, given: list[Element], *, exactly: bool = False) -> list[Element]:
    columns = stacked(given)
    assert columns is not None
    maps = RowMaps([Map(name="fn", fn=fn)], EngineOptions(), exactly=exactly)
    made = maps.run(columns, len(given), Item(None, [], Lease(0, Split(0)), 0))
    return [{name: column[row] for name, column in made.items()} for row in range(len(given))]


def assert_same(some: list[Element], others: list[Element]) -> None:
    for one, other in zip(some, others, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            mine, its = np.asarray(value), np.asarray(other[name])
            assert (mine.dtype, mine.shape, mine.tobytes()) == (its.dtype, its.shape, its.tobytes())


CONSTANT = np.arange(7, dtype=np.float32)


def number_in_place(element: Element) -> Element:
    number = before = element["s"]
    number += 1
    return {**element, "s": number, "before": before}


def by_class(element: Element) -> Element:
    wanted = isinstance(element["x"], np.ndarray) and isinstance(element["text"], str)
    return {**element, "x": element["x"] * 2 if wanted else element["x"]}


ALLOWED: dict[str, Function] = {
    "constants": lambda e: {**e, "x": (e["x"] - CONSTANT) / np.float32(2.5)},
    "constant on the left": lambda e: {**e, "x": CONSTANT * e["x"], "s": np.float32(3) * e["s"]},
    "clip and cast": lambda e: {**e, "x": np.clip(e["x"] * 2, 0, 1).astype(np.float16)},
    "where": lambda e: {**e, "s": np.where(e["s"] > 0, e["s"], -e["s"])},
    "a constant of the element's size": lambda e: {**e, "x": e["x"] + np.arange(e["x"].shape[0])},
    "asks for the size": lambda e: {**e, "x": e["x"] / e["x"].size},
    "asks for the dtype": lambda e: {**e, "x": e["x"] / 255 if e["x"].dtype == np.uint8 else e["x"]},
    "whole numbers": lambda e: {**e, "n": (e["n"] * 3 + 1) % 17 // 2},
    "asks for classes": by_class,
    "a number that is added to": number_in_place,
    "columns left out, renamed, in another order": lambda e: {"y": e["s"], "text": e["text"], "x": abs(e["x"])},
}


@pytest.mark.parametrize("fn", ALLOWED.values(), ids=ALLOWED)
def test_arithmetic_is_run_on_rows_with_the_results_of_one_by_one(fn: Function) -> None:
    for count in (1, 2, 33, ROWS):
        given = elements(count)
        expected = [fn(dict(one)) for one in given]
        assert_same(in_rows(fn, given, exactly=True), expected)
        assert_same(in_rows(fn, given[::-1]), expected[::-1])


def array_in_place(element: Element) -> Element:
    element["x"] *= 2
    return element


def one_bad_power(element: Element) -> Element:
    try:
        power = np.int64(2) ** (element["n"] - 5)
    except:  # noqa: E722  # what a user may write
        power = element["n"]
    return {**element, "n": power}


def swallowed_overflow(element: Element) -> Element:
    """Of integers that overflow NumPy tells only where they are single numbers."""
    with np.errstate(over="raise"):
        try:
            return overflowing(element)
        except FloatingPointError:
            return element


def overflowing(element: Element) -> Element:
    return {**element, "n": element["n"] * np.int64(2**62)}


REFUSED: dict[str, Function] = {
    "an error of NumPy that is swallowed": one_bad_power,
    "an error of numbers that rows do not have": swallowed_overflow,
    "a function of as many arguments as clip": lambda e: {**e, "x": np.interp(e["x"], CONSTANT, CONSTANT)},
    "mean": lambda e: {**e, "x": e["x"] - e["x"].mean()},
    "turned round": lambda e: {**e, "x": e["x"][::-1]},
    "a place": lambda e: {**e, "s": e["x"][0]},
    "a rare branch": lambda e: {**e, "s": e["s"] * 2 if e["s"] > 1e6 else e["s"]},
    "a text's length": lambda e: {**e, "n": len(e["text"])},
    "in place": array_in_place,
    "a library's function": lambda e: {**e, "x": cv2.blur(e["x"], (3, 1))},
    "a number of Python": lambda e: {**e, "s": float(e["s"])},
    "columns of unlike rank": lambda e: {**e, "x": e["x"] * e["s"]},
    "a column of its own": lambda e: {**e, "label": np.int64(1)},
    "a text of a number": lambda e: {**e, "text": f"{e['s']}"},
    "matrices": lambda e: {**e, "s": e["x"] @ e["x"]},
    "no element": lambda e: cast("Element", [e]),
}


@pytest.mark.parametrize("fn", REFUSED.values(), ids=REFUSED)
def test_what_is_not_done_to_each_number_by_itself_is_refused(fn: Function) -> None:
    with pytest.raises(NotInRowsError):
        in_rows(fn, elements())


@pytest.mark.parametrize(
    "fn",
    [
        lambda e: {**e, "s": np.exp(e["s"])},
        lambda e: {**e, "s": e["s"] ** 2},
        lambda e: {**e, "x": (e["x"] * 255).astype(np.uint8)},
    ],
)
def test_what_may_differ_in_the_last_bit_is_refused_where_results_must_be_equal(fn: Function) -> None:
    in_rows(fn, elements())
    with pytest.raises(NotInRowsError):
        in_rows(fn, elements(), exactly=True)


def test_what_warns_of_single_numbers_alone_is_refused_where_warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_rows(overflowing, elements())
        warnings.simplefilter("error")
        with pytest.raises(NotInRowsError, match="warnings are errors"):
            in_rows(overflowing, elements())


@pytest.mark.parametrize("told", [lambda place: None if place == 7 else "a", lambda place: place > 3])
def test_values_that_are_told_by_what_they_are_are_no_rows(told: Callable[[int], Any]) -> None:
    def doubled_if_told(element: Element) -> Element:
        return {**element, "s": element["s"] if element["told"] is None else element["s"] * 2}

    with pytest.raises(NotInRowsError, match=r"NoneType|bool"):
        in_rows(doubled_if_told, [{"s": np.float32(1), "told": told(place)} for place in range(9)])


@pytest.mark.parametrize("change", [{"x": np.zeros(3, np.float32)}, {"s": np.float64(1)}, {"y": 1}])
def test_unlike_elements_are_no_rows(change: Element) -> None:
    given = elements()
    given[5] = {**given[5], **change}
    assert stacked(given) is None


def scale(element: Element) -> Element:
    return {**element, "x": (element["x"] - np.float32(0.5)) / np.float32(2)}


def clip(element: Element) -> Element:
    return {**element, "x": np.clip(element["x"], -1, 1)}


def half(element: Element) -> Element:
    return {**element, "x": element["x"].astype(np.float16)}


def pipeline(*fns: Function, columns: bool = False, bad: int | None = None, **config: Any) -> pecan.PecanPipeline:
    given = elements()
    if bad is not None:
        given[bad]["s"] = np.float32(0)
    if columns:
        source: Any = pecan.sources.Arrays({name: np.array([one[name] for one in given]) for name in ("x", "s", "n")})
    else:
        source = pecan.sources.Items(given)
    pipe = pecan.PecanPipeline(source, name="rows", config=pecan.Config(**config))
    for fn in fns:
        pipe = pipe.map(fn)
    return pipe.batch(16)


def ordered(pipe: pecan.PecanPipeline, mode: Mode = "strict") -> Ordering:
    return order_plan(OrderRequest(pipe.plan, mode=mode, elements=100, seconds=60))


@pytest.fixture
def whatever_it_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times decide no test."""
    monkeypatch.setattr(in_rows_rule, "LEAST_GAIN", -math.inf)
    monkeypatch.setattr(accepted, "_saves_time", lambda seconds, gain: True)


@pytest.mark.usefixtures("whatever_it_gains")
def test_a_job_of_a_single_map_runs_what_explain_has_found_and_looks_for_nothing_itself(tmp_path: Path) -> None:
    def run_by_a_job() -> Ordered:
        pipe = pipeline(half, order_folder=tmp_path, sample_seconds=60.0)
        return pipe._order.ordered(skip_bad=False, once=True, job=None)

    assert run_by_a_job().plan is None and not list(tmp_path.iterdir())
    assert "rule rows at once" in pipeline(half, order_folder=tmp_path, sample_seconds=60.0).explain()
    plan = run_by_a_job().plan
    assert plan is not None and isinstance(plan.ops[-1], BatchInRows)


@pytest.mark.usefixtures("whatever_it_gains")
@pytest.mark.parametrize("columns", [False, True])
def test_maps_of_tiny_elements_are_chosen_and_kept(columns: bool) -> None:
    found = ordered(pipeline(scale, clip, half, columns=columns))
    assert found.decoders == ("scale+clip+half in rows exactly",)
    plan, [done] = apply_rewrites(found.plan, "python", found.decoders)
    assert isinstance(plan.ops[-1], BatchInRows) and "scale, clip, half run on many elements" in done.why
    assert apply_rewrites(found.plan, "tensorflow", found.decoders)[0] == found.plan
    kept = KeptOrder.from_json(json.loads(KeptOrder.of(found, "tiny").to_text()))
    again = kept.ordering(pipeline(scale, clip, half, columns=columns).plan, "strict")
    assert again is not None and again.decoders == found.decoders and again.sequences[0].taken_over.pushed


class Schedule:
    calls = 0
    factor = np.float32(2)

    def __call__(self, element: Element) -> Element:
        self.calls += 1
        return {**element, "s": element["s"] * (self.factor if self.calls < 3000 else 1)}


def schedule_of_a_closure() -> Function:
    calls = 0

    def counted(element: Element) -> Element:
        nonlocal calls
        calls += 1
        return {**element, "s": element["s"] * (2 if calls < 3000 else 1)}

    return counted


CALLS = itertools.count()
SEEN: list[int] = []
TABLE = np.zeros(7, np.float32)


def seen(element: Element) -> Element:
    SEEN.append(1)
    return element


def in_table(element: Element) -> Element:
    TABLE[0] += 1
    return {**element, "x": element["x"] + TABLE}


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (Schedule(), "it sets 'calls', which lives longer than a call"),
        (schedule_of_a_closure(), "it sets 'calls', which lives longer than a call"),
        (lambda e: {**e, "s": e["s"] * (2 if next(CALLS) < 3000 else 1)}, "it names 'next', a builtin_function"),
        (seen, "it names 'SEEN', a list that may differ from call to call"),
        (in_table, "it may write into 'TABLE', which lives longer than a call"),
        (lambda e: seen(e), "it names 'seen': it names 'SEEN'"),
        (partial(scale), ""),
        (lambda e: scale(clip(e)), ""),
        (lambda e, factor=3: {**e, "x": np.where(e["x"] > 0, factor * e["x"], math.pi)}, ""),
    ],
)
def test_what_may_remember_is_told_by_its_code_since_no_sample_may_show_it(fn: Function, why: str) -> None:
    told = why_not_plain(fn)
    assert (why in told) if why else not told, told


def test_an_order_file_may_name_them_and_is_refused_for_others(tmp_path: Path) -> None:
    pipe, file = pipeline(scale, clip, half), tmp_path / "order.json"

    def pinned(names: str) -> Ordering | None:
        KeptOrder((), decoders=(names,)).save(file)
        return pinned_order(pipe.plan, "safe", "python", pecan.Config(order_file=file), "tiny")

    for names in ("scale+clip+half in rows", "scale+clip+half in rows exactly"):
        found = pinned(names)
        assert found is not None and found.decoders == (names,)
    for names in ("scale in rows", "clip+half in rows"):
        with pytest.raises(PlanError, match=re.escape(names)):
            pinned(names)


def run(plan: Plan, on_error: OnError = "raise", threads: int = 2) -> list[Produced]:
    return run_engine(plan, order="strict", on_error=on_error, threads=threads)


def maps_in_rows(pipe: pecan.PecanPipeline, *names: str) -> Plan:
    plan, told = apply_rewrites(pipe.plan, "python", ("+".join(names) + " in rows",))
    assert told
    return plan


def strictly(element: Element) -> Element:
    with np.errstate(divide="raise"):
        return {**element, "s": np.float32(1) / element["s"]}


def with_a_bad_one(columns: bool) -> pecan.PecanPipeline:
    return pipeline(scale, strictly, clip, columns=columns, bad=41)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_an_element_that_fails_among_others_is_named_and_left_out_alone(columns: bool, on_error: OnError) -> None:
    pipe, found = with_a_bad_one(columns), []
    for plan in (pipe.plan, maps_in_rows(pipe, "scale", "strictly", "clip")):
        with pytest.raises(OpError, match="strictly failed on element") as caught:
            run(plan)
        found.append((caught.value.message, caught.value.fields))
    assert found[0] == found[1]
    usual, new = run(pipe.plan, on_error), run(maps_in_rows(pipe, "scale", "strictly", "clip"), on_error)
    numbers = [[n for one in many for n in one.columns.get("n", [])] for many in (usual, new)]
    assert numbers[0] == numbers[1] == [n for n in range(ROWS) if n != 41]
    assert [one.rows for one in usual] == [one.rows for one in new]
    bad = [[(b.op, b.where, b.error) for one in many for b in one.bad] for many in (usual, new)]
    assert bad[0] == bad[1] and len(bad[1]) == 1 and bad[1][0][0] == "strictly"
    assert delivered(new) == delivered(usual)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    begun = run_engine(pipe.plan, leases, order="strict", on_error=on_error)[:3]
    rest = run_engine(maps_in_rows(pipe, "scale", "strictly", "clip"), missing(leases, begun), on_error=on_error)
    assert sorted(column([*begun, *rest], "n")) == numbers[0], "it goes on from a state of the other"


@pytest.mark.parametrize("columns", [False, True])
def test_a_function_that_begins_to_look_at_all_numbers_goes_on_one_by_one(columns: bool) -> None:
    def largest(element: Element) -> Element:
        if element["x"].dtype == np.float32:
            return {**element, "x": element["x"] * 2}
        element["x"] /= element["x"].max()
        return element

    wide = np.stack([one["x"].astype(np.float64) for one in elements()])
    before, rows = wide.copy(), [{"x": one} for one in wide]
    source: Any = pecan.sources.Arrays(x=wide) if columns else pecan.sources.Items(rows)
    pipe = pecan.PecanPipeline(source).map(largest).batch(16)
    usual, new = run(pipe.plan), run(maps_in_rows(pipe, "largest"))
    for one, other in zip(usual, new, strict=True):
        assert np.array_equal(one.columns["x"], other.columns["x"])
    assert np.array_equal(wide, before), "it has written into copies"
