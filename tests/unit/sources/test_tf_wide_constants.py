"""Constants for channels in functions of datasets: with rows of them, elements have the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.plan.splits import Split
from pecan_ray.sources.tf_data import TfDataSource
from pecan_ray.sources.tf_datasets import functions_of, nodes_called, upstream

tf: Any = pytest.importorskip("tensorflow")

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
