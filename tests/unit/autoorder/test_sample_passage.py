"""The elements of a sample that are not timed: several at once, counted like the others."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.op_runner import SampleLimits, several_threads
from pecan_ray.autoorder.op_tally import ENOUGH_TIMED
from pecan_ray.autoorder.run_in_threads import in_threads
from pecan_ray.autoorder.sample import MOST_TIMED, Sampled, sample_stretch
from pecan_ray.errors import OpError
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element
from pecan_ray.plan.stretches import stretches

COUNT = 300
LATE = MOST_TIMED + 40
"""An element that is surely not timed."""


def rows(engine: EngineName = "python") -> pecan.PecanPipeline:
    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    items = [{"i": np.int64(n), "x": np.full(8, n, np.float32)} for n in range(COUNT)]
    return pecan.PecanPipeline(pecan.sources.Items(items, split_rows=1000), name="rows", engine=engine)


def run(pipe: pecan.PecanPipeline, *, skip_bad: bool = False, seconds: float = 20.0) -> Sampled:
    (stretch,) = stretches(pipe.plan)
    limits = SampleLimits(COUNT, time.perf_counter() + seconds)
    return sample_stretch(stretch, pipe.engine, 0, limits, skip_bad=skip_bad)


def even(i: Any) -> Any:
    return i % 2 == 0


def thrice(engine: EngineName) -> Any:
    if engine == "python":
        return lambda x: [x, x, x]
    import tensorflow as tf

    return lambda x: tf.stack([x, x, x])


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_every_element_is_counted_and_some_are_timed(engine: EngineName) -> None:
    pipe = rows(engine).map(lambda x: x * 2, on="x", name="double").map(lambda x: x[:6], on="x", name="cut")
    pipe = pipe.filter(even, on="i").flat_map(thrice(engine), on="x", name="thrice")
    found = run(pipe.map(lambda x: x[:2], on="x", name="crop").map(lambda x: x + 1, on="x", name="add"))
    ops = {op.op.name: op for op in found.profile().ops}
    assert found.profile().elements == COUNT and not found.notes
    assert [ops[name].elements_in for name in ("double", "cut", "even", "thrice")] == [300, 300, 300, 150]
    assert [ops[name].elements_in for name in ("crop", "add")] == [450, 450]
    assert (ops["even"].elements_out, ops["thrice"].elements_out) == (150, 450)
    widths = {"double": (8, 8), "cut": (8, 6), "crop": (6, 2), "add": (2, 2)}
    for name, (before, after) in widths.items():
        elements = ops[name].elements_in
        assert ops[name].bytes_in == elements * (8 + 4 * before), name
        assert ops[name].bytes_out == elements * (8 + 4 * after), name
    timed = [len(found.tallies[name].timed) + len(found.tallies[name].watched) for name in ops]
    assert all(ENOUGH_TIMED <= count < 3 * COUNT // 2 for count in timed), timed
    assert found.results == [3 if n % 2 == 0 else 0 for n in range(COUNT)]


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_an_untimed_element_that_fails_is_named_with_its_operator(engine: EngineName) -> None:
    def pick(i: Any) -> Any:
        if engine == "python":
            return np.arange(LATE)[int(i)]
        import tensorflow as tf

        return tf.gather(tf.range(LATE), tf.cast(i, tf.int32))

    pipe = rows(engine).map(lambda x: x * 2, on="x", name="double").map(pick, on="i").map(lambda x: x, on="x", name="c")
    with pytest.raises(OpError, match=f"pick failed on element {LATE} of split 0") as caught:
        run(pipe)
    assert caught.value.op == "pick" and caught.value.element == LATE
    found = run(pipe, skip_bad=True)
    assert found.profile().elements == LATE
    assert f"{COUNT - LATE} bad elements were left out" in found.notes[-1]


def test_untimed_elements_run_at_once() -> None:
    together = threading.Barrier(2)

    def meet(i: Any) -> Any:
        if i >= COUNT - 8:
            together.wait(timeout=20)  # breaks, and fails the operator, where elements come one by one
        return i

    if several_threads() < 2:
        pytest.skip("one CPU has one thread")
    assert run(rows().map(meet, on="i")).profile().elements == COUNT


def test_functions_that_ask_for_processes_meet_no_other_thread() -> None:
    seen: dict[int, int] = {}

    def where(i: Any) -> Any:
        seen[int(i)] = threading.get_ident()
        return i

    assert run(rows().map(where, on="i", processes=True)).profile().elements == COUNT
    late = {thread for number, thread in seen.items() if number >= MOST_TIMED}
    assert len(late) == 1 and late != {threading.get_ident()}


def test_untimed_elements_stay_as_they_are() -> None:
    def scribble(element: Element) -> Element:
        element["x"] += 1
        return element

    found = run(rows().map(scribble))
    assert [float(token.value["x"][0]) for token in found.held] == list(range(COUNT))


def test_the_end_of_the_time_is_noticed() -> None:
    def slow_in_the_end(i: Any) -> Any:
        end = time.thread_time() + (0.1 if i >= MOST_TIMED else 0.0)
        while time.thread_time() < end:
            pass
        return i

    found = run(rows().map(slow_in_the_end, on="i"), seconds=1.0)
    assert MOST_TIMED <= found.profile().elements < COUNT
    assert "the time was over" in found.notes[-1]


def test_few_elements_are_under_way_and_their_order_stays() -> None:
    begun: list[int] = []

    def passage(token: Any) -> Any:
        begun.append(token)
        return token

    seen: list[Any] = []
    for token, outcome in in_threads(passage, range(50), 2, lambda: True):
        assert len(begun) <= token + 6
        seen.append((token, outcome()))
    assert seen == [(n, n) for n in range(50)]
