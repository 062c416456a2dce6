"""Rows that the trainer joins to batches: an engine gives up what stands before an element that fails, or is of
another kind, and cuts its rows where elements change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.registry import build_engine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.errors import CorruptSourceError, ElementError, PecanError
from pecan_ray.options import EngineName, OnError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import OUTPUT_BITS, Element, Split
from tests.unit.engines.engine_leases import ListedLeases, delivered, numbers, whole_leases

ENGINES: list[EngineName] = ["python", "tensorflow"]


def blocks_of(pipe: PecanPipeline, on_error: OnError = "raise") -> tuple[list[Produced], PecanError | None]:
    """Return what an engine makes of runs whose rows are joined; and its error."""
    leases = [replace(lease, row=0, place=lease.split.index) for lease in whole_leases(tuple(pipe.plan.sources()))]
    tracker, found = LeaseTracker(ListedLeases(leases)), []
    options = EngineOptions(threads=3, order="strict", on_error=on_error)
    with closing(build_engine(pipe.engine, pipe.plan, options, HeapSlots())) as engine:
        try:
            for produced in engine.batches(tracker):
                tracker.mark_processed(produced.spans)
                found.append(produced)
        except PecanError as error:
            delivered(found)
            return [one for one in found if one.rows], error
    assert not tracker.unresolved_spans()
    delivered(found)
    return [one for one in found if one.rows], None


def even(i: Any) -> Any:
    return i % 2 == 0


def fails_at_29(i: Any) -> Any:
    if isinstance(i, np.generic):
        return [i][int(i == 29)]
    import tensorflow as tf

    return tf.gather(tf.stack([i]), tf.cast(i == 29, tf.int32))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("behind", [lambda pipe: pipe, lambda pipe: pipe.repeat(2)], ids=["batch", "repeat"])
def test_what_stands_before_an_element_that_fails_is_given_up(
    engine: EngineName, behind: Callable[[PecanPipeline], PecanPipeline]
) -> None:
    pipe = numbers(engine=engine).map(lambda i: i + 1, on="i").map(fails_at_29, on="i").filter(even, on="i").batch(4)
    blocks, error = blocks_of(behind(pipe))
    assert isinstance(error, ElementError) and error.element == 8 and not blocks[-1].partial
    assert [i for block in blocks for i in block.columns["i"]] == list(range(2, 29, 2))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_element_that_is_left_out_is_told_once_and_the_rows_around_it_keep_their_places(engine: EngineName) -> None:
    pipe = numbers(engine=engine).map(fails_at_29, on="i").batch(4)
    blocks, error = blocks_of(pipe, "skip")
    rows = [i for block in blocks for i in block.columns["i"]]
    assert error is None and rows == [i for i in range(len(rows) + 1) if i != 29]
    places = [(key, start >> OUTPUT_BITS) for block in blocks for key, start, _ in block.row_parts]
    assert places == sorted(places) and len(places) == len(rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_each_output_of_an_element_has_a_place_of_its_own(engine: EngineName) -> None:
    """So a batch may end between two of them."""
    blocks, error = blocks_of(numbers(6, engine=engine).flat_map(_halves[engine]).batch(4))
    assert error is None and [i for block in blocks for i in block.columns["i"]] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    half = 1 << OUTPUT_BITS - 1
    parts = [part for block in blocks for part in block.row_parts]
    assert parts == [((0, 0, 0), number * half, (number + 1) * half) for number in range(12)]


def _twice_in_graph(element: Element) -> Element:
    import tensorflow as tf

    return {"i": tf.repeat(element["i"], 2)}


_halves = {"python": lambda element: [element, element], "tensorflow": _twice_in_graph}


class Broken:
    """A source that cannot be read behind its sixth element."""

    counts_splits = True

    def splits(self) -> Any:
        yield Split(0, elements=10)

    def read(self, split: Split, start: int = 0) -> Any:
        for i in range(start, 6):
            yield Element(i=i)
        raise CorruptSourceError("byte 17 is broken")

    def num_elements(self) -> int | None:
        return 10

    def identity(self) -> str:
        return "broken"


@pytest.mark.parametrize("engine", ENGINES)
def test_what_stands_before_data_that_cannot_be_read_is_given_up(engine: EngineName) -> None:
    blocks, error = blocks_of(PecanPipeline(Broken(), engine=engine).filter(even, on="i").batch(4))
    assert isinstance(error, CorruptSourceError)
    assert [(i, block.partial) for block in blocks for i in block.columns["i"]] == [(0, False), (2, False), (4, False)]


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_end_where_shapes_change(engine: EngineName) -> None:
    """And no element is computed into a block with one of another shape, however the threads come to them."""
    pipe = numbers(engine=engine).filter(even, on="i").map(_widened[engine]).batch(8)
    blocks, error = blocks_of(pipe)
    assert error is None
    assert [block.columns["wide"].shape for block in blocks] == [
        (8, 1), (4, 1), (5, 2), (3, 1),  # of 24, 10 and 6 elements
    ]  # fmt: skip
    assert [i for block in blocks for i in block.columns["i"]] == list(range(0, 40, 2))


def _wide(element: Element) -> Element:
    return {**element, "wide": np.zeros(2 if 24 <= element["i"] < 34 else 1)}


def _wide_in_graph(element: Element) -> Element:
    import tensorflow as tf

    among = tf.logical_and(element["i"] >= 24, element["i"] < 34)
    return {**element, "wide": tf.zeros([tf.where(among, 2, 1)])}


_widened = {"python": _wide, "tensorflow": _wide_in_graph}


@pytest.mark.parametrize(
    ("kinds", "rows"),
    [
        ([1, 2, 2.5, 3.5, 4], [2, 2, 1]),
        (["a", "long", None, b"c", "d"], [5]),
        (["a", 1, "b", None, None], [1, 1, 3]),
        ([np.array(["a", "b"]), np.array(["long", "b"]), np.array(["c", "d"])], [1, 1, 1]),
        ([{"a": 1}, {"a": 2, "b": 1}, {"b": 2, "a": 1}, None, {"a": 1}], [1, 1, 1, 1, 1]),
        ([[1, 2], [3, 4], [1, 2, 3], ["a", "b"], ["a", None]], [2, 1, 1, 1]),
    ],
)
def test_blocks_end_where_anything_changes_that_tells_what_a_batch_holds(kinds: list[Any], rows: list[int]) -> None:
    def kind(element: Element) -> Element:
        return {"value": kinds[element["i"]]}

    pipe = numbers(len(kinds)).map(kind).filter(lambda element: True).batch(8)
    blocks, error = blocks_of(pipe)
    assert error is None and [block.rows for block in blocks] == rows


def test_a_block_that_cannot_be_made_is_an_error_behind_those_before_it() -> None:
    def masked(element: Element) -> Element:
        value = np.ma.masked_array([1.0], [True]) if element["i"] == 21 else np.ones(1)
        return {**element, "value": value}

    blocks, error = blocks_of(numbers().map(masked).filter(lambda element: True).batch(4))
    assert isinstance(error, ElementError) and error.element == 1 and "masked" in str(error)
    assert sum(block.rows for block in blocks) == 21
