"""Shards of tf.data pipelines that ask for any order: they keep their own, so that others can read what is left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_random_state import is_independent

TUNE = tf.data.AUTOTUNE
PATIENCE_S = 0.3
"""The first element waits so long for the fourth, which in any order, and only then, is computed before it has come."""
Delay = Callable[[Any], Any]
SHUFFLED_BY_TIME: dict[str, Callable[[Any, Delay], Any]] = {
    "map": lambda data, late: data.map(late, num_parallel_calls=3, deterministic=False),
    "options": lambda data, late: _in_any_order(data.map(late, num_parallel_calls=3)),
    "interleave": lambda data, late: data.interleave(
        lambda n: tf.data.Dataset.from_tensors(n).map(late), cycle_length=3, num_parallel_calls=3, deterministic=False
    ),
    "within a function": lambda data, late: data.batch(3).flat_map(
        lambda rows: tf.data.Dataset.from_tensor_slices(rows).map(late, num_parallel_calls=3, deterministic=False)
    ),
    "parallel_interleave": lambda data, late: data.apply(
        tf.data.experimental.parallel_interleave(
            lambda n: tf.data.Dataset.from_tensors(n).map(late), cycle_length=3, sloppy=True
        )
    ),
}


def _in_any_order(data: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return data.with_options(options)


@pytest.mark.parametrize("kind", SHUFFLED_BY_TIME)
def test_elements_keep_their_order_though_others_are_ready_before_the_first(kind: str) -> None:
    others_go_on = threading.Event()

    def late(n: int) -> int:
        if n == 0:
            others_go_on.wait(PATIENCE_S)
        elif n >= 3:
            others_go_on.set()
        return n

    def make() -> Any:
        data = tf.data.Dataset.range(6)
        return SHUFFLED_BY_TIME[kind](data, lambda n: tf.numpy_function(late, [n], tf.int64))

    source = TfDataSource(make)
    (split,) = source.splits()
    assert [int(element["0"]) for element in source.read(split)] == [*range(6)]


def test_examples_that_are_parsed_side_by_side_keep_their_order() -> None:
    def asked() -> Any:
        number = tf.train.Feature(int64_list=tf.train.Int64List(value=[1]))
        example = tf.train.Example(features=tf.train.Features(feature={"n": number})).SerializeToString()
        parse = tf.data.experimental.parse_example_dataset(
            {"n": tf.io.FixedLenFeature([], tf.int64)}, num_parallel_calls=3, deterministic=False
        )
        return tf.data.Dataset.from_tensors([example]).apply(parse)

    def order_of(data: Any) -> list[bytes]:
        nodes = tf.compat.v1.GraphDef.FromString(data._as_serialized_graph().numpy()).node
        return [node.attr["deterministic"].s for node in nodes if node.op == "ParseExampleDatasetV2"]

    source = TfDataSource(asked)
    (split,) = source.splits()
    assert order_of(asked()) == [b"false"]
    assert order_of(source.build_dataset(split)) == [b"true"]
    assert [list(element["n"]) for element in source.read(split)] == [[1]]


COUNTER = tf.Variable(0, dtype=tf.int64)
BESIDE: dict[str, tuple[bool, Callable[[Any], Any]]] = {
    "a map": (True, lambda data: data.map(lambda n: n + 1)),
    "a shuffle": (False, lambda data: data.shuffle(3).batch(2)),
    "a shuffle within a function": (False, lambda data: data.batch(3).flat_map(lambda rows: data.shuffle(3))),
    "a function of Python": (False, lambda data: data.map(lambda n: tf.numpy_function(abs, [n], tf.int64))),
    "a state": (False, lambda data: data.map(lambda n: n + COUNTER.assign_add(1))),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_a_shard_is_begun_beside_another_if_it_has_no_state_and_holds_few_elements(kind: str) -> None:
    independent, make = BESIDE[kind]
    assert is_independent(make(tf.data.Dataset.range(6))) is independent
