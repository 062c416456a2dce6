"""A shuffle reads several splits at a time: sorted files are mixed, and each element comes once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.side_by_side import MAX_OPEN_BYTES, ONE_AFTER_THE_OTHER, Streams, in_turn
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Shuffle
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sources import Arrays, Parquet

Rows: TypeAlias = npt.NDArray[Any]

CLASSES, EACH = 10, 400
BOTH = pytest.mark.parametrize("engine", ["python", "tensorflow"])


def sorted_shards(engine: EngineName = "python") -> PecanPipeline:
    """Ten splits with one class each."""
    rows = np.arange(CLASSES * EACH)
    return PecanPipeline(Arrays(i=rows, y=rows // EACH, split_rows=EACH), engine=engine)


def rows_of(pipe: PecanPipeline, epoch: int = 0) -> list[Rows]:
    """The rows of each batch of a pass."""
    return [batch["i"] for batch in run_inprocess(pipe.plan, engine=pipe.engine, epoch=epoch)]


def classes(batches: list[Rows]) -> float:
    """How many classes a batch holds in the mean."""
    return float(np.mean([len(set((rows // EACH).tolist())) for rows in batches]))


@BOTH
def test_a_batch_of_sorted_shards_holds_all_classes_by_default(engine: EngineName) -> None:
    pipe = sorted_shards(engine).shuffle(1000).batch(100)
    first, second = rows_of(pipe), rows_of(pipe, 1)
    assert classes(first) > 9.5
    for one in (first, second):
        assert sorted(np.concatenate(one)) == list(range(CLASSES * EACH))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second)), "each pass has an order of its own"
    assert np.array_equal(np.concatenate(first), np.concatenate(rows_of(pipe)))


def test_the_number_of_splits_is_the_users() -> None:
    held = [classes(rows_of(sorted_shards().shuffle(100, splits=splits).batch(100))) for splits in (1, 3, 10)]
    assert held[0] < 2.5 and 2.5 < held[1] < 4.5 and held[2] > 9.5


@BOTH
def test_repetitions_are_not_mixed(engine: EngineName) -> None:
    rows = np.concatenate(rows_of(sorted_shards(engine).shuffle(100).repeat(2).batch(100)))
    for half in (rows[: CLASSES * EACH], rows[CLASSES * EACH :]):
        assert sorted(half) == list(range(CLASSES * EACH))


def test_what_take_and_skip_choose_is_mixed_too() -> None:
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
    listed = [Lease(0, Split(index), repetition=number) for index, (number, _) in enumerate(sorted(leases))]
    sizes = [size for _, size in sorted(leases)]
    given = Given(list(listed), iter(rejects))

    def read(lease: Lease) -> Iterator[tuple[int, int, int]]:
        return ((lease.repetition, lease.split.index, row) for row in range(sizes[lease.split.index]))

    came = list(in_turn(given.take, Streams(count, turn), read, lambda _: 1))
    assert sorted(came) == [
        (one.repetition, one.split.index, n) for one in listed for n in range(sizes[one.split.index])
    ]
    assert [number for number, _, _ in came] == sorted(number for number, _, _ in came)
    for index in range(len(listed)):
        rows = [row for _, split, row in came if split == index]
        assert rows == sorted(rows)
    assert given.most <= count
