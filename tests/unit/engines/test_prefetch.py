"""`prefetch(n)`: so many items are ready ahead of what takes them, whichever way the python engine runs the plan."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.python import PythonEngine
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Columns, Element, Split
from tests.unit.engines.engine_leases import ListedLeases, whole_leases

ROWS = 10_000
WAIT_S = 30.0
WORK_S = 0.004
"""More than a chunk's worth of work: elements go to the pool one by one."""


class Watched:
    """Numbers in one split, whose reading can be waited for."""

    def __init__(self) -> None:
        self.read_so_far = 0
        self._more = threading.Condition()

    def splits(self) -> Iterator[Split]:
        """Yield the split."""
        yield Split(0, elements=ROWS)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers."""
        for number in range(start, ROWS):
            self._note(number + 1)
            yield {"i": np.int64(number)}

    def num_elements(self) -> int:
        """Return the number of elements."""
        return ROWS

    def identity(self) -> str:
        """Return a constant: the numbers never change."""
        return "watched"

    def _note(self, count: int) -> None:
        with self._more:
            self.read_so_far = count
            self._more.notify_all()

    def reaches(self, count: int) -> bool:
        """Wait until so many elements were read."""
        with self._more:
            return self._more.wait_for(lambda: self.read_so_far >= count, WAIT_S)


class WatchedColumns(Watched):
    """The same, by columns of ten."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the numbers."""
        for first in range(start, ROWS, 10):
            self._note(first + 10)
            yield {"i": np.arange(first, first + 10)}


@contextlib.contextmanager
def running(pipe: PecanPipeline) -> Iterator[Iterator[Produced]]:
    sources = tuple(pipe.plan.sources())
    engine = PythonEngine(pipe.plan, sources, EngineOptions(order="strict"), HeapSlots())
    with contextlib.closing(engine), contextlib.closing(engine.batches(ListedLeases(whole_leases(sources)))) as batches:
        yield batches


def worked(x: np.int64) -> np.int64:
    time.sleep(WORK_S)
    return x


@pytest.mark.parametrize(
    ("build", "taken_at_a_time", "ready", "held"),
    [
        (lambda pipe: pipe.prefetch(30), 1, 30, 0),
        (lambda pipe: pipe.shuffle(1).prefetch(30), 1, 30, 0),
        (lambda pipe: pipe.padded_batch(5).prefetch(30), 5, 150, 0),
        (lambda pipe: pipe.prefetch(30).padded_batch(30), 30, 30, 0),
        (lambda pipe: pipe.take(2000).prefetch(30), 1, 30, 1),  # the last batch of a whole plan is told apart
    ],
)
def test_so_many_items_are_ready_and_no_more(
    build: Callable[[PecanPipeline], PecanPipeline], taken_at_a_time: int, ready: int, held: int
) -> None:
    source = Watched()
    with running(build(PecanPipeline(source))) as batches:
        for number in range(1, 6):
            next(batches)
            expected = number * taken_at_a_time + held + ready
            assert source.reaches(expected), f"only {source.read_so_far} were read"
            assert source.read_so_far == expected


def test_batches_that_threads_write_are_ready_too() -> None:
    source = Watched()
    with running(PecanPipeline(source).map(worked, on="i").batch(1).prefetch(60)) as batches:
        next(batches)
        assert source.reaches(61), f"only {source.read_so_far} were read"


def test_batches_cut_out_of_columns_are_ready_and_no_more() -> None:
    source = WatchedColumns()
    with running(PecanPipeline(source).batch(10).prefetch(40)) as batches:
        for taken in range(1, 4):
            next(batches)
            assert source.reaches(10 * (taken + 40))
            assert source.read_so_far == 10 * (taken + 40)
    source = WatchedColumns()
    with running(PecanPipeline(source).prefetch(400).batch(10)) as batches:
        next(batches)
        assert source.reaches(410)


def test_what_stopped_the_reading_reaches_the_reader() -> None:
    pipe = PecanPipeline(Watched()).map(lambda x: 1 // (7 - int(x)), on="i").prefetch(4)
    with running(pipe) as batches, pytest.raises(Exception, match="element 7 of split 0: ZeroDivisionError"):
        list(batches)
