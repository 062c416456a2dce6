"""What is made of tf.data's graphs: an order of their own, for those who read what is left, and rows of constants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pecan_ray.plan.splits import Split
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_datasets import functions_of, nodes_called, upstream
from pecan_ray.sources.tf_random_state import is_independent

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


# --- constants for channels --------------------------------------------------------------------------------

MEANS = (123.68, 116.78, 103.94)
SPLIT = Split(index=0, path="shard 0")


def image(number: Any) -> Any:
    return tf.random.stateless_uniform([5, 7, 3], [number, 1], -300.0, 300.0)


def image_of_any_size(number: Any) -> Any:
    whole = tf.random.stateless_uniform([5, 7, 3], [number, 1])
    return whole[: tf.cast(number, tf.int32) + 1, : 7 - tf.cast(number, tf.int32)]


def told_wrongly(shape: list[int], told: list[int]) -> Callable[[Any], Any]:
    def made(number: Any) -> Any:
        found = tf.py_function(lambda n: np.full(shape, float(n), np.float32), [number], tf.float32)
        found.set_shape(told)
        return found

    return made


def in_a_branch(number: Any) -> Any:
    return tf.cond(number > 1, lambda: image(number) - MEANS, lambda: image(number) * MEANS)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "subtracted": lambda n: image(n) - tf.constant(MEANS),
    "on the left": lambda n: tf.constant(MEANS) / image(n),
    "of three dimensions": lambda n: (image(n) - tf.constant([[MEANS]])) / tf.constant([[[0.5, 2.0, 3.0]]]),
    "greatest": lambda n: tf.maximum(tf.minimum(image(n), MEANS), [-1.0, np.nan, -np.inf]),
    "integers": lambda n: tf.cast(image(n), tf.int16) * tf.constant([3, -2, 1], tf.int16),
    "halves": lambda n: tf.cast(image(n), tf.bfloat16) + tf.constant(MEANS, tf.bfloat16),
    "of a batch": lambda n: tf.stack([image(n), image(n + 1)]) - MEANS,
    "of many dimensions": lambda n: image(n) - tf.constant([[[[MEANS]]]]),
    "any size": lambda n: image_of_any_size(n) - MEANS,
    "random": lambda n: tf.image.random_flip_left_right(image(n)) - MEANS + tf.random.uniform([]),
    "told wrongly": lambda n: tf.io.serialize_tensor(told_wrongly([5, 1, 3], [5, 7, 3])(n) - MEANS),
    "too few dimensions": lambda n: tf.io.serialize_tensor(told_wrongly([3], [5, 7, 3])(n) - tf.constant(MEANS)),
    "one value": lambda n: tf.io.serialize_tensor(told_wrongly([], [5, 7, 3])(n) - tf.constant([[[*MEANS]]])),
    "one channel": lambda n: tf.io.serialize_tensor(told_wrongly([5, 7, 1], [5, 7, 3])(n) - tf.constant(MEANS)),
}


def dataset(function: Callable[[Any], Any]) -> Any:
    return tf.data.Dataset.range(4).map(function)


def operations(data: Any) -> list[str]:
    return [node.op for one in upstream(data) for function in functions_of(one) for node in nodes_called(function)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elements_have_the_bits_of_plain_tf_data(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        data = TfDataSource(lambda: dataset(FUNCTIONS[name])).build_dataset(SPLIT)
        patch.setattr("pecan_ray.sources.tf_traces.with_rows_of_constants", lambda traced: traced)
        plain = TfDataSource(lambda: dataset(FUNCTIONS[name])).build_dataset(SPLIT)
    assert "BroadcastTo" in operations(data) and "BroadcastTo" not in operations(plain)
    assert data.element_spec == plain.element_spec
    for ours, theirs in zip(data.as_numpy_iterator(), plain.as_numpy_iterator(), strict=True):
        assert np.shape(ours) == np.shape(theirs) and np.array(ours).tobytes() == np.array(theirs).tobytes()


@pytest.mark.parametrize(
    "function",
    [
        lambda n: tf.cast(n, tf.float32) - tf.constant(MEANS),
        lambda n: tf.cast([n, n, n], tf.float32)[None] - tf.constant(MEANS),
        lambda n: image(n) - 1.0,
        lambda n: image(n) - tf.constant([[MEANS[:1]], [MEANS[:1]]] * 2 + [[MEANS[:1]]]),
        lambda n: tf.zeros([4, 1 << 16, 3]) - tf.constant(MEANS),
        in_a_branch,
    ],
)
def test_what_is_no_constant_of_channels_stays_as_it_is(function: Callable[[Any], Any]) -> None:
    assert "BroadcastTo" not in operations(TfDataSource(lambda: dataset(function)).build_dataset(SPLIT))
