"""Shards of tf.data pipelines: their ends, and what means another thing for a shard than for the whole."""

from __future__ import annotations

import functools
import logging
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.engines.tensorflow.own_seed import without_global_seed
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_seeds import DatasetPass
from tests.unit.engines.engine_leases import ListedLeases, delivered
from tests.unit.engines.tensorflow_rig import run

SHARDS = 4


def part(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(40).shard(num_shards, index)


def endless(num_shards: int, index: int) -> Any:
    return part(num_shards, index).repeat()


def endless_behind_a_filter(num_shards: int, index: int) -> Any:
    return part(num_shards, index).repeat().filter(lambda n: n % 2 == 0).map(lambda n: n + 1).batch(2).prefetch(1)


def repeated_twice(num_shards: int, index: int) -> Any:
    return part(num_shards, index).repeat(2)


def repeated_and_cut(num_shards: int, index: int) -> Any:
    return part(num_shards, index).repeat().filter(lambda n: n % 2 == 0).take(3)


def beside_a_counter(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.zip((part(num_shards, index), tf.data.Dataset.counter()))


def dropping(num_shards: int, index: int) -> Any:
    return part(num_shards, index).batch(64, drop_remainder=True)


def dropping_behind_a_filter(num_shards: int, index: int) -> Any:
    return part(num_shards, index).filter(lambda n: n > 2).padded_batch(2, drop_remainder=True).map(lambda n: n + 1)


def dropping_nothing(num_shards: int, index: int) -> Any:
    return part(num_shards, index).batch(5, drop_remainder=True)


def sliding(num_shards: int, index: int) -> Any:
    windows = part(num_shards, index).window(3, shift=1, drop_remainder=True)
    return windows.flat_map(lambda window: window.batch(3, drop_remainder=True))


def opened(make: Callable[..., Any], num_shards: int = SHARDS) -> Any:
    source = TfDataSource(make, num_shards=num_shards)
    return source.dataset(next(source.splits()))


@pytest.mark.parametrize("make", [endless, endless_behind_a_filter])
def test_one_of_several_shards_that_has_no_end_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(errors.PlanError, match=r"a shard of endless.* has no end.*epochs=") as caught:
        opened(make)
    assert "Leave .repeat() out" in caught.value.message
    opened(make, num_shards=1)


@pytest.mark.parametrize("make", [dropping, dropping_behind_a_filter])
def test_a_remainder_of_each_shard_is_not_dropped(make: Callable[..., Any]) -> None:
    with pytest.raises(errors.PlanError, match="drops a remainder of each of its 4 shards"):
        opened(make)
    opened(make, num_shards=1)


@pytest.mark.parametrize("make", [repeated_twice, repeated_and_cut, beside_a_counter, dropping_nothing, sliding])
def test_shards_that_lose_nothing_are_read(make: Callable[..., Any]) -> None:
    assert len(list(opened(make))) == len(list(make(SHARDS, 0)))


def counting(num_shards: int, index: int) -> Any:
    return part(num_shards, index).skip(2).map(lambda n: n).take(3).batch(2)


def counting_first(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(40).skip(2).shard(num_shards, index)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (counting, "counting calls take and skip on its shards: the number counts in each of the 4 shards"),
        (counting_first, None),
    ],
)
def test_what_means_another_thing_for_a_shard_is_warned_of_once(
    make: Callable[..., Any], words: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pecan_ray"):
        opened(make)
        opened(make)
        if make is counting:
            opened(make, num_shards=1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (words is not None), said
    assert words is None or re.search(words, said[0])


# --- random numbers ------------------------------------------------------------------------------------------


def passes(make: Callable[..., Any], *, seed: int = 0, epochs: int = 2) -> list[list[list[Any]]]:
    """Return what each of two shards yields in each epoch."""
    source = TfDataSource(make, num_shards=2, place=DatasetPass(seed))
    return [
        [
            [tuple(map(float, element.values())) for element in source.of_lease(Lease(epoch, split)).read(split)]
            for split in source.splits()
        ]
        for epoch in range(epochs)
    ]


def with_seed(num_shards: int, index: int) -> Any:
    return part(num_shards, index).map(lambda n: (n, tf.random.uniform([], seed=1)))


def with_global_seed(num_shards: int, index: int) -> Any:
    tf.random.set_seed(5)
    return part(num_shards, index).map(lambda n: (n, tf.random.uniform([])))


def twice_without_seed(num_shards: int, index: int) -> Any:
    drawn = part(num_shards, index).map(lambda n: (n, tf.random.uniform([])))
    return drawn.map(lambda n, x: (n, x, tf.random.uniform([])))


def with_generator(num_shards: int, index: int) -> Any:
    generator = tf.random.Generator.from_seed(1)
    return part(num_shards, index).map(lambda n: (n, generator.uniform([])))


def with_layer(num_shards: int, index: int) -> Any:
    layer = tf.keras.layers.RandomBrightness(0.5, value_range=(0, 1), seed=3)
    return part(num_shards, index).map(lambda n: (n, layer(tf.ones([1, 1, 3]) * 0.5, training=True)[0, 0, 0]))


def beside_random(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.zip(part(num_shards, index), tf.data.Dataset.random(seed=1))


@pytest.mark.parametrize(
    "make", [with_seed, with_global_seed, twice_without_seed, with_generator, with_layer, beside_random]
)
def test_each_shard_and_each_epoch_draws_numbers_of_its_own_and_the_same_again(make: Callable[..., Any]) -> None:
    def drawn(seed: int) -> list[float]:
        return [x for epoch in passes(make, seed=seed) for shard in epoch for _, *draws in shard for x in draws]

    first = drawn(0)
    assert len(set(first)) == len(first) >= 80
    assert drawn(0) == first and not set(drawn(1)) & set(first)
    with without_global_seed():
        alone = [x for element in make(2, 0) for x in map(float, element[1:])]
    assert (first[: len(alone)] == alone) is (make is not twice_without_seed), "as in tf.data, if there is a seed"


def shuffled_and_sharded(num_shards: int, index: int) -> Any:
    data = tf.data.Dataset.range(40).shuffle(40).map(lambda n: n).shard(num_shards, index)
    return data.map(lambda n: (n, tf.random.uniform([])))


def shuffled_within(num_shards: int, index: int) -> Any:
    tens = tf.data.Dataset.range(4).interleave(lambda n: tf.data.Dataset.range(10 * n, 10 * n + 10).shuffle(10))
    return tens.shard(num_shards, index)


def sharded_by_hand(num_shards: int, index: int) -> Any:
    order = list(range(40))
    random.shuffle(order)
    return tf.data.Dataset.from_tensor_slices(tf.random.shuffle(order)[index::num_shards])


def sharded_by_a_filter(num_shards: int, index: int) -> Any:
    numbered = tf.data.Dataset.range(40).shuffle(40, seed=1).enumerate()
    return numbered.filter(lambda place, n: place % num_shards == index).map(lambda place, n: n)


def sampled(num_shards: int, index: int) -> Any:
    halves = [tf.data.Dataset.range(20), tf.data.Dataset.range(20, 40)]
    return tf.data.Dataset.sample_from_datasets(halves, seed=4).shard(num_shards, index)


@pytest.mark.parametrize("make", [shuffled_and_sharded, shuffled_within, sharded_by_hand, sharded_by_a_filter, sampled])
def test_what_decides_which_elements_a_shard_has_is_alike_in_all_shards(make: Callable[..., Any]) -> None:
    first, second = passes(make)
    assert sorted(row[0] for shard in first for row in shard) == list(range(40))
    assert [row[0] for shard in first for row in shard] != [row[0] for shard in second for row in shard]
    draws = [row[1] for shard in first for row in shard if len(row) > 1]
    assert len(set(draws)) == len(draws), "what is behind .shard() differs"


def test_a_function_may_take_epoch_and_seed() -> None:
    got: list[tuple[int, ...]] = []

    def make(epoch: int, num_shards: int, index: int, *, seed: int) -> Any:
        got.append((epoch, num_shards, index, seed))
        return part(num_shards, index)

    def own(seed: int = 3, epoch: int = 7) -> Any:
        got.append((seed, epoch))
        return part(1, 0)

    passes(make, seed=9)
    assert got == [(epoch, 2, index, 9) for epoch in range(2) for index in range(2)]
    got.clear()
    passes(own, seed=9)
    passes(functools.partial(own, epoch=4), seed=9, epochs=1)
    assert got == [(3, 0), (3, 1), (3, 4)], "a value that the user has given stays"
    with pytest.raises(errors.PlanError, match="beside them it may take epoch and seed"):
        passes(lambda epoch, shard: None)


def test_what_seeds_do_not_reach_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    flip = tf.keras.layers.RandomFlip(seed=3)
    rng, lottery = np.random.default_rng(1), random.Random(1)
    numbers = tf.data.Dataset.range(4)

    def draw(number: Any) -> Any:
        return np.float32(rng.random())

    def draws() -> Any:
        yield lottery.random()

    def read(number: Any) -> Any:
        return np.float32(number)

    def outside() -> Any:
        return numbers.map(lambda n: flip(tf.zeros([4, 4, 3]), training=True))

    def called() -> Any:
        return numbers.map(lambda n: tf.numpy_function(draw, [n], tf.float32))

    def eager() -> Any:
        return numbers.map(lambda n: tf.py_function(functools.partial(draw), [n], tf.float32))

    def generated() -> Any:
        return tf.data.Dataset.from_generator(draws, output_signature=tf.TensorSpec([], tf.float64))

    def quiet() -> Any:
        counter = tf.Variable(0)
        return numbers.map(lambda n: tf.numpy_function(read, [n], tf.float32)).map(lambda n: counter.assign_add(1))

    for make in (outside, called, eager, generated, quiet):
        opened(make)
        opened(make)
    outside_said, *generators_said = [record.getMessage() for record in caplog.records if record.name == "pecan_ray"]
    assert "moves on a state that was made outside of it (AssignVariableOp)" in outside_said
    found = [re.findall(r"(\w+) draws random numbers by ([^.]+)\.", said)[0] for said in generators_said]
    assert found == [
        ("called", "PyFunc (a Generator of numpy)"),
        ("eager", "EagerPyFunc (a Generator of numpy)"),
        ("generated", "PyFunc (a Random of random)"),
    ]


@pytest.mark.parametrize(("first", "last", "count"), [(5, 8, 3), (5, 100, 5), (10, 12, 0), (64, 128, 0)])
def test_a_lease_of_some_elements_tells_that_the_shard_ends_in_it_or_before_it(
    first: int, last: int, count: int
) -> None:
    """What two workers have died with is given out in pieces, some of which lie behind the end of an unknown length."""
    pipe = pecan.PecanPipeline.from_tf_data(part, num_shards=SHARDS)
    (source,) = pipe.plan.sources()
    lease = Lease(0, next(iter(source.splits())), spans=((first << OUTPUT_BITS, last << OUTPUT_BITS),))
    leases = ListedLeases([lease])
    batches = run(pipe, leases)
    assert sum(batch.rows for batch in batches) == count
    assert leases.wanted() == delivered(batches), "else the job waits for the rest"
