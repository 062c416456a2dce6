"""What is read ahead: `prefetch(n)` items in each way to run a plan, and several splits for a shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.side_by_side import MAX_OPEN_BYTES, ONE_AFTER_THE_OTHER, Streams, in_turn
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Shuffle
from pecan_ray.plan.splits import Columns, Element, Lease, Split
from pecan_ray.sources import Arrays, Parquet
from tests.ray.waiting import until
from tests.unit.engines.engine_leases import OwnSource, numbers, running

ROWS = 10_000


class Watched(OwnSource):
    """Ten thousand numbers, of which it is known how many have been read; in tens, if they are asked for as columns."""

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


def test_what_is_cut_out_of_columns_is_ready_too_and_errors_reach_the_reader() -> None:
    columns = WatchedColumns()
    with running(PecanPipeline(columns).prefetch(400).batch(10), order="strict") as (_, batches):
        next(batches)
        columns.reaches(410)
    stopped = PecanPipeline(Watched()).map(lambda x: 1 // (7 - int(x)), on="i").prefetch(4)
    with running(stopped, order="strict") as (_, batches), pytest.raises(Exception, match="element 7 of split 0: Zero"):
        list(batches)


IN_A_GRAPH: list[tuple[Callable[[PecanPipeline], PecanPipeline], int]] = [
    (lambda pipe: pipe.prefetch(300), 1),
    (lambda pipe: pipe.batch(5).prefetch(60), 5),
    (lambda pipe: pipe.prefetch(300).batch(5), 5),
    (lambda pipe: pipe.shuffle(1).prefetch(300), 1),
]


@pytest.mark.parametrize(("build", "taken_at_a_time"), IN_A_GRAPH)
def test_so_many_items_are_ready_in_a_graph(build: Callable[..., PecanPipeline], taken_at_a_time: int) -> None:
    calls: list[int] = []

    def note(i: Any) -> Any:
        calls.append(int(i))
        return i

    def counted(i: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(note, [i], i.dtype), i.shape)

    def made(wanted: int) -> bool:
        return len(calls) >= wanted

    pipe = build(numbers(ROWS, ROWS, engine="tensorflow").map(counted, on="i", name="count"))
    with running(pipe, order="strict") as (_, batches):
        for taken in range(1, 6):
            assert next(batches).rows == taken_at_a_time
            wanted = taken * taken_at_a_time + 300
            until(partial(made, wanted), lambda: f"only {len(calls)} were made")


CLASSES, EACH = 10, 400
ENGINES: list[EngineName] = ["python", "tensorflow"]


def sorted_shards(engine: EngineName = "python") -> PecanPipeline:
    """Ten splits with one class each."""
    rows = np.arange(CLASSES * EACH)
    return PecanPipeline(Arrays(i=rows, y=rows // EACH, split_rows=EACH), engine=engine)


def rows_of(pipe: PecanPipeline, epoch: int = 0) -> list[Any]:
    """The rows of each batch of a pass."""
    return [batch["i"] for batch in run_in_process(pipe.plan, engine=pipe.engine, epoch=epoch)]


def classes(batches: list[Any]) -> float:
    """How many classes a batch holds in the mean."""
    return float(np.mean([len(set((rows // EACH).tolist())) for rows in batches]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_sorted_shards_holds_all_classes_by_default_and_repetitions_are_not_mixed(
    engine: EngineName,
) -> None:
    pipe = sorted_shards(engine).shuffle(1000).batch(100)
    assert classes(rows_of(pipe)) > 9.5
    first, second, again = (np.concatenate(rows_of(pipe, epoch)) for epoch in (0, 1, 0))
    repeated = np.concatenate(rows_of(sorted_shards(engine).shuffle(100).repeat(2).batch(100)))
    for one in (first, second, repeated[: CLASSES * EACH], repeated[CLASSES * EACH :]):
        assert sorted(one) == list(range(CLASSES * EACH))
    assert not np.array_equal(first, second), "each pass has an order of its own"
    assert np.array_equal(first, again)


def test_the_number_of_splits_is_the_users_and_what_take_and_skip_choose_is_mixed_too() -> None:
    held = [classes(rows_of(sorted_shards().shuffle(100, splits=splits).batch(100))) for splits in (1, 3, 10)]
    assert held[0] < 2.5 and 2.5 < held[1] < 4.5 and held[2] > 9.5
    shuffled = sorted_shards().shuffle(1000)
    for chosen in (shuffled.take(EACH), shuffled.skip(9 * EACH)):
        batches = rows_of(chosen.batch(100))
        assert sum(map(len, batches)) == EACH and classes(batches) > 8


def test_memory_and_the_buffer_bound_how_many_are_read() -> None:
    asked, arrays = Shuffle(name="s", buffer=1000, splits=10), Arrays(i=np.arange(3))
    assert Streams.of(asked, arrays) == Streams(10, 50)
    assert Streams.of(Shuffle(name="s", buffer=4, splits=10), arrays) == Streams(4, 1)
    assert Streams.of(asked, Parquet("p", split_bytes=MAX_OPEN_BYTES // 3)).count == 3
    assert Streams.of(asked, Parquet("p", split_bytes=4 * MAX_OPEN_BYTES)).count == 1
    assert Streams.of(None, arrays) == ONE_AFTER_THE_OTHER


@dataclass
class Given:
    """Leases of several passes, of which there is none beside others now and then."""

    leases: list[Lease]
    rejects: Iterator[bool]
    most: int = field(default=0, init=False)

    def take(self, reading: int) -> Lease | None:
        self.most = max(self.most, reading + 1)
        if not self.leases or (reading and next(self.rejects, False)):
            return None
        return self.leases.pop(0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7)), max_size=12),
    st.lists(st.booleans(), max_size=20),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_all_of_each_lease_comes_in_its_order_and_passes_one_after_the_other(
    leases: list[tuple[int, int]], rejects: list[bool], count: int, turn: int
) -> None:
    listed = [Lease(0, Split(index), pass_index=number) for index, (number, _) in enumerate(sorted(leases))]
    sizes = [size for _, size in sorted(leases)]
    given = Given(list(listed), iter(rejects))

    def read(lease: Lease) -> Iterator[tuple[int, int, int]]:
        return ((lease.pass_index, lease.split.index, row) for row in range(sizes[lease.split.index]))

    came = list(in_turn(given.take, Streams(count, turn), read, lambda _: 1))
    assert sorted(came) == [
        (one.pass_index, one.split.index, n) for one in listed for n in range(sizes[one.split.index])
    ]
    assert [number for number, _, _ in came] == sorted(number for number, _, _ in came)
    for index in range(len(listed)):
        rows = [row for _, split, row in came if split == index]
        assert rows == sorted(rows)
    assert given.most <= count
