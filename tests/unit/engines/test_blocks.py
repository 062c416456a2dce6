"""What comes before an error or a change: an engine gives up what stands before an element that fails or is of another
kind, and blocks end where elements change."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.errors import CorruptSourceError, ElementError, PecanError
from pecan_ray.options import EngineName, OnError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import OUTPUT_BITS, Element
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import (
    ListedLeases,
    Numbered,
    built,
    delivered,
    numbers,
    run_engine,
    running,
    sources_of,
    whole_leases,
)

ENGINES: list[EngineName] = ["python", "tensorflow"]


def blocks_of(pipe: PecanPipeline, on_error: OnError = "raise") -> tuple[list[Produced], PecanError | None]:
    """Return what an engine makes of runs whose rows are joined; and its error."""
    leases = [replace(lease, row=0, place=lease.split.index) for lease in whole_leases(sources_of(pipe))]
    tracker, found = LeaseTracker(ListedLeases(leases)), []
    with running(pipe, tracker, threads=3, order="strict", on_error=on_error) as (_, batches):
        try:
            for produced in batches:
                tracker.mark_processed(produced.spans)
                found.append(produced)
        except PecanError as error:
            delivered(found)
            return [one for one in found if one.rows], error
    assert not tracker.unresolved_spans()
    delivered(found)
    return [one for one in found if one.rows], None


def test_an_engine_goes_on_behind_the_end_of_a_run_while_an_element_of_it_is_slow() -> None:
    others_made = threading.Event()

    def slow_at_3(i: int) -> int:
        assert i != 3 or others_made.wait(60)
        if i == 24:
            others_made.set()
        return i

    pipe = PecanPipeline(Numbered(5, 5, 5, 10)).map(slow_at_3, on="i").filter(lambda i: i not in range(5, 10), on="i")
    leases = [replace(lease, place=lease.split.index, ends_run=True) for lease in whole_leases(sources_of(pipe))]
    found = run_engine(pipe.batch(4), leases, threads=3, order="strict")
    delivered(found)
    made = [np.asarray(one.columns["i"]).tolist() if one.rows else one.ends_run for one in found]
    first = [[0, 1, 2, 3], [4], True, True, [10, 11, 12, 13], [14], True]
    assert made == [*first, [15, 16, 17, 18], [19, 20, 21, 22], [23, 24], True]
    assert not any(one.partial for one in found)
    for one, ends_runs in ((pipe, True), (pipe.zip(numbers(column="label")), False)):
        with built(one.batch(4), order="strict") as engine:
            assert engine.ends_runs == ends_runs, "a join has no place for the end of a run"


def even(i: Any) -> Any:
    return i % 2 == 0


def fails_at_29(i: Any) -> Any:
    if isinstance(i, np.generic):
        return [i][int(i == 29)]
    import tensorflow as tf

    return tf.gather(tf.stack([i]), tf.cast(i == 29, tf.int32))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_stands_before_an_element_that_fails_is_given_up_and_what_is_around_one_left_out_keeps_its_place(
    engine: EngineName,
) -> None:
    pipe = numbers(engine=engine).map(lambda i: i + 1, on="i").map(fails_at_29, on="i").filter(even, on="i").batch(4)
    blocks, error = blocks_of(pipe)
    assert isinstance(error, ElementError) and error.element == 8 and not blocks[-1].partial
    assert [i for block in blocks for i in block.columns["i"]] == list(range(2, 29, 2))
    blocks, error = blocks_of(numbers(engine=engine).map(fails_at_29, on="i").batch(4))
    assert isinstance(error, ElementError) and error.element == 9 and not blocks[-1].partial
    assert [i for block in blocks for i in block.columns["i"]] == list(range(29)), "as of estimated splits"
    blocks, error = blocks_of(numbers(engine=engine).map(fails_at_29, on="i").batch(4), "skip")
    rows = [i for block in blocks for i in block.columns["i"]]
    assert error is None and rows == [i for i in range(len(rows) + 1) if i != 29]
    places = [(key, start >> OUTPUT_BITS) for block in blocks for key, start, _ in block.row_parts]
    assert places == sorted(places) and len(places) == len(rows)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_a_table_that_nothing_is_done_to_have_places_of_their_own(engine: EngineName) -> None:
    table = Arrays(i=np.arange(40), split_rows=15)
    blocks, error = blocks_of(PecanPipeline(table, engine=engine).batch(8), "skip")
    assert error is None and [i for block in blocks for i in block.columns["i"]] == [*range(40)]
    elements = [(key[2], start >> OUTPUT_BITS) for block in blocks for key, start, _ in block.row_parts]
    assert elements == [divmod(i, 15) for i in range(40)]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_stands_before_data_that_cannot_be_read_is_given_up(engine: EngineName) -> None:
    def broken_at_6(number: int) -> Element:
        if number == 6:
            raise CorruptSourceError("byte 17 is broken")
        return {"i": number}

    pipe = PecanPipeline(Numbered(10, make=broken_at_6, known=True), engine=engine).filter(even, on="i")
    blocks, error = blocks_of(pipe.batch(4))
    assert isinstance(error, CorruptSourceError)
    assert [(i, block.partial) for block in blocks for i in block.columns["i"]] == [(0, False), (2, False), (4, False)]
    came: list[Any] = []
    with pytest.raises(CorruptSourceError):
        came.extend(run_in_process(pipe.skip(1).plan, engine=engine))
    assert [row["i"] for row in came] == [2, 4], "and so it is where rows are not joined"


def test_blocks_of_a_graph_end_where_shapes_change() -> None:
    def widened(element: Element) -> Element:
        import tensorflow as tf

        return {**element, "wide": tf.zeros([tf.where(tf.logical_and(element["i"] >= 24, element["i"] < 34), 2, 1)])}

    blocks, error = blocks_of(numbers(engine="tensorflow").filter(even, on="i").map(widened).batch(8))
    shapes = [block.columns["wide"].shape for block in blocks]
    assert error is None and shapes == [(8, 1), (4, 1), (5, 2), (3, 1)], "of 24, 10 and 6 elements"
    assert [i for block in blocks for i in block.columns["i"]] == list(range(0, 40, 2))


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
