"""Errors have a place in the sequence: what stands before one comes first, and `take` may end before it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases, run_in_process
from pecan_ray.engines.registry import build_engine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.errors import PecanError
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Columns, Element, Split
from tests.unit.engines.engine_leases import Numbered

FORMS: dict[str, tuple[Callable[[PecanPipeline], PecanPipeline], int, list[int]]] = {
    "map": (lambda p: p.map(lambda e: e).take(5), 5, [0, 1, 2, 3, 4]),
    "filter": (lambda p: p.filter(lambda i: i % 2 == 0, on="i").take(3).batch(2), 5, [0, 2, 4]),
    "skip": (lambda p: p.map(lambda e: e).skip(2).take(3), 5, [2, 3, 4]),
    "column": (lambda p: p.map(lambda i: i, on="i").take(5).batch(3), 5, [0, 1, 2, 3, 4]),
    "batches": (lambda p: p.map(lambda e: e).batch(3).take(2), 6, [0, 1, 2, 3, 4, 5]),
    "passes": (lambda p: p.map(lambda e: e).take(2).repeat(2), 2, [0, 1, 0, 1]),
}
"""By name: a pipeline, how many elements it takes, and what it yields."""


class InColumns(Numbered):
    """Gives its rows as columns too."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        for element in self.read(split, start):
            yield {"i": np.array([element["i"]])}


def batches_of(pipe: PecanPipeline, engine: EngineName, threads: int) -> Iterator[dict[str, Any]]:
    """Yield what an engine makes of all leases, in order; with 0 threads what a debug run makes."""
    if not threads:
        yield from run_in_process(pipe.plan, engine=engine)
        return
    leases = AllLeases(tuple(pipe.plan.sources()), 0, plan_shape(pipe.plan).num_passes)
    with contextlib.closing(
        build_engine(engine, pipe.plan, EngineOptions(order="strict", threads=threads), HeapSlots())
    ) as built:
        yield from (one.columns for one in built.batches(leases) if one.rows)


def numbers(bad: int, engine: EngineName, source: type[Numbered] = Numbered) -> PecanPipeline:
    """Numbers in splits of ten, of which one cannot be read."""

    def make(number: int) -> Element:
        if number == bad:
            raise ValueError(f"{number} is bad")
        return {"i": np.int64(number)}

    return PecanPipeline(source(10, 10, make=make), engine=engine)


def rows_of(batches: Iterator[dict[str, Any]]) -> tuple[list[int], bool]:
    """Return the rows that come, and whether an error follows."""
    rows: list[int] = []
    try:
        for batch in batches:
            rows += np.atleast_1d(batch["i"]).tolist()
    except PecanError:
        return rows, True
    return rows, False


each_way = pytest.mark.parametrize(
    ("engine", "threads"), [("python", 0), ("python", 1), ("python", 3), ("tensorflow", 0), ("tensorflow", 2)]
)
"""With 0 threads as a debug run."""


@each_way
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_taken_may_be_unreadable(form: str, engine: EngineName, threads: int) -> None:
    make, first, expected = FORMS[form]
    for source, bad in ((Numbered, first), (Numbered, 10), (InColumns, first)):
        pipe = make(numbers(bad, engine, source))
        assert rows_of(batches_of(pipe, engine, threads)) == (expected, False), (source, bad)


@each_way
def test_all_batches_before_an_error_come_where_elements_are_left_out(engine: EngineName, threads: int) -> None:
    pipe = numbers(8, engine).map(lambda e: e).skip(2).batch(2)
    assert rows_of(batches_of(pipe, engine, threads)) == ([2, 3, 4, 5, 6, 7], True)
