"""The next shard of a tf.data pipeline is opened while the one before it is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.tensorflow import TensorFlowEngine, iterating
from pecan_ray.plan.splits import Lease
from tests.unit.engines.engine_leases import ListedLeases, delivered, whole_leases

ROWS, SHARDS = 40, 4
WAIT_S = 60.0


class LeasesBesideOthers(ListedLeases):
    """Leases that may be taken beside another one, as a job gives them that has enough for all workers."""

    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        assert (reading, streams) == (1, 2)
        return self.take(branch)


def plain(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(ROWS).shard(num_shards, index)


def mapped(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).map(lambda n: {"n": n, "draw": tf.random.uniform([])}).batch(3)


def shuffled(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).shuffle(ROWS)


def counting(num_shards: int, index: int) -> Any:
    count = tf.Variable(0)
    return plain(num_shards, index).map(lambda n: {"n": n, "count": count.assign_add(1)})


def python(num_shards: int, index: int) -> Any:
    return plain(num_shards, index).map(lambda n: tf.numpy_function(np.negative, [n], tf.int64))


class RangeRequest:
    """A function that makes a dataset, and tells which shards it has made."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self.produced: set[int] = set()
        self._changed = threading.Condition()

    def __call__(self, num_shards: int, index: int) -> Any:
        made = self._make(num_shards, index)
        with self._changed:
            self.produced.add(index)
            self._changed.notify_all()
        return made

    def wait_for(self, index: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: index in self.produced, WAIT_S)


def begun(make: Any, leases: Any = LeasesBesideOthers) -> tuple[Any, Iterator[Any]]:
    pipe = pecan.PecanPipeline.from_tf_data(make, num_shards=SHARDS)
    sources = list(pipe.plan.sources())
    given = leases(whole_leases(sources))
    return given, TensorFlowEngine(pipe.plan, sources, EngineOptions(), HeapSlots()).batches(given)


def values(produced: Any) -> list[str]:
    return [str({name: column.tolist() for name, column in one.columns.items()}) for one in produced]


@pytest.mark.parametrize("make", [plain, mapped, shuffled, counting])
def test_a_shard_is_opened_while_the_one_before_it_is_read_and_changes_nothing(make: Any) -> None:
    asked = RangeRequest(make)
    leases, batches = begun(asked)
    first = next(batches)
    assert asked.wait_for(1) and asked.produced == {0, 1}, "two at a time"
    produced = [first, *batches]
    assert delivered(produced) == leases.target()
    assert values(produced) == values(begun(make, ListedLeases)[1])


def test_a_shard_that_calls_python_is_not_overtaken() -> None:
    """What it calls may draw from the process's random generators, which belong to one shard at a time."""
    asked = RangeRequest(python)
    _, batches = begun(asked)
    for number, _ in enumerate(batches):
        assert asked.produced == set(range(number * SHARDS // ROWS + 1))


def test_an_error_of_a_shard_that_was_opened_ahead_comes_in_its_turn() -> None:
    def failing(num_shards: int, index: int) -> Any:
        data = plain(num_shards, index)
        return data.map(lambda n: tf.debugging.check_numerics(tf.math.log(tf.cast(n - 1, tf.float32)), "bad"))

    def refused(num_shards: int, index: int) -> Any:
        return plain(num_shards, index) if index == 0 else "no dataset"

    _, batches = begun(failing)  # the log of -1, and then of 0
    with pytest.raises(errors.OpError, match="element 0 of shard 0"):
        next(batches)
    _, batches = begun(refused)
    assert [next(batches).rows for _ in range(ROWS // SHARDS)] == [1] * (ROWS // SHARDS)
    with pytest.raises(errors.PlanError, match="returned str, not a"):
        next(batches)


def test_a_shard_that_was_opened_ahead_is_given_up_with_the_assignment() -> None:
    before = set(iterating._all)
    asked = RangeRequest(mapped)
    _, batches = begun(asked)
    next(batches)
    assert asked.wait_for(1)
    opened = set(iterating._all) - before
    batches.close()  # type: ignore[attr-defined]  # it is a generator
    for thread in threading.enumerate():
        if thread.name == "pecan-next-shard":
            thread.join(WAIT_S)
    opened |= set(iterating._all) - before
    assert opened and not any(one.is_open for one in opened)
