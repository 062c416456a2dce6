"""Images, tensors and lists in batches: arrays are made of them, or it is said why not."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import Config, PecanPipeline
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.python.tensor_pickling import pickled
from pecan_ray.errors import BatchShapeError, MissingExtraError, OpError
from pecan_ray.sources import Items
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
    pipe = pecan.PecanPipeline(
        pecan.sources.Arrays({"row": np.arange(ROWS)}, split_rows=1), config=pecan.Config(reorder="off")
    )
    return pipe.map(lambda element: {"x": make(int(element["row"])), "row": element["row"]}, name="make")


def times(value: Any) -> Callable[[int], Any]:
    """A function of a row that returns a value as often as its number says."""
    return lambda row: value * row


def always(value: Any) -> Callable[[int], Any]:
    return lambda row: value


@pytest.mark.parametrize(
    ("make", "dtype", "shape"),
    [
        (picture, np.uint8, (5, 3, 3)),
        (tensor, np.float16, (2, 3)),
        (bfloat, ml_dtypes.bfloat16, (2,)),
        (eager, np.int64, (2,)),
    ],
)
def test_images_and_tensors_are_batched_as_arrays(
    make: Callable[[int], Any], dtype: Any, shape: tuple[int, ...]
) -> None:
    make(0)  # skips where the library is not there
    batched = making(make).batch(ROWS)
    for pipe in (batched, batched.map(lambda batch: batch)):
        (batch,) = run_engine(pipe, order="strict")
        (debugged,) = pipe.iter_batches(debug=True)
        column = batch.columns["x"]
        assert column.dtype == dtype and column.shape == (ROWS, *shape)
        assert [int(row.max()) for row in column] == list(range(ROWS))
        np.testing.assert_array_equal(debugged["x"], column)


TYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_torch_keep_their_type(name: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, name)
    for made, wanted in ((torch.tensor([1.0, 2.0, 4.0]).to(kind)[1:], [2.0, 4.0]), (torch.tensor(2.0).to(kind), 2.0)):
        pipe = making(always(made)).batch(ROWS)
        (batch,) = pipe.iter_batches(debug=True, format="torch")
        assert batch["x"].dtype == kind and batch["x"].float().tolist() == [wanted] * ROWS


@pytest.mark.parametrize("name", ["uint16", "uint32", "uint64", "float8_e5m2", "int64"])
def test_tensors_travel_whose_type_torch_does_not_pickle(name: str) -> None:
    torch = pytest.importorskip("torch")
    made = torch.tensor([[1, 2]]).to(getattr(torch, name))
    for value in (made, [made], {"a": (made,)}):
        for element in run_engine(making(always(value)), order="strict"):
            found = element.columns["x"]
            found = found["a"][0] if isinstance(found, dict) else found[0] if isinstance(found, list) else found
            found = found.float() if torch.is_tensor(found) else found.astype(np.int64)
            assert found.ravel().tolist() == [1, 2]
        again = pickle.loads(pickled((value, 1)))[0]
        again = again["a"][0] if isinstance(again, dict) else again[0] if isinstance(again, list) else again
        assert again.dtype == made.dtype and again.to(torch.int64).tolist() == [[1, 2]]
    there = making(always(made)).map(torch.Tensor.contiguous, on="x", processes=True, name="there").batch(ROWS)
    (batch,) = run_engine(there, order="strict")
    assert batch.columns["x"].astype(np.int64).tolist() == [[[1, 2]]] * ROWS
    alone = making(always(torch.tensor(3).to(made.dtype)[None][:0])).batch(ROWS)
    assert run_engine(alone, order="strict")[0].columns["x"].shape == (ROWS, 0)


def test_sparse_and_half_complex_tensors_are_batched_as_arrays() -> None:
    torch = pytest.importorskip("torch")
    for convert in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr):
        pipe = making(partial(lambda to, row: to(torch.eye(2) * row), convert)).batch(ROWS)
        (batch,) = run_engine(pipe, order="strict")
        assert batch.columns["x"].tolist() == [[[row, 0.0], [0.0, row]] for row in range(ROWS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it knows few operations on them
        (batch,) = run_engine(making(always(torch.tensor([1 + 2j]).to(torch.complex32))).batch(ROWS), order="strict")
    assert batch.columns["x"].tolist() == [[1 + 2j]] * ROWS


@pytest.mark.parametrize("make", ["meta", "nested", "quantized"])
def test_tensors_that_no_array_holds_are_refused_by_name(make: str) -> None:
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it knows few operations on them
        value = {
            "meta": lambda: torch.empty(2, device="meta"),
            "nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
            "quantized": lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.quint8),
        }[make]()
        with pytest.raises((BatchShapeError, OpError), match=r"'x' of element 0 of split 0 .*[Dd]rop it"):
            run_engine(making(always(value)).batch(ROWS), order="strict")


def test_it_is_said_what_to_install_for_types_of_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingExtraError, match=r"torch\.bfloat16 need ml_dtypes, which is not installed"):
        as_array(bfloat(1))


def test_lists_and_tensors_are_padded_and_texts_beside_them_stay() -> None:
    torch, tensorflow = pytest.importorskip("torch"), pytest.importorskip("tensorflow")
    for make in (times([7]), times((7,)), lambda row: torch.full((row,), 7)):
        pipe = making(make)
        for padded in (pipe.padded_batch(ROWS), pipe.bucket_by_length([10], length="x", sizes=[ROWS, ROWS])):
            (batch,) = run_engine(padded, order="strict")
            assert batch.columns["x"].tolist() == [[0] * 3, [7, 0, 0], [7, 7, 0], [7] * 3]
            assert batch.columns["x"].dtype == np.int64
    for value in ("a text", b"bytes"):
        (batch,) = run_engine(making(times(value)).padded_batch(ROWS), order="strict")
        assert batch.columns["x"].tolist() == [value * row for row in range(ROWS)]
    (batch,) = run_engine(making(lambda row: tensorflow.constant("a" * row)).batch(ROWS), order="strict")
    assert batch.columns["x"].dtype == object


EMPTY = np.array([])
"""What JSON's empty list is."""


@pytest.mark.parametrize(
    ("values", "padded"),
    [
        ([EMPTY, np.array([1, 2])], [[0, 0], [1, 2]]),
        ([np.array([[1, 2]], np.uint8), EMPTY], [[[1, 2]], [[0, 0]]]),
        ([np.float32(7), EMPTY, np.array([1, 2], np.float32)], [[7, 0], [0, 0], [1, 2]]),
        ([7, np.zeros(0, np.int64)], [[7], [0]]),
        ([[1, 2], EMPTY], [[1, 2], [0, 0]]),
        ([np.zeros(0, np.int32), np.zeros(0, np.int32)], [[], []]),
    ],
)
def test_empty_lists_and_single_numbers_are_padded_like_the_others(values: list[Any], padded: list[Any]) -> None:
    pipe = PecanPipeline(Items([{"x": value} for value in values]), config=Config(reorder="off"))
    for made in (pipe.padded_batch(9), pipe.padded_batch(9, shapes={"x": (None,) * (np.ndim(padded) - 1)})):
        (batch,) = run_engine(made, order="strict")
        column = batch.columns["x"]
        others = {np.asarray(value).dtype for value in values if np.size(value)} or {values[0].dtype}
        assert column.tolist() == padded and {column.dtype} == others
    if not any(isinstance(value, list) for value in values):
        return
    lists = pipe.batch(9).map(lambda batch: {"x": [list(one) for one in batch["x"]]})
    for batches in (list(lists.iter_batches(debug=True)), [one.columns for one in run_engine(lists, order="strict")]):
        assert batches == [{"x": [list(value) for value in values]}]


NO_NUMBERS = "holds no numbers, which"
TYPE = "but that of element 0 .* is a"


@pytest.mark.parametrize(
    ("usual", "odd", "said"),
    [
        *(
            (usual, odd, f"is {said}")
            for usual in ("a text", None)
            for odd, said in [
                (["a", "b"], f"a list that {NO_NUMBERS} cannot be padded. Make numbers of it"),
                (np.array(["a", "b"]), f"an array of <U1 that {NO_NUMBERS}"),
                ({"a": 1}, "a dict, which cannot be padded. Padded are numbers, arrays and lists of numbers"),
            ]
        ),
        ("a text", None, "is None, which cannot be padded. Fill in what is missing"),
        ([1, 2], None, f"is a NoneType, {TYPE} list. Make an array of it"),
        ([1, 2], [1, None], "is a list that holds None"),
        ([1, 2], [[1], [1, 2]], "is a list of unequal lists, which cannot be padded"),
        ([1, 2], [1.5], r"is float64\[1\], but that of element 0 .* is int64\[2\]"),
        (np.zeros(1, np.int16), np.zeros((1, 1), np.int16), "has 2 dimensions, but that of element 0 .* has 1"),
    ],
)
def test_what_cannot_be_padded_is_refused_by_element(usual: Any, odd: Any, said: str) -> None:
    """Be it the first one (where None is usual), or one that differs from those before it."""
    made = making(lambda row: odd if usual is None or row == 2 else usual)
    with pytest.raises(
        BatchShapeError, match=f"'x' of element 0 of split {0 if usual is None else 2} {said}"
    ) as caught:
        run_engine(made.padded_batch(ROWS), order="strict")
    assert (caught.value.op, caught.value.column, caught.value.element) == ("padded_batch", "x", 0)
