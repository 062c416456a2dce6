"""The sample ends in time, holds little, and names what is wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.sample import sample_stretch
from pecan_ray.errors import ColumnError, OpError, PlanError
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element, Split
from pecan_ray.plan.stretches import stretches
from pecan_ray.reorder import auto_order
from tests.unit.autoorder.sampled_rows import double, keep, profile, rows


def test_an_empty_source_gives_no_factors_and_a_note() -> None:
    found = profile(pecan.PecanPipeline(pecan.sources.Items([])).map(keep).map(double, on="x").batch(2))
    assert found.elements == 0 and "no element" in found.notes[0]
    assert auto_order(found.stretches[0].profiled, "pecan").order == ("keep", "double")
    assert all("not reached" in op.profiled.fixed for op in found.ops)


def test_a_source_that_is_shorter_than_asked_is_measured_with_a_note() -> None:
    found = profile(rows(5).map(double, on="x"), elements=100)
    assert found.elements == 5 and found["double"].inflation == 1.0
    assert "5 of 100" in found.notes[0]
    assert profile(rows(5).map(double, on="x"), elements=5).notes == ()


def test_a_filter_that_lets_nothing_through_leaves_what_follows_unmeasured() -> None:
    found = profile(rows().filter(lambda i: i < 0, on="i", name="none").map(double, on="x"))
    assert not found["none"].measured and not found["double"].measured
    assert not found.stretches[0].complete


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_an_error_names_operator_and_element(engine: EngineName) -> None:
    def pick(x: Any) -> Any:
        if engine == "python":
            return [1, 2, 3][int(x[0])]
        import tensorflow as tf

        return tf.gather(tf.constant([1, 2, 3]), tf.cast(x[0], tf.int32))

    if engine == "tensorflow":
        pytest.importorskip("tensorflow")
    with pytest.raises(OpError, match="pick failed on element 2 of split 0") as caught:
        profile(rows(engine=engine).map(double, on="x", name="first").map(pick, on="x"))
    assert caught.value.op == "pick" and caught.value.element == 2


def test_a_wrong_column_name_is_told_at_once() -> None:
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

    (stretch,) = stretches(rows(300).map(slow, on="x").map(double, on="x").plan)
    sampled = sample_stretch(stretch, "python", 0, SampleLimits(300, deadline=0.5), clock=lambda: now)
    found = sampled.profile()
    assert 0.5 <= now < 0.7, "an operator that runs is not interrupted, and is watched by running it again"
    assert 0 < found.elements < 300 and "the time was over" in found.notes[0]
    assert found.ops[0].seconds is not None and found.ops[0].seconds > 0.004


@dataclass(frozen=True)
class Slow:
    """A source whose elements take their time."""

    clock: list[float]

    def splits(self) -> Iterator[Split]:
        yield Split(0)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for number in range(start, 10_000):
            self.clock[0] += 0.02
            yield {"x": np.full(4, number)}

    def num_elements(self) -> int | None:
        return None

    def identity(self) -> str:
        return "slow"


def test_a_slow_source_leaves_time_for_the_operators() -> None:
    clock = [0.0]
    (stretch,) = stretches(pecan.PecanPipeline(Slow(clock)).map(double, on="x").plan)
    found = sample_stretch(stretch, "python", 0, SampleLimits(300, deadline=0.6), clock=lambda: clock[0]).profile()
    assert 0 < found.elements < 60 and "reading took the time" in found.notes[0]
    assert found.ops[0].elements_in == found.elements


def test_the_bytes_that_are_held_are_bounded() -> None:
    pipe = rows(100).map(double, on="x")
    (stretch,) = stretches(pipe.plan)
    limits = SampleLimits(elements=100, bytes=10 * 47)
    found = sample_stretch(stretch, "python", 0, limits).profile()
    assert 9 <= found.elements <= 12 and "they fill" in found.notes[0]


@pytest.mark.parametrize(("elements", "seconds"), [(0, 1.0), (-1, 1.0), (10, 0.0), (True, 1.0)])
def test_bounds_that_make_no_sense_are_refused(elements: int, seconds: float) -> None:
    with pytest.raises(PlanError, match="a sample needs"):
        profile(rows().map(double, on="x"), elements, seconds)


def test_a_shuffle_is_not_filled_for_a_sample() -> None:
    clock = [0.0]
    pipe = pecan.PecanPipeline(Slow(clock)).shuffle(50_000).map(double, on="x")
    found = profile(pipe, elements=5, seconds=30.0)
    assert found.elements == 5 and clock[0] < 50 * 0.02
