"""Functions of tf.data pipelines are traced once for all shards and passes, as long as they are the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pecan_ray.plan.splits import Lease
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_seeds import DatasetPass

settings = {"add": 0}


class Notes:
    """Which functions were traced; a function that holds it does not change with it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __reduce__(self) -> tuple[type[Notes], tuple[()]]:
        return Notes, ()


notes = Notes()


def numbers(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(12).shard(num_shards, index)


def read(source: TfDataSource, epochs: int = 2) -> list[list[tuple[Any, ...]]]:
    """Return the elements of each shard in each epoch."""
    return [
        [tuple(map(float, row.values())) for row in source.of_lease(Lease(epoch, split)).read(split)]
        for epoch in range(epochs)
        for split in source.splits()
    ]


def anew(make: Callable[..., Any], seed: int = 0, epochs: int = 2) -> list[list[tuple[Any, ...]]]:
    """Return the same, each read by a source that has traced nothing yet but knows which seeds are alike."""
    source = TfDataSource(make, num_shards=3, place=DatasetPass(seed))
    read(source, 1)

    def untraced() -> TfDataSource:
        return TfDataSource(source.make_dataset, num_shards=3, place=source.place, scope_types=source.scope_types)

    return [
        [tuple(map(float, row.values())) for row in untraced().of_lease(Lease(epoch, split)).read(split)]
        for epoch in range(epochs)
        for split in source.splits()
    ]


def plain(n: Any) -> Any:
    notes.names.append("plain")
    return n * 2 + settings["add"]


def drawing(n: Any) -> Any:
    notes.names.append("drawing")
    return n, tf.cond(n > 3, lambda: tf.random.uniform([], seed=1), lambda: tf.random.uniform([]))


def within(n: Any) -> Any:
    notes.names.append("within")
    return tf.data.Dataset.range(n, n + 9).shuffle(9).take(2)


@pytest.fixture(autouse=True)
def nothing_traced() -> None:
    notes.names.clear()
    settings["add"] = 0


KINDS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda data: data.map(plain).filter(lambda n: n > 0),
    "drawing": lambda data: data.map(drawing, num_parallel_calls=1).map(lambda n, x: (n, x, x + tf.random.normal([]))),
    "shuffling within": lambda data: data.flat_map(within),
    "alike": lambda data: tf.data.Dataset.zip(data.map(drawing), data.map(drawing)),
}


@pytest.mark.parametrize("kind", [*KINDS, "a dataset of all"])
@pytest.mark.parametrize("seed", [0, 5])
def test_what_functions_give_that_were_traced_for_another_shard_or_pass_is_what_new_ones_give(
    kind: str, seed: int
) -> None:
    def flat(num_shards: int, index: int) -> Any:
        of_all = tf.data.Dataset.range(12).shuffle(12).map(drawing).shard(num_shards, index)
        made = KINDS[kind](numbers(num_shards, index)) if kind in KINDS else of_all
        return made.map(lambda *parts: tuple(tf.nest.flatten(parts)))

    source = TfDataSource(flat, num_shards=3, place=DatasetPass(seed))
    first = read(source)
    assert first == anew(flat, seed) and read(source) == first
    draws = [x for shard in first for row in shard for x in row if 0 < x < 1]
    assert len(set(draws)) >= len(draws) // 2, "those of an image and its mask are alike, and no others"


def test_a_function_is_traced_once_for_all_shards_and_passes() -> None:
    def made(num_shards: int, index: int) -> Any:
        return numbers(num_shards, index).map(lambda n: plain(n)).map(drawing)

    source = TfDataSource(made, num_shards=3)
    read(source, 3)
    once = ["plain", "drawing", "drawing"]  # the first shard has the user's own seeds, which stay where they are
    assert notes.names == once
    read(pickle.loads(pickle.dumps(TfDataSource(numbers, num_shards=3))), 1)
    read(TfDataSource(made, num_shards=3), 1)
    assert notes.names == 2 * once, "nothing is kept for another pipeline"


def test_a_function_that_has_changed_is_traced_again() -> None:
    table = [tf.constant(3), np.arange(3)]

    def made(num_shards: int, index: int, epoch: int) -> Any:
        settings["add"] = 100 * epoch
        table[1][0] = 7 * epoch
        data = numbers(num_shards, index).map(plain).map(lambda n: n + index * 1000)
        return data.map(lambda n: n + tf.cast(table[0], tf.int64) + table[1][0])

    got = [row[0] for shard in read(TfDataSource(made, num_shards=3)) for row in shard]
    wanted = [2 * n + 107 * e + 1000 * i + 3 for e in range(2) for i in range(3) for n in range(i, 12, 3)]
    assert got == wanted and notes.names == ["plain", "plain"]


def test_a_function_with_a_state_belongs_to_its_dataset() -> None:
    def made(num_shards: int, index: int) -> Any:
        counter, calls = tf.Variable(0, dtype=tf.int64), [0]

        def count(_: Any) -> Any:
            calls[0] += 1
            return np.int64(calls[0])

        def called(n: Any) -> Any:
            return counter.assign_add(1), tf.numpy_function(count, [n], tf.int64)

        by_hash = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [index]), 99)
        return numbers(num_shards, index).map(lambda n: (*called(n), by_hash.lookup(tf.cast(n * 0, tf.int32))))

    assert read(TfDataSource(made, num_shards=3)) == 2 * [
        [(float(n), float(n), float(index)) for n in range(1, 5)] for index in range(3)
    ]


def test_numbers_that_are_drawn_while_a_function_is_traced_are_those_of_each_pass() -> None:
    def made(num_shards: int, index: int) -> Any:
        return numbers(num_shards, index).map(lambda n: tf.constant(np.random.random()) + 0 * tf.cast(n, tf.float32))

    first, *_, last = read(TfDataSource(made, num_shards=3))
    assert first[0] != last[0]
