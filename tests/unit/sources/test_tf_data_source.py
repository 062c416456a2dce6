"""Shards of tf.data pipelines: their ends, and what means another thing for a shard than for the whole."""

from __future__ import annotations

import functools
import logging
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.plan.splits import OUTPUT_BITS, Lease
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_randomness import restarting_randomness
from tests.unit.engines.engine_leases import ListedLeases
from tests.unit.engines.tensorflow_rig import covered, run

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


def test_a_remainder_is_dropped_of_the_whole() -> None:
    pipe = pecan.PecanPipeline.from_tf_data(part, num_shards=16).batch(7, drop_remainder=True)
    assert [len(batch["0"]) for batch in pipe.iter_batches(debug=True)] == [7] * 5


def drawing(num_shards: int, index: int) -> Any:
    generator = tf.random.Generator.from_seed(1)
    return part(num_shards, index).map(lambda n: generator.uniform([]))


def shuffled(num_shards: int, index: int) -> Any:
    return part(num_shards, index).shuffle(4)


def counting(num_shards: int, index: int) -> Any:
    return part(num_shards, index).skip(2).map(lambda n: n).take(3).batch(2)


def counting_first(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(40).skip(2).shard(num_shards, index)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (drawing, "drawing draws random numbers by RngReadAndSkip.*in each of its 4 shards and in each epoch"),
        (shuffled, "shuffled shuffles without a seed"),
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


def test_which_random_numbers_begin_anew() -> None:
    flip = tf.keras.layers.RandomFlip(seed=3)
    image = tf.zeros([4, 4, 3])

    def drawn(fn: Callable[[Any], Any]) -> tuple[str, ...]:
        return restarting_randomness(tf.data.Dataset.range(4).map(fn).batch(2))

    assert drawn(lambda n: flip(image, training=True)) == ("AssignVariableOp",)
    assert drawn(lambda n: tf.random.uniform([], seed=4)) == ("RandomUniform",)
    assert drawn(lambda n: tf.random.uniform([])) == (), "without a seed it draws others each time"
    assert drawn(lambda n: tf.random.stateless_uniform([], [n, 1])) == ()


def test_shuffles_and_functions_of_python_that_begin_anew() -> None:
    rng, lottery = np.random.default_rng(1), random.Random(1)
    numbers = tf.data.Dataset.range(4)

    def draw(number: Any) -> Any:
        return np.float32(rng.random())

    def draws() -> Any:
        yield lottery.random()

    def read(number: Any) -> Any:
        return np.float32(number)

    called = numbers.map(lambda n: tf.numpy_function(draw, [n], tf.float32))
    eager = numbers.map(lambda n: tf.py_function(functools.partial(draw), [n], tf.float32))
    generated = tf.data.Dataset.from_generator(draws, output_signature=tf.TensorSpec([], tf.float64))
    assert restarting_randomness(called) == ("PyFunc (a Generator of numpy)",)
    assert restarting_randomness(eager) == ("EagerPyFunc (a Generator of numpy)",)
    assert restarting_randomness(generated) == ("PyFunc (a Random of random)",)
    assert restarting_randomness(numbers.map(lambda n: tf.numpy_function(read, [n], tf.float32))) == ()
    assert restarting_randomness(numbers.shuffle(4, seed=1).batch(2)) == ("shuffle(seed=...)",)
    assert restarting_randomness(tf.data.Dataset.random(seed=1).take(4)) == ("Dataset.random(seed=...)",)
    assert restarting_randomness(numbers.shuffle(4, seed=1, reshuffle_each_iteration=False)) == (), "as it says"


def listed(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.list_files(f"{Path(__file__).parent}/*.py").shard(num_shards, index)


def shuffled_and_sharded(num_shards: int, index: int) -> Any:
    return tf.data.Dataset.range(40).shuffle(40).map(lambda n: n).shard(num_shards, index).batch(2)


@pytest.mark.parametrize("make", [listed, shuffled_and_sharded])
def test_shards_of_several_orders_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(errors.PlanError, match=r"shuffles in front of .shard\(\), in an order that is another one for"):
        opened(make)
    opened(make, num_shards=1)


def test_shards_of_one_order_are_read() -> None:
    assert list(opened(lambda shards, index: tf.data.Dataset.range(40).shuffle(40, seed=1).shard(shards, index)))


@pytest.mark.parametrize(("first", "last", "delivered"), [(5, 8, 3), (5, 100, 5), (10, 12, 0), (64, 128, 0)])
def test_a_lease_of_some_elements_tells_that_the_shard_ends_in_it_or_before_it(
    first: int, last: int, delivered: int
) -> None:
    """What two workers have died with is given out in pieces, some of which lie behind the end of an unknown length."""
    pipe = pecan.PecanPipeline.from_tf_data(part, num_shards=SHARDS)
    (source,) = pipe.plan.sources()
    lease = Lease(0, next(iter(source.splits())), spans=((first << OUTPUT_BITS, last << OUTPUT_BITS),))
    leases = ListedLeases([lease])
    batches = run(pipe, leases)
    assert sum(batch.rows for batch in batches) == delivered
    assert leases.wanted() == covered(batches), "else the job waits for the rest"
