"""Images, tensors and lists in batches: arrays are made of them, or it is said why not."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.foreign import as_array
from pecan_ray.errors import BatchShapeError, MissingExtraError
from tests.unit.engines.engine_leases import run_engine

ROWS = 4


def picture(row: int) -> Any:
    array = np.full((5, 3, 3), row, np.uint8)
    return pytest.importorskip("PIL.Image").fromarray(array)


def tensor(row: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.full((2, 3), row, dtype=torch.float16)


def bfloat(row: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.full((2,), row, dtype=torch.bfloat16)


def eager(row: int) -> Any:
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.fill((2,), np.int64(row))


def making(make: Callable[[int], Any]) -> pecan.PecanPipeline:
    """Elements with one value in column x, made by a function."""
    pipe = pecan.PecanPipeline(
        pecan.sources.Arrays({"row": np.arange(ROWS)}, split_rows=1), config=pecan.Config(reorder="off")
    )
    return pipe.map(lambda element: {"x": make(int(element["row"])), "row": element["row"]}, name="make")


@pytest.mark.parametrize(
    ("make", "dtype", "shape"),
    [
        (picture, np.uint8, (5, 3, 3)),
        (tensor, np.float16, (2, 3)),
        (bfloat, ml_dtypes.bfloat16, (2,)),
        (eager, np.int64, (2,)),
    ],
)
@pytest.mark.parametrize("between", [False, True])
def test_images_and_tensors_are_batched_as_arrays(
    make: Callable[[int], Any], dtype: Any, shape: tuple[int, ...], between: bool
) -> None:
    make(0)  # skips where the library is not there
    pipe = making(make).batch(ROWS)
    pipe = pipe.map(lambda batch: batch) if between else pipe
    (batch,) = run_engine(pipe, order="strict")
    column = batch.columns["x"]
    assert column.dtype == dtype and column.shape == (ROWS, *shape)
    assert [int(row.max()) for row in column] == list(range(ROWS))
    (debugged,) = pipe.iter_batches(debug=True)
    np.testing.assert_array_equal(debugged["x"], column)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16"])
def test_tensors_of_torch_keep_their_type(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    pipe = making(lambda row: torch.tensor([1.0, 2.0, 4.0]).to(kind)[1:]).batch(ROWS)
    (batch,) = pipe.iter_batches(debug=True, format="torch")
    assert batch["x"].dtype == kind and batch["x"].float().tolist() == [[2.0, 4.0]] * ROWS
    (single,) = making(lambda row: torch.tensor(2.0).to(kind)).batch(ROWS).iter_batches(debug=True, format="torch")
    assert single["x"].dtype == kind and single["x"].float().tolist() == [2.0] * ROWS


def test_half_complex_tensors_lose_no_part() -> None:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it knows few operations on them
        value = torch.tensor([1 + 2j]).to(torch.complex32)
        (batch,) = run_engine(making(lambda row: value).batch(ROWS), order="strict")
    assert batch.columns["x"].tolist() == [[1 + 2j]] * ROWS


def test_it_is_said_what_to_install_for_types_of_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingExtraError, match=r"torch\.bfloat16 need ml_dtypes, which is not installed"):
        as_array(bfloat(1))


def test_texts_of_tensorflow_stay_objects() -> None:
    tensorflow = pytest.importorskip("tensorflow")
    (batch,) = run_engine(making(lambda row: tensorflow.constant("a" * row)).batch(ROWS), order="strict")
    assert batch.columns["x"].dtype == object


def test_a_tensor_among_arrays_must_agree_with_them() -> None:
    pytest.importorskip("torch")

    def make(row: int) -> Any:
        return tensor(row) if row == 2 else np.zeros((2, 3), np.float32)

    with pytest.raises(
        BatchShapeError, match=r"'x' of element 0 of split 2 is float16\[2, 3\], but that of .* float32\[2, 3\]"
    ):
        run_engine(making(make).batch(ROWS), order="strict")


@pytest.mark.parametrize("bucketed", [False, True])
def test_lists_and_tensors_are_padded(bucketed: bool) -> None:
    torch = pytest.importorskip("torch")
    for make in (lambda row: [7] * row, lambda row: (7,) * row, lambda row: torch.full((row,), 7)):
        pipe = making(make)
        pipe = (
            pipe.bucket_by_length(boundaries=[10], length="x", sizes=[ROWS, ROWS])
            if bucketed
            else pipe.padded_batch(ROWS)
        )
        (batch,) = run_engine(pipe, order="strict")
        assert batch.columns["x"].tolist() == [[0] * 3, [7, 0, 0], [7, 7, 0], [7] * 3]
        assert batch.columns["x"].dtype == np.int64


@pytest.mark.parametrize("value", ["a text", b"bytes"])
def test_texts_and_bytes_beside_what_is_padded_stay_as_they_are(value: Any) -> None:
    (batch,) = run_engine(making(lambda row: value * row).padded_batch(ROWS), order="strict")
    assert batch.columns["x"].tolist() == [value * row for row in range(ROWS)]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["a", "b"], "a list that holds no numbers, which cannot be padded. Make numbers of it"),
        (np.array(["a", "b"]), "an array of <U1 that holds no numbers, which"),
        (np.array([None, 1], object), "an array of object that holds no numbers, which"),
        (None, "None, which cannot be padded. Fill in what is missing"),
        ({"a": 1}, "a dict, which cannot be padded. Padded are numbers, arrays and lists of numbers"),
        ({1, 2}, "a set, which cannot be padded"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_has_nothing_that_could_be_padded_is_refused_by_element(value: Any, said: str, first: bool) -> None:
    text = making(lambda row: value if first or row == 2 else "a text")
    with pytest.raises(BatchShapeError) as caught:
        run_engine(text.padded_batch(ROWS), order="strict")
    assert (caught.value.op, caught.value.column) == ("padded_batch", "x")
    split = 0 if first else 2
    assert f"'x' of element 0 of split {split} is {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        (None, "'x' of element 0 of split 2 is a NoneType, but that of element 0 .* is a list. Make an array of it"),
        ([1, None], "'x' of element 0 of split 2 is a list that holds None"),
        ([[1], [1, 2]], "'x' of element 0 of split 2 is a list of unequal lists, which cannot be padded"),
        ([1.5], r"'x' of element 0 of split 2 is float64\[1\], but that of element 0 .* is int64\[2\]"),
        ([[1]], "'x' of element 0 of split 2 has 2 dimensions, but that of element 0 .* has 1. Padding cannot add"),
    ],
)
def test_what_cannot_be_padded_is_refused_by_element(odd: Any, said: str) -> None:
    pipe = making(lambda row: odd if row == 2 else [1, 2]).padded_batch(ROWS)
    with pytest.raises(BatchShapeError, match=f"padded_batch: column {said}"):
        run_engine(pipe, order="strict")
