"""`prefetch(n)`: so many items are ready ahead of what takes them, whichever way an engine runs the plan."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Columns, Element, Split
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import ListedLeases, OwnSource, running, whole_leases

ROWS = 10_000
WORK_S = 0.004
"""More than a chunk's worth of work: elements go to the pool one by one."""


class Watched(OwnSource):
    def __init__(self) -> None:
        self.read_so_far = 0

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for number in range(start, ROWS):
            self.read_so_far = number + 1
            yield {"i": np.int64(number)}

    def reaches(self, count: int) -> None:
        until(lambda: self.read_so_far >= count, lambda: f"only {self.read_so_far} of {count} were read")


class WatchedColumns(Watched):
    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        for first in range(start, ROWS, 10):
            self.read_so_far = first + 10
            yield {"i": np.arange(first, first + 10)}


def work_done(x: np.int64) -> np.int64:
    time.sleep(WORK_S)
    return x


@pytest.mark.parametrize(
    ("source", "build", "taken_at_a_time", "ready"),
    [
        (Watched, lambda pipe: pipe.prefetch(30), 1, 30),
        (Watched, lambda pipe: pipe.shuffle(1).prefetch(30), 1, 30),
        (Watched, lambda pipe: pipe.padded_batch(5).prefetch(30), 5, 150),
        (Watched, lambda pipe: pipe.prefetch(30).padded_batch(30), 30, 30),
        (Watched, lambda pipe: pipe.take(2000).prefetch(30), 1, 31),  # the last batch of a whole plan is told apart
        (WatchedColumns, lambda pipe: pipe.batch(10).prefetch(40), 10, 400),
    ],
)
def test_so_many_items_are_ready_and_no_more(
    source: type[Watched], build: Callable[[PecanPipeline], PecanPipeline], taken_at_a_time: int, ready: int
) -> None:
    watched = source()
    with running(build(PecanPipeline(watched)), order="strict") as (_, batches):
        for number in range(1, 6):
            next(batches)
            watched.reaches(number * taken_at_a_time + ready)
            assert watched.read_so_far == number * taken_at_a_time + ready


@pytest.mark.parametrize(
    ("source", "build", "ready"),
    [
        (Watched, lambda pipe: pipe.map(work_done, on="i").batch(1).prefetch(60), 61),
        (WatchedColumns, lambda pipe: pipe.prefetch(400).batch(10), 410),
    ],
)
def test_batches_that_threads_write_or_that_are_cut_out_of_columns_are_ready_too(
    source: type[Watched], build: Callable[[PecanPipeline], PecanPipeline], ready: int
) -> None:
    watched = source()
    with running(build(PecanPipeline(watched)), order="strict") as (_, batches):
        next(batches)
        watched.reaches(ready)


def test_what_stopped_the_reading_reaches_the_reader() -> None:
    pipe = PecanPipeline(Watched()).map(lambda x: 1 // (7 - int(x)), on="i").prefetch(4)
    with running(pipe, order="strict") as (_, batches), pytest.raises(Exception, match="element 7 of split 0: ZeroDiv"):
        list(batches)


class Counted:
    def __init__(self) -> None:
        self.calls, self._lock = 0, threading.Lock()

    def __call__(self, i: Any) -> Any:
        given = tf.numpy_function(self._note, [i], i.dtype)
        given.set_shape(i.shape)
        return given

    def reaches(self, count: int) -> bool:
        return self.calls >= count

    def _note(self, i: Any) -> Any:
        with self._lock:
            self.calls += 1
        return i


@pytest.mark.parametrize(
    ("build", "taken_at_a_time", "ready"),
    [
        (lambda pipe: pipe.prefetch(300), 1, 300),
        (lambda pipe: pipe.batch(5).prefetch(60), 5, 300),
        (lambda pipe: pipe.prefetch(300).batch(5), 5, 300),
        (lambda pipe: pipe.shuffle(1).prefetch(300), 1, 300),
    ],
)
def test_so_many_items_are_ready_in_a_graph(
    build: Callable[[pecan.PecanPipeline], pecan.PecanPipeline], taken_at_a_time: int, ready: int
) -> None:
    counted = Counted()
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    pipe = build(pecan.PecanPipeline(source, engine="tensorflow").map(counted, on="i", name="count"))
    sources = tuple(pipe.plan.sources())
    engine = TensorFlowEngine(pipe.plan, sources, EngineOptions(order="strict"), HeapSlots())
    batches = engine.batches(ListedLeases(whole_leases(sources)))
    with contextlib.closing(engine), contextlib.closing(batches):
        for taken in range(1, 6):
            assert next(batches).rows == taken_at_a_time
            expected = taken * taken_at_a_time + ready
            until(partial(counted.reaches, expected), lambda: f"only {counted.calls} were made")
