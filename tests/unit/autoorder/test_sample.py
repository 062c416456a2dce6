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
from pecan_ray import storage
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.op_samples import HOLDS_STATE, reading_seconds
from pecan_ray.autoorder.python_runner import PythonRunner
from pecan_ray.autoorder.sample import sample_op_sequence
from pecan_ray.engines.timers import ProcessTimer, ThreadTimer
from pecan_ray.errors import ColumnError, PlanError
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.splits import Element, Split
from pecan_ray.reorder import auto_order
from tests.unit.autoorder.sampled_rows import COUNT, double, keep, profile, rows, sampled, touched


def test_columns_that_a_function_reads_writes_creates_and_drops_are_told_apart() -> None:
    def without(element: Element) -> Element:
        return {name: element[name] for name in ("x", "i")}

    def hidden(element: Element) -> Element:
        own = dict(element)
        own["mask"] = own["x"] > 3
        return own

    def fresh(element: Element) -> Element:
        own = dict(element)
        own["x"] = np.zeros(2, np.float32)
        return own

    found = profile(rows().map(without).map(hidden).map(fresh))
    assert [touched(op) for op in found.ops] == [
        (["i", "x"], [], [], ["path"]),
        (["x"], [], ["mask"], []),
        ([], ["x"], [], []),
    ]
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


def test_a_kind_that_becomes_another_one_is_told_if_the_operator_makes_no_other_column_of_it() -> None:
    def parse(element: Element) -> Element:
        return {"x": element["x"], "number": int(element["path"].rpartition("-")[2])}

    found = profile(rows().map(parse).map(str, on="number", name="spell"))
    assert [op.profiled.changes_kind for op in found.ops] == [False, True], "what it reads stays as it is"
    found = profile(rows().map(lambda path: {"path": path}, on="path", name="load").map(keep))
    assert [op.profiled.changes_kind for op in found.ops] == [True, False], "text becomes an object"


def test_a_cast_to_a_type_that_cpus_lack_is_told() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    pipe = rows().map(lambda x: x.astype(np.float16), on="x", name="half")
    pipe = pipe.map(lambda x: x.astype(ml_dtypes.bfloat16), on="x", name="brain")
    pipe = pipe.map(lambda x: x[:4], on="x", name="crop")
    assert [op.profiled.custom_dtype_cast for op in profile(pipe).ops] == [False, True, False]


def test_stretches_end_at_barriers_and_each_branch_of_a_join_is_sampled_by_itself() -> None:
    left = rows().map(double, on="x", name="a").shuffle(4).map(double, on="x", name="b").map(keep, name="c")
    right = rows().map(double, on="x", name="d").batch(2).map(keep, name="on_batches").unbatch().map(keep, name="e")
    pipe = left.concat(right).map(keep, name="f").batch(2).map(keep, name="g")
    assert [one.names for one in op_sequences(pipe.plan)] == [("a",), ("b", "c"), ("d",), ("e",), ("f",)]

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


OFTEN, SELDOM = [0.001] * 99, [0.3]


@pytest.mark.parametrize(
    ("seconds", "fetched", "used", "found"),
    [
        ([], 0, 0, None),
        ([*OFTEN, *SELDOM], 0, 0, 0.001),
        ([*OFTEN, *SELDOM], 1000, 1000, 0.399 / 100),
        ([1.0, 0.0], 1000, 100, 0.05),
        ([1.0, 0.0], 1000, 9000, 0.5),  # what was there before took no time
    ],
)
def test_long_times_count_where_they_are_the_answers_of_a_store_by_their_share(
    seconds: list[float], fetched: int, used: int, found: float | None
) -> None:
    assert reading_seconds(seconds, fetched, used) == (None if found is None else pytest.approx(found))


def test_a_store_that_gives_few_bytes_a_second_is_seen_so_though_each_answer_has_many_elements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fetched = [0]
    monkeypatch.setattr(storage, "remote_bytes", lambda: fetched[0])

    class Answers(pecan.sources.Items):
        """A source of which one answer after a while has all elements."""

        def read(self, split: Split, start: int = 0) -> Iterator[Element]:
            if not fetched[0]:
                time.sleep(0.2)
                fetched[0] += 32 * 20_000
            yield from super().read(split, start)

    items = [{"bin": bytes(20_000)} for _ in range(32)]
    (stretch,) = op_sequences(pecan.PecanPipeline(Answers(items)).map(len, on="bin").batch(4).plan)
    runner = PythonRunner(stretch, "python", seed=0, limits=SampleLimits(32), clock=time.perf_counter)
    assert sum(1 for _ in runner.inputs()) == 32
    assert runner.reading_s is not None and runner.reading_s > 0.9 * 0.2 / 32
