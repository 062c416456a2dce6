"""The sample: what it measures of each operator, that it disturbs nothing, ends in time, and names what is wrong."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.op_samples import HOLDS_STATE
from pecan_ray.autoorder.sample import sample_op_sequence
from pecan_ray.engines.timers import ProcessTimer, ThreadTimer
from pecan_ray.errors import ColumnError, PlanError
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element, Split
from pecan_ray.reorder import auto_order
from tests.unit.autoorder.sampled_rows import COUNT, double, keep, profile, rows, sampled, touched

# --- what is measured --------------------------------------------------------------------------------------


def test_columns_that_a_function_reads_writes_creates_and_drops_are_told_apart() -> None:
    def label(element: Element) -> Element:
        return {**element, "label": len(element["path"])}

    def shorter(element: Element) -> Element:
        return {**element, "x": element["x"][:4]}

    def without(element: Element) -> Element:
        return {name: element[name] for name in ("x", "label")}

    found = profile(rows().map(label).map(shorter).map(without))
    one, two, three = found.ops
    assert touched(one) == (["path"], [], ["label"], [])
    assert touched(two) == (["x"], ["x"], [], [])
    assert touched(three) == (["label", "x"], [], [], ["i", "path"])

    def hidden(element: Element) -> Element:
        own = dict(element)
        own["mask"] = own["x"] > 3
        return own

    def fresh(element: Element) -> Element:
        own = dict(element)
        own["x"] = np.zeros(2, np.float32)
        return own

    found = profile(rows().map(hidden).map(fresh))
    assert found["hidden"].profiled.reads == {"x"} and found["hidden"].profiled.creates == {"mask"}
    assert found["fresh"].profiled.reads == set() and found["fresh"].profiled.writes == {"x"}
    assert found["fresh"].profiled.defines == {"x"}


def test_an_operator_that_writes_into_its_input_poisons_nothing() -> None:
    data = np.arange(COUNT * 8, dtype=np.float32).reshape(COUNT, 8)
    original = data.copy()

    def scale(element: Element) -> Element:
        element["x"] *= 2
        return element

    def total(element: Element) -> Element:
        return {**element, "sum": float(element["x"].sum())}

    pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=data)).map(scale).map(total)
    found = profile(pipe)
    assert found["scale"].profiled.writes == {"x"}
    assert not found["scale"].profiled.random and not found["scale"].profiled.fixed
    assert np.array_equal(data, original)
    peeked = pipe.peek(COUNT)
    assert isinstance(peeked, list)
    assert [element["sum"] for element in peeked] == [float(2 * row.sum()) for row in original]


def test_filters_and_flat_maps_count_elements() -> None:
    def even(i: Any) -> Any:
        return i % 2 == 0

    def thrice(element: Element) -> list[Element]:
        return [element, element, element]

    found = profile(rows().filter(even, on="i").flat_map(thrice).map(double, on="x"))
    assert (found["even"].elements_in, found["even"].elements_out) == (COUNT, COUNT // 2)
    assert found["even"].inflation == pytest.approx(0.5, abs=0.01) and found["even"].profiled.elements == 0.5
    assert found["thrice"].profiled.elements == 3 and found["thrice"].inflation == pytest.approx(3)
    assert found["double"].elements_in == 3 * COUNT // 2


# --- randomness and state ----------------------------------------------------------------------------------


def test_randomness_is_found_however_it_is_drawn() -> None:
    def declared(x: Any, rng: np.random.Generator) -> Any:
        return x + rng.random()

    def of_numpy(x: Any) -> Any:
        return x + np.random.random()

    def of_python(x: Any) -> Any:
        return x + random.random()

    found = profile(rows().map(declared, on="x").map(of_numpy, on="x").map(of_python, on="x").map(double, on="x"))
    assert [op.profiled.random for op in found.ops] == [True, True, True, False]
    assert not any(op.profiled.fixed for op in found.ops)


def counting() -> Callable[[Any], Any]:
    calls = [0]

    def count(x: Any) -> Any:
        calls[0] += 1
        return x + calls[0]

    return count


def test_state_is_found_and_stays_where_and_as_it_is() -> None:
    found = sampled(rows().map(counting(), on="x"), "count")
    assert found.profiled.fixed == HOLDS_STATE
    vouched = sampled(rows().map(counting(), on="x", random=True), "count")
    assert vouched.profiled.random and not vouched.profiled.fixed
    count = counting()
    random.seed(1)
    np.random.seed(1)
    pipe = rows().map(count, on="x").map(lambda x: x + np.random.random() + random.random(), on="x")
    profile(pipe)
    drawn = (random.random(), np.random.random())
    random.seed(1)
    np.random.seed(1)
    assert drawn == (random.random(), np.random.random())
    assert count(0) == 1


# --- kinds, ranks, types -----------------------------------------------------------------------------------


def test_changes_of_kind_and_rank_and_casts_that_cpus_lack_are_told() -> None:
    def parse(element: Element) -> Element:
        return {"x": element["x"], "number": int(element["path"].rpartition("-")[2])}

    def rename(element: Element) -> Element:
        return {**element, "name": element["path"].upper()}

    found = profile(rows().map(rename).map(parse).map(str, on="number", name="spell"))
    assert [op.profiled.changes_kind for op in found.ops] == [False, False, True], "what it reads stays as it is"
    found = profile(rows().map(lambda path: {"path": path}, on="path", name="load").map(keep))
    assert [op.profiled.changes_kind for op in found.ops] == [True, False], "text becomes an object"

    pipe = rows().map(lambda x: x[None], on="x", name="wider").map(lambda x: x[0, :4], on="x", name="narrower")
    found = profile(pipe.map(lambda x: x[:2], on="x", name="crop"))
    assert [op.profiled.changes_rank for op in found.ops] == [True, True, False]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    pipe = rows().map(lambda x: x.astype(np.float16), on="x", name="half")
    pipe = pipe.map(lambda x: x.astype(ml_dtypes.bfloat16), on="x", name="brain").map(
        lambda x: x[:4], on="x", name="crop"
    )
    assert [op.profiled.custom_dtype_cast for op in profile(pipe).ops] == [False, True, False]


# --- stretches and joins -----------------------------------------------------------------------------------


def test_stretches_end_at_barriers_and_each_branch_of_a_join_is_sampled_by_itself() -> None:
    left = rows().map(double, on="x", name="a").shuffle(4).map(double, on="x", name="b").map(keep, name="c")
    right = rows().map(double, on="x", name="d").batch(2).map(keep, name="on_batches").unbatch().map(keep, name="e")
    pipe = left.concat(right).map(keep, name="f").batch(2).map(keep, name="g")
    assert [one.names for one in op_sequences(pipe.plan)] == [("a",), ("b", "c"), ("d",), ("e",), ("f",)]
    assert [one.movable for one in op_sequences(rows().map(keep, keep_position=True).map(double, on="x").plan)] == [1]

    def half(x: Any) -> Any:
        return x[: len(x) // 2]

    left = rows().map(half, on="x").map(double, on="x")
    found = profile(left.concat(rows(10).map(half, on="x", name="right")).map(half, on="x", name="after").batch(4))
    assert [len(one.ops) for one in found.sequences] == [2, 1, 1]
    assert [one.elements for one in found.sequences] == [COUNT, 10, COUNT + 10]
    assert found["after"].bytes_in == sum(op.bytes_out for op in (found["double"], found["right"]))
    assert [op.fixed for op in found.profiled if op.fixed] == ["concat", "concat", "Batch is a barrier"]


def test_sources_that_are_empty_or_short_are_noted_and_wrong_columns_told() -> None:
    found = profile(pecan.PecanPipeline(pecan.sources.Items([])).map(keep).map(double, on="x").batch(2))
    assert found.elements == 0 and "no element" in found.notes[0]
    assert auto_order(found.sequences[0].profiled, "pecan").order == ("keep", "double")
    assert all("not reached" in op.profiled.fixed for op in found.ops)
    found = profile(rows(5).map(double, on="x"), elements=100)
    assert found.elements == 5 and found["double"].inflation == 1.0
    assert "5 of 100" in found.notes[0]
    assert profile(rows(5).map(double, on="x"), elements=5).notes == ()
    with pytest.raises(ColumnError, match="there is no column 'image'"):
        profile(rows().map(double, on="image"))


def test_slow_operators_end_the_sample_in_time() -> None:
    now = 0.0

    def slow(x: Any) -> Any:
        nonlocal now
        now += 0.05
        end = time.thread_time() + 0.005
        while time.thread_time() < end:
            pass
        return x

    (stretch,) = op_sequences(rows(300).map(slow, on="x").map(double, on="x").plan)
    found = sample_op_sequence(stretch, "python", 0, SampleLimits(300, deadline=0.5), clock=lambda: now).profile()
    assert 0.5 <= now < 0.7, "an operator that runs is not interrupted, and is watched by running it again"
    assert 0 < found.elements < 300 and "the time was over" in found.notes[0]
    assert found.ops[0].seconds is not None and found.ops[0].seconds > 0.004


def test_a_slow_source_leaves_time_for_the_operators_and_bytes_that_are_held_are_bounded() -> None:
    clock = [0.0]

    class Slow(pecan.sources.Items):
        def read(self, split: Split, start: int = 0) -> Iterator[Element]:
            for element in super().read(split, start):
                clock[0] += 0.02
                yield element

    source = Slow([{"x": np.full(4, number)} for number in range(1000)])
    (stretch,) = op_sequences(pecan.PecanPipeline(source).map(double, on="x").plan)
    found = sample_op_sequence(stretch, "python", 0, SampleLimits(300, deadline=0.6), clock=lambda: clock[0]).profile()
    assert 0 < found.elements < 60 and "reading took the time" in found.notes[0]
    assert found.ops[0].elements_in == found.elements
    pipe = rows(100).map(double, on="x")
    (stretch,) = op_sequences(pipe.plan)
    limits = SampleLimits(elements=100, bytes=10 * 47)
    found = sample_op_sequence(stretch, "python", 0, limits).profile()
    assert 9 <= found.elements <= 12 and "they fill" in found.notes[0]


@pytest.mark.parametrize(("elements", "seconds"), [(0, 1.0), (-1, 1.0), (10, 0.0), (True, 1.0)])
def test_bounds_that_make_no_sense_are_refused(elements: int, seconds: float) -> None:
    with pytest.raises(PlanError, match="a sample needs"):
        profile(rows().map(double, on="x"), elements, seconds)


# --- what it is made of ------------------------------------------------------------------------------------


def test_a_spec_says_what_differs_and_equality_is_of_type_and_content() -> None:
    mine, other = ElementSpec(), ElementSpec()
    for side in (3, 4):
        mine.add({"x": np.zeros((side, 2), np.float32), "name": "a"})
    other.add({"x": np.zeros((5, 2), np.float32), "name": "b"})
    assert mine.difference(other) == ""
    for element, said in (
        ({"x": np.zeros((3, 2), np.float64), "name": "a"}, "is float64 with 2 dimensions instead of float32"),
        ({"x": np.zeros((3, 3), np.float32), "name": "a"}, r"shape is [3, 3] instead of [?, 2]"),
        ({"x": np.zeros(3, np.float32), "name": "a"}, "is float32 with 1 dimensions instead of float32 with 2"),
        ({"x": np.zeros((3, 2), np.float32)}, "the columns ['x'] instead of ['name', 'x']"),
        ({"x": np.zeros((3, 2), np.float32), "name": b"a"}, "it is bytes instead of str"),
    ):
        found = ElementSpec()
        found.add(element)
        assert said in mine.difference(found)
    nan = np.array([np.nan, 1.0])
    assert equal({"a": nan, "b": ["x", b"y"]}, {"a": nan.copy(), "b": ["x", b"y"]})
    assert not equal(np.zeros(2, np.float32), np.zeros(2, np.float64))
    assert not equal({"a": 1}, {"a": 1, "b": 2})
    assert not equal([np.zeros(2)], [np.ones(2)])


@pytest.mark.parametrize("stopwatch", [ThreadTimer(), ProcessTimer()])
def test_a_stopwatch_counts_work_and_that_of_one_thread_its_waiting(stopwatch: ThreadTimer | ProcessTimer) -> None:
    stopwatch.start()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    assert stopwatch.stop() >= 0.019
    if isinstance(stopwatch, ThreadTimer):
        stopwatch.start()
        threading.Event().wait(0.03)
        assert stopwatch.stop() >= 0.02
