"""A pipeline as a data set of TensorFlow and of Keras."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays
from tests.programs import run_python

tf: Any = pytest.importorskip("tensorflow")
keras: Any = pytest.importorskip("keras")


def rows(count: int = 10) -> PecanPipeline:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return PecanPipeline(Arrays(i=np.arange(count), x=x, y=x.sum(axis=1)), name="rows").batch(4)


class Listed(list[Any]):
    pass


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["i"]]


def test_a_tf_dataset_has_the_types_and_shapes_of_the_batches() -> None:
    names = np.array(["a", "b"] * 5, object)
    dataset = rows().zip(PecanPipeline(Arrays(name=names)).batch(4)).to_tf_dataset(debug=True)
    assert dataset.element_spec == {
        "i": tf.TensorSpec([None], tf.int64),
        "x": tf.TensorSpec([None, 3], tf.float32),
        "y": tf.TensorSpec([None], tf.float32),
        "name": tf.TensorSpec([None], tf.string),
    }
    batches = list(dataset.prefetch(1).repeat(2))
    assert ids(batches) == 2 * list(range(10)) and batches[-1]["name"].numpy().tolist() == [b"a", b"b"]

    def sized(i: Any) -> dict[str, Any]:
        return {"wave": np.zeros((2 + i["i"] % 7, 5), np.float32), "i": i["i"]}

    pipe = PecanPipeline(Arrays(i=np.arange(30))).map(sized).padded_batch(10)  # each batch is as long as the others
    dataset = pipe.to_tf_dataset(debug=True)
    assert dataset.element_spec["wave"] == tf.TensorSpec([None, None, 5], tf.float32)
    assert sum(len(batch["wave"]) for batch in dataset) == 30
    elements = PecanPipeline(Arrays(x=np.ones((3, 2)))).to_tf_dataset(debug=True)
    assert elements.element_spec == {"x": tf.TensorSpec([2], tf.float64)}


def test_batches_unlike_the_first_and_numbers_that_would_be_cut_are_refused_unless_that_dtype_was_asked_for() -> None:
    def grows(row: dict[str, Any]) -> dict[str, Any]:
        n, early = 2**24 + 1, row["i"] < 90
        wave = np.zeros(2 if early else 3, np.float32)
        return {"n": np.float32(row["i"]) if early else np.int64(n), "b": np.int32(n), "wave": wave}

    pipe = PecanPipeline(Arrays(i=np.arange(100))).map(grows).batch(10)
    asked = {name: tf.TensorSpec([None], dtype) for name, dtype in (("n", tf.float32), ("b", tf.int16))}
    assert [len(batch["b"]) for batch in pipe.to_tf_dataset(spec=asked, debug=True)] == [10] * 10
    for spec, words in (
        (
            {"wave": tf.TensorSpec([None, 2], tf.float32)},
            r"column 'wave' is \[10, 3\] in this batch, but the dataset says",
        ),
        (None, "column 'n' is int64 in this batch, and would lose something as float32"),
        ({"n": tf.TensorSpec([None], tf.uint8)}, r"column 'n' is float32 .* as uint8, as spec=\.\.\. says"),
    ):
        with pytest.raises(tf.errors.OpError, match=words):
            list(pipe.to_tf_dataset(spec=spec, debug=True))


def test_tensorflow_uses_the_memory_of_a_column() -> None:
    from pecan_ray.integrations.tf_dataset import tf_dataset

    memory = np.zeros(1 << 16, np.uint8)
    start = -memory.ctypes.data % 64
    column = memory[start : start + 4096].view(np.float32).reshape(16, 64)
    passes: Any = Listed([{"x": column}])
    (batch,) = tf_dataset(passes, {"x": tf.TensorSpec([None, 64], tf.float32)})
    assert batch["x"]._numpy().ctypes.data == column.ctypes.data


def test_keras_gets_several_columns_as_a_dict_and_weights_behind_the_targets() -> None:
    data_set = rows().to_keras(["x", "i"], "y", sample_weight="y", debug=True)
    assert len(data_set) == data_set.num_batches == 3
    inputs, targets, weights = data_set[0]
    assert inputs.keys() == {"x", "i"} and np.array_equal(targets, weights)


def test_a_data_set_that_keras_has_read_is_gone_when_its_user_drops_it() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")

    def read(use: Callable[[Any, Any], object]) -> list[weakref.ref[Any]]:
        first, second = (rows().to_keras("x", "y", debug=True) for _ in range(2))
        use(first, second)
        return [weakref.ref(first), weakref.ref(second)]

    kept = read(lambda first, second: model.fit(first, validation_data=second, epochs=2, verbose=0))
    kept += read(lambda first, second: [model.predict(one, verbose=0) for one in (first, first, second)])
    kept += read(lambda first, second: model.fit(first, steps_per_epoch=1, epochs=2, verbose=0))
    gc.collect()
    assert [one() for one in kept] == [None] * 6
    model.evaluate(rows().to_keras("x", "y", debug=True), verbose=0)


ON_TORCH = """
import numpy as np, keras, pecan_ray as pecan
pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.ones((10, 3), np.float32), y=np.ones(10, np.float32))).batch(4)
model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
losses = model.fit(pipe.to_keras("x", "y", debug=True), epochs=2, verbose=0).history["loss"]
assert keras.backend.backend() == "torch" and len(losses) == 2
"""


@pytest.mark.slow
def test_keras_on_another_backend() -> None:
    pytest.importorskip("torch")
    done = run_python("-c", ON_TORCH, env={"KERAS_BACKEND": "torch"})
    assert done.returncode == 0, done.stderr
