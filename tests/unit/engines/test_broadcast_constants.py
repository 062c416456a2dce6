"""Constants for channels are made as wide as a row of pixels, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from pecan_ray.engines.tensorflow.broadcast_constants import NARROW, GraphFunction

MEANS = np.array([123.68, 116.78, 103.94], np.float32)
IMAGE = np.random.default_rng(0).uniform(0, 255, (20, 30, 3)).astype(np.float32)
SPEC = tf.TensorSpec((20, 30, 3), tf.float32)


def constants(function: GraphFunction, *args: Any) -> set[tuple[int, ...]]:
    graph = tf.function(function.__call__, autograph=False).get_concrete_function(*args).graph
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for called in definition.library.function for node in called.node_def)]
    return {
        tuple(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim) for node in nodes if node.op == "Const"
    }


def test_constants_of_channels_become_rows_and_the_result_stays() -> None:
    runs: list[Callable[[Any], Any]] = [
        lambda image: image - MEANS,
        lambda image: MEANS - image,
        lambda image: image / MEANS[None, None],
        lambda image: tf.maximum(image * MEANS, MEANS.reshape(1, 3)),
        lambda image: (image - MEANS) / (MEANS + 1) + MEANS,
    ]
    for run in runs:
        function = GraphFunction(run, SPEC)
        assert np.array_equal(function(tf.constant(IMAGE)), function.traced(tf.constant(IMAGE)))
        assert (30, 3) in constants(function, SPEC)
    spec = tf.TensorSpec((None, 20, 30, 3), tf.float32)
    function = GraphFunction(lambda images: images - MEANS, spec)
    assert np.array_equal(function(tf.constant(IMAGE[None])), IMAGE[None] - MEANS), "a batch has one dimension more"
    assert (30, 3) in constants(function, spec)


OTHERS: dict[str, tuple[Callable[[Any], Any], tuple[int | None, ...]]] = {
    "rows vary": (lambda image: image - MEANS, (None, None, 3)),
    "one channel": (lambda image: image - MEANS, (20, 30, 1)),
    "wide": (lambda image: image - np.ones(NARROW + 1, np.float32), (20, 30, NARROW + 1)),
    "row": (lambda image: image - np.ones((30, 3), np.float32), (20, 30, 3)),
    "more rows": (lambda image: image - np.ones((2, 1, 1, 3), np.float32), (20, 30, 3)),
    "more dimensions": (lambda image: image - np.ones((1, 1, 1, 3), np.float32), (20, 30, 3)),
    "vector": (lambda image: image - MEANS, (3,)),
    "scalar": (lambda image: image / 255.0, (20, 30, 3)),
    "computed": (lambda image: image - tf.reduce_mean(image, axis=(0, 1)), (20, 30, 3)),
    "long": (lambda image: image - MEANS, (2, 1 << 16, 3)),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_functions_stay_as_they_are(case: str) -> None:
    run, shape = OTHERS[case]
    function = GraphFunction(run, tf.TensorSpec(shape, tf.float32))
    assert function._call is function.traced
    image = tf.constant(np.ones([side or 5 for side in shape], np.float32))
    assert np.array_equal(function(image), run(image))


def test_what_else_is_in_a_function_stays() -> None:
    calls = tf.Variable(0)
    ragged = tf.ragged.constant([[1], [2, 3]])

    def run(columns: dict[str, Any], row: Any) -> tuple[dict[str, Any], Any]:
        tf.cond(row[0] > 3, lambda: calls.assign_add(10), lambda: calls.assign_add(1))
        image = tf.image.stateless_random_flip_left_right(columns["image"], row)
        return {**columns, "image": image - MEANS, "sum": tf.reduce_sum(image, keepdims=True)}, row

    columns = {"label": tf.constant(7), "ragged": ragged, "image": tf.constant(IMAGE)}
    row = tf.constant([4, 5], tf.int64)
    spec = ({name: tf.type_spec_from_value(value) for name, value in columns.items()}, tf.TensorSpec((2,), tf.int64))
    function = GraphFunction(run, *spec)
    data = tf.data.Dataset.from_tensors((columns, row)).map(function.__call__)

    found, same = next(iter(data))
    assert calls.numpy() == 10
    expected, _ = run(columns, row)
    assert sorted(found) == ["image", "label", "ragged", "sum"]
    assert found["label"] == 7
    assert found["ragged"].to_list() == [[1], [2, 3]]
    assert np.array_equal(found["image"], expected["image"])
    assert np.array_equal(same, row)
    assert data.element_spec[0]["image"].shape == (20, 30, 3)
    assert data.element_spec[0]["sum"].shape == (1, 1, 1)


def test_what_python_code_knows_of_a_shape_stays_known() -> None:
    def run(image: Any) -> Any:
        pixels = tf.reshape(image, tf.shape(image))
        pixels.set_shape((20, 30, 3))
        return pixels - MEANS, tf.strings.as_string(pixels)

    function = GraphFunction(run, tf.TensorSpec(None, tf.float32))
    data = tf.data.Dataset.from_tensors(tf.constant(IMAGE)).map(function.__call__)
    assert [spec.shape for spec in data.element_spec] == [(20, 30, 3), (20, 30, 3)]
    assert np.array_equal(next(iter(data))[0], IMAGE - MEANS)
