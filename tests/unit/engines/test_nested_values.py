"""Values that are no arrays yet: images and tensors become arrays, and what is deep or holds itself is told by name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import ml_dtypes
import numpy as np
import pytest

from pecan_ray import Config, PecanPipeline
from pecan_ray.by_value import dumps
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.nesting import MOST_LEVELS
from pecan_ray.engines.plain import decode, encode
from pecan_ray.engines.python.tensor_pickling import pickled
from pecan_ray.errors import BatchShapeError, MissingExtraError, OpError
from pecan_ray.sources import Arrays
from tests.unit.engines.bad_cases import nested
from tests.unit.engines.engine_leases import numbers, run_engine

ROWS = 3


def making(make: Callable[[int], Any]) -> PecanPipeline:
    """Elements with a value that is made of the row's number."""
    rows = PecanPipeline(Arrays({"row": np.arange(ROWS)}, split_rows=1), config=Config(reorder="off"))
    return rows.map(lambda element: {"x": make(int(element["row"])), "row": element["row"]}, name="make")


def always(value: Any) -> PecanPipeline:
    return making(lambda row: value)


def test_dicts_become_dicts_of_columns() -> None:
    image, torch = pytest.importorskip("PIL.Image"), pytest.importorskip("torch")
    pipe = making(
        lambda row: {
            "at": {"x": row, "y": 0.5},
            "name": f"box {row}",
            "picture": image.new("L", (4, 3), row),
            "tensors": [torch.full((2,), row), torch.tensor(row)],
        }
    )
    for end in (pipe.batch(ROWS), pipe.shuffle(1).batch(ROWS), pipe.batch(ROWS).map(lambda batch: dict(batch))):
        (batch,) = run_engine(end, order="strict")
        column = batch.columns["x"]
        assert column["at"]["x"].dtype == np.int64 and column["at"]["x"].tolist() == [0, 1, 2]
        assert column["at"]["y"].dtype == np.float64
        assert column["name"].tolist() == ["box 0", "box 1", "box 2"]
        assert column["picture"].shape == (ROWS, 3, 4) and column["picture"].dtype == np.uint8
        vectors, numbers = column["tensors"]
        assert vectors.tolist() == [[0, 0], [1, 1], [2, 2]] and numbers.tolist() == [0, 1, 2]


TEN = 10


@pytest.mark.parametrize("value", [np.bytes_(b"PNG\x00\x01\x00\x00"), np.str_("ab\0\0")])
def test_texts_and_bytes_of_numpy_keep_the_zeros_at_their_end(value: Any) -> None:
    kept: list[bytes] = []

    def put(*parts: bytes) -> int:
        kept.append(b"".join(parts))
        return len(kept) - 1

    writers = (pickle.dumps, cloudpickle.dumps, dumps, lambda one: pickle.dumps(np.array([one], object)))
    found = [np.array([pickle.loads(write(value))], object).reshape(-1)[0] for write in writers]
    for one in (*found, decode(encode(value, put), lambda place: kept[place])):
        assert len(one) == len(value) and type(one) is type(value)


def test_what_is_deep_comes_whole_as_far_as_python_goes_and_a_recursion_without_end_is_told_in_few_words() -> None:
    value = list(run_in_process(numbers(TEN).map(lambda i: nested(MOST_LEVELS - 10), on="i").plan))[3]["i"]
    while isinstance(value, list):
        (value,) = value
    assert value == 1

    def even(i: int) -> int:
        return uneven(i)

    def uneven(i: int) -> int:
        return even(i)

    with pytest.raises(OpError, match="more calls") as caught:
        run_engine(numbers(TEN).map(even, on="i").batch(2))
    assert len(str(caught.value)) < 10_000


def of_torch(dtype: str, values: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda row: pytest.importorskip("torch").tensor(values(row)).to(getattr(sys.modules["torch"], dtype))


def eye(row: int) -> Any:
    return [[row, 0], [0, row]]


FOREIGN: dict[str, tuple[Callable[[int], Any], Any, Callable[[int], Any]]] = {
    "image": (
        lambda row: pytest.importorskip("PIL.Image").new("RGB", (3, 5), (row, 0, 0)),
        np.uint8,
        lambda row: [[[row, 0, 0]] * 3] * 5,
    ),
    "bfloat16": (of_torch("bfloat16", lambda row: [row] * 2), ml_dtypes.bfloat16, lambda row: [row] * 2),
    "eager": (lambda row: pytest.importorskip("tensorflow").fill((2,), np.int64(row)), np.int64, lambda row: [row] * 2),
    "sparse": (lambda row: of_torch("float32", eye)(row).to_sparse(), np.float32, eye),
    "half": (of_torch("float16", lambda row: [[row] * 3] * 2), np.float16, lambda row: [[row] * 3] * 2),
    "csr": (lambda row: of_torch("float32", eye)(row).to_sparse_csr(), np.float32, eye),
    "half complex": (of_torch("complex32", lambda row: [row + 2j]), np.complex64, lambda row: [row + 2j]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that it knows few operations on some of them
@pytest.mark.parametrize("kind", FOREIGN)
def test_images_and_tensors_are_batched_as_arrays(kind: str) -> None:
    make, dtype, wanted = FOREIGN[kind]
    make(0)  # skips where the library is not there
    batched = making(make).batch(ROWS)
    for pipe in (batched, batched.map(lambda batch: batch)):
        (batch,) = run_engine(pipe, order="strict")
        (debugged,) = pipe.iter_batches(debug=True)
        column = batch.columns["x"]
        assert column.dtype == dtype and column.tolist() == [wanted(row) for row in range(ROWS)]
        np.testing.assert_array_equal(debugged["x"], column)


def test_tensors_travel_whose_type_torch_does_not_pickle_and_keep_it() -> None:
    torch = pytest.importorskip("torch")
    kinds = (torch.uint64, torch.float8_e8m0fnu, torch.bfloat16, torch.int64)
    each = [torch.tensor([[1, 2]]).to(kind) for kind in kinds]
    for made in each:
        for element in run_engine(always({"a": (made,)}), order="strict"):
            (found,) = element.columns["x"]["a"]
            assert (found.float() if torch.is_tensor(found) else found.astype(np.int64)).ravel().tolist() == [1, 2]
        again = pickle.loads(pickled(([made], 1)))[0][0]
        assert again.dtype == made.dtype and again.to(torch.int64).tolist() == [[1, 2]]
        for one in (made[:, 1:], made[0, 1], made[0][:0]):
            (tensors,) = always(one).batch(ROWS).iter_batches(debug=True, format="torch")
            assert tensors["x"].dtype == made.dtype and tensors["x"].float().tolist() == [one.float().tolist()] * ROWS
    there = always(each).map(lambda x: [one.contiguous() for one in x], on="x", processes=True, name="there")
    (batch,) = run_engine(there.batch(ROWS), order="strict")
    assert [column.astype(np.int64).tolist() for column in batch.columns["x"]] == [[[[1, 2]]] * ROWS] * len(kinds)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that it knows few operations on them
@pytest.mark.parametrize("make", ["meta", "nested"])
def test_tensors_that_no_array_holds_are_refused_by_name(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    value = {
        "meta": lambda: torch.empty(2, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    }[make]()
    with pytest.raises((BatchShapeError, OpError), match=r"'x' of element 0 of split 0 .*[Dd]rop it"):
        run_engine(always(value).batch(ROWS), order="strict")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingExtraError, match=r"torch\.bfloat16 need ml_dtypes, which is not installed"):
        as_array(torch.zeros(1, dtype=torch.bfloat16))


def test_tensors_are_padded() -> None:
    torch = pytest.importorskip("torch")
    (batch,) = run_engine(making(lambda row: torch.full((row,), 7)).padded_batch(ROWS), order="strict")
    assert batch.columns["x"].dtype == np.int64 and batch.columns["x"].tolist() == [[0, 0], [7, 0], [7, 7]]
