"""Batches as NumPy, torch, TensorFlow and JAX: values, dtypes, and memory that is shared rather than copied."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pecan_ray.errors import MissingExtraError
from pecan_ray.integrations.formats import converter
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays


def objects(*values: Any) -> Any:
    column = np.empty(len(values), object)
    for row, value in enumerate(values):
        column[row] = value
    return column


NUMBERS = {dtype: np.arange(12).reshape(3, 4).astype(dtype) for dtype in ("u1", "i2", "i8", "f2", "f8", "c8", "?")}


def test_numpy_batches_are_handed_on() -> None:
    batch = {"x": np.arange(3), "s": objects("a", b"b")}
    converted = converter("numpy")(batch)
    assert converted == batch and converted is not batch and converted["x"] is batch["x"]


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


FORMATS = {"torch": "torch", "tf": "tensorflow"}
LEFT_ALONE = {
    "torch": {
        "text": objects("a", "b"),
        "raw": objects(b"a", b"b"),
        "tiny": np.zeros(2, ml_dtypes.int4),
        "long": np.zeros(2, np.longdouble),
        "name": "text",
        "count": 3,
    },
    "tf": {"lists": objects([1], [2, 3]), "missing": objects("a", None), "nothing": None},
}


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_framework_has_no_tensors_for_is_left_alone(format: Any) -> None:
    pytest.importorskip(FORMATS[format])
    batch = {
        **LEFT_ALONE[format],
        "ragged": objects(np.zeros(1), np.zeros(2)),
        "when": np.array(["2024-01-01"], "M8[D]"),
    }
    converted = converter(format)(batch)
    assert all(converted[name] is batch[name] for name in batch)


@pytest.mark.parametrize("format", FORMATS)
def test_arrays_in_any_memory_and_single_numbers_become_tensors(format: Any) -> None:
    pytest.importorskip(FORMATS[format])
    batch = {
        **NUMBERS,
        "read only": read_only(np.arange(4)),
        "reversed": np.arange(4)[::-1],
        "big endian": np.arange(4, dtype=">i4"),
        "transposed": np.arange(4).reshape(2, 2).T,
        "single": np.float32(1.5),
    }
    for name, tensor in converter(format)(batch).items():
        found = tensor.numpy()
        assert found.dtype == batch[name].dtype.newbyteorder("="), name
        assert found.tolist() == batch[name].tolist(), name


def test_torch_shares_the_memory_of_a_batch_and_copies_what_it_must_not_write_into() -> None:
    pytest.importorskip("torch")
    for array in NUMBERS.values():
        assert converter("torch")({"x": array})["x"].data_ptr() == array.ctypes.data
    array = read_only(np.arange(4))
    tensor = converter("torch")({"x": array})["x"]
    tensor += 1
    assert array.tolist() == [0, 1, 2, 3] and tensor.tolist() == [1, 2, 3, 4]
    tensor, text = converter("torch")({"pair": (array, "text")})["pair"]
    assert tensor.tolist() == [0, 1, 2, 3] and text == "text"


def test_tensorflow_takes_bytes_text_small_floats_and_numbers() -> None:
    tf = pytest.importorskip("tensorflow")
    batch = {"text": objects("a", "ü"), "raw": objects(b"\xff", b""), "fixed": np.array(["ab", "c"]), "one": "x"}
    converted = converter("tf")(batch)
    assert all(tf.is_tensor(tensor) and tensor.dtype == tf.string for tensor in converted.values())
    found = [converted[name].numpy().tolist() for name in ("text", "raw", "fixed")]
    assert found == [[b"a", "ü".encode()], [b"\xff", b""], [b"ab", b"c"]]
    assert int(converter("tf")({"i": 3})["i"]) == 3
    assert converter("tf")({"b": np.ones(2, ml_dtypes.bfloat16)})["b"].dtype == tf.bfloat16


@pytest.mark.parametrize(("format", "package"), [("torch", "torch"), ("tf", "tensorflow"), ("jax", "jax")])
def test_every_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch, format: Any, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"pip install {package}$"):
        converter(format)


def test_jax_arrays_keep_values_and_small_floats() -> None:
    pytest.importorskip("jax")
    batch = {"x": np.arange(3, dtype=np.int32), "b": np.ones(2, ml_dtypes.bfloat16), "s": objects("a")}
    converted = converter("jax")(batch)
    assert np.asarray(converted["x"]).tolist() == [0, 1, 2]
    assert converted["b"].dtype == ml_dtypes.bfloat16 and converted["s"] is batch["s"]


@pytest.mark.parametrize("format", ["numpy", "torch", "jax"])
def test_one_batch_again_and_again_is_converted_once(format: Any) -> None:
    pytest.importorskip(format)
    pipe = PecanPipeline(Arrays(i=np.arange(100))).batch(8)
    first, *others = pipe.iter_batches(headspace=True, format=format)
    plain = next(pipe.iter_batches(debug=True, format=format))
    assert type(first["i"]) is type(plain["i"]) and all(other["i"] is first["i"] for other in others)
