"""Lists, dicts, images and tensors in batches: put together by type, whole as they were, or refused by name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import ml_dtypes
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray import Config, PecanPipeline
from pecan_ray.by_value import dumps
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.nesting import MOST_LEVELS
from pecan_ray.engines.plain import decode, encode
from pecan_ray.engines.python.tensor_pickling import pickled
from pecan_ray.errors import BatchShapeError, MissingExtraError, OpError
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import column, numbers, run_engine

ROWS = 3
OFF = pecan.Config(reorder="off")


def of(*values: Any) -> pecan.PecanPipeline:
    rows = [{"x": value, "row": row} for row, value in enumerate(values)]
    return pecan.PecanPipeline(Items(rows, split_rows=1), config=OFF)


def batch_of(pipe: pecan.PecanPipeline) -> Any:
    (batch,) = run_engine(pipe, order="strict")
    (debugged,) = pipe.iter_batches(debug=True)
    assert plain(debugged["x"]) == plain(batch.columns["x"])
    return batch.columns["x"]


def plain(column: Any) -> Any:
    if isinstance(column, dict):
        return {name: plain(one) for name, one in column.items()}
    if isinstance(column, tuple):
        return tuple(map(plain, column))
    return column.tolist() if isinstance(column, np.ndarray) else column


def again(batch: Any) -> Any:
    return {**batch, "row": batch["row"] + 1}


ENDINGS: dict[str, Callable[[pecan.PecanPipeline], pecan.PecanPipeline]] = {
    "fused": lambda pipe: pipe.map(lambda element: element).batch(ROWS),
    "of columns": lambda pipe: pipe.batch(ROWS),
    "of columns behind a map": lambda pipe: pipe.batch(ROWS).prefetch(1).map(again),
    "one by one": lambda pipe: pipe.skip(0).batch(ROWS),
    "behind a map": lambda pipe: pipe.batch(ROWS).map(again),
}
ends = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)


@ends
def test_dicts_become_dicts_of_columns(end: Callable[..., Any]) -> None:
    image, torch = pytest.importorskip("PIL.Image"), pytest.importorskip("torch")
    boxes = [
        {
            "at": {"x": row, "y": 0.5},
            "name": f"box {row}",
            "pixels": np.full((2, 2), row),
            "picture": image.new("L", (4, 3), row),
            "tensors": [torch.full((2,), row), torch.tensor(row)],
        }
        for row in range(ROWS)
    ]
    column = batch_of(end(of(*boxes)))
    assert column["at"]["x"].dtype == np.int64 and column["at"]["x"].tolist() == [0, 1, 2]
    assert column["at"]["y"].dtype == np.float64
    assert column["name"].tolist() == ["box 0", "box 1", "box 2"]
    assert column["pixels"].shape == (ROWS, 2, 2)
    assert column["picture"].shape == (ROWS, 3, 4) and column["picture"].dtype == np.uint8
    vectors, numbers = column["tensors"]
    assert vectors.tolist() == [[0, 0], [1, 1], [2, 2]] and numbers.tolist() == [0, 1, 2]


EQUAL: list[tuple[Any, Any, Any]] = [
    ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]], np.int64),
    ([(0.5,), (1.5,), (2.5,)], [[0.5], [1.5], [2.5]], np.float64),
    ([[]] * ROWS, [[]] * ROWS, np.float64),
    ([np.array([1, 2], object)] * ROWS, [[1, 2]] * ROWS, np.int64),
]


@ends
def test_lists_of_equal_lengths_become_arrays_and_others_tuples_of_columns(end: Callable[..., Any]) -> None:
    for given, wanted, dtype in EQUAL:
        column = batch_of(end(of(*given)))
        assert column.dtype == dtype and column.tolist() == wanted
    values = [(np.full((2, 2), row), {"label": row}, "text", [row, None]) for row in range(ROWS)]
    pixels, labels, texts, (numbers, missing) = batch_of(end(of(*values)))
    assert pixels.shape == (ROWS, 2, 2) and labels["label"].tolist() == [0, 1, 2] and texts.tolist() == ["text"] * ROWS
    assert numbers.tolist() == [0, 1, 2] and missing.tolist() == [None] * ROWS


@pytest.mark.parametrize("end", [ENDINGS["fused"], ENDINGS["of columns behind a map"]])
@pytest.mark.parametrize(
    ("odd", "usual", "said"),
    [
        (
            [1],
            [1, 2],
            r" of element 0 of split 2 is int64\[1\], but that of element 0 of split 0 is int64\[2\]. Pad it",
        ),
        ([0.5, 1], [1, 2], r" of element 0 of split 2 is float64\[2\], but .* Convert elements to one dtype before"),
        ([{}], [{}, {}], " of element 0 of split 2 has 1 values, but that of element 0 of split 0 has 2. Pad it"),
        (
            np.array([]),
            [{}, {}],
            " of element 0 of split 2 has 0 values, but that of element 0 of split 0 has 2. Pad it",
        ),
        (None, [1, 2], " of element 0 of split 2 is None, but that of element 0 of split 0 is a list. Fill in"),
        ({"a": 1}, [1, 2], " of element 0 of split 2 is a dict, but that of .* is a list. Convert one of them"),
        ({"a": 1}, {}, r" of element 0 of split 2 has the keys \['a'\], but that of element 0 .* has \[\]"),
        ({"a": None}, {"a": 1}, r"\['a'\] of element 0 of split 2 is None, but that of .* is an int"),
        ({"a": [{1}]}, {"a": [2]}, r"\['a'\]\[0\] of element 0 of split 2 is a set, of which no array can be made"),
        ({1}, "a text", " of element 0 of split 2 is a set, of which no array can be made. Convert it, or drop it"),
        (2**70, "a text", " of element 0 of split 2 is an int of more than 64 bits, of which no array"),
    ],
)
def test_what_cannot_be_put_together_is_refused_by_element(
    odd: Any, usual: Any, said: str, end: Callable[..., Any]
) -> None:
    pipe = end(of(usual, usual, odd))
    with pytest.raises(BatchShapeError, match=f"{pipe.plan.ops[-1].name}: column 'x'{said}") as caught:
        run_engine(pipe, order="strict")
    assert caught.value.column == "x"


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


def list_of_itself() -> Any:
    value: list[Any] = [1, 2]
    value[1] = value
    return value


def array_of_itself() -> Any:
    value = np.empty(2, object)
    value[:] = [1, 2]
    value[1] = value
    return value


def nested(levels: int) -> Any:
    value: Any = [1]
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("make", [list_of_itself, array_of_itself, lambda: nested(5000)])
def test_a_value_that_holds_itself_is_an_error_of_its_element_or_left_out(make: Callable[[], Any]) -> None:
    def tree(element: Any) -> Any:
        return {"i": element["i"], "node": make() if element["i"] == 7 else [1, 2]}

    made = numbers(TEN).map(tree)
    spread = numbers(TEN).flat_map(lambda element: [tree(element)], name="tree")
    for pipe in (made, made.batch(1), made.shuffle(3).batch(1), made.repeat(2).take(20).batch(1), spread.batch(1)):
        with pytest.raises(OpError, match=r"^tree failed on element 7 .*: it returned ") as caught:
            run_engine(pipe, order="strict")
        assert caught.value.op == "tree" and caught.value.element == 7 and len(str(caught.value)) < 5000
    for on_error in ("skip", "quarantine"):
        produced = run_engine(made.batch(1), on_error=on_error)
        assert sorted(column(produced, "i")) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        assert {(bad.op, bad.elements_left_out) for one in produced for bad in one.bad} == {("tree", 1)}

    def into_itself(element: Any) -> Any:
        element["i"].append(element["i"])
        return element

    put_in = numbers(TEN).map(lambda i: [int(i)], on="i", name="list").shuffle(3).map(into_itself, name="tree")
    with pytest.raises(OpError, match=r"tree: column 'i' of element . .* cannot be sent .* holds itself"):
        run_engine(put_in)


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


FOUR = 4


def making(make: Callable[[int], Any]) -> pecan.PecanPipeline:
    rows = pecan.PecanPipeline(pecan.sources.Arrays({"row": np.arange(FOUR)}, split_rows=1), config=OFF)
    return rows.map(lambda element: {"x": make(int(element["row"])), "row": element["row"]}, name="make")


def times(value: Any) -> Callable[[int], Any]:
    """A function of a row that returns a value as often as its number says."""
    return lambda row: value * row


def always(value: Any) -> Callable[[int], Any]:
    return lambda row: value


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
    batched = making(make).batch(FOUR)
    for pipe in (batched, batched.map(lambda batch: batch)):
        (batch,) = run_engine(pipe, order="strict")
        (debugged,) = pipe.iter_batches(debug=True)
        column = batch.columns["x"]
        assert column.dtype == dtype and column.tolist() == [wanted(row) for row in range(FOUR)]
        np.testing.assert_array_equal(debugged["x"], column)


TYPES = "uint64 float8_e8m0fnu bfloat16 int64"


@pytest.mark.parametrize("name", TYPES.split())
def test_tensors_travel_whose_type_torch_does_not_pickle_and_keep_it(name: str) -> None:
    torch = pytest.importorskip("torch")
    made = torch.tensor([[1, 2]]).to(getattr(torch, name))
    for element in run_engine(making(always({"a": (made,)})), order="strict"):
        (found,) = element.columns["x"]["a"]
        assert (found.float() if torch.is_tensor(found) else found.astype(np.int64)).ravel().tolist() == [1, 2]
    again = pickle.loads(pickled(([made], 1)))[0][0]
    assert again.dtype == made.dtype and again.to(torch.int64).tolist() == [[1, 2]]
    there = making(always(made)).map(torch.Tensor.contiguous, on="x", processes=True, name="there").batch(FOUR)
    (batch,) = run_engine(there, order="strict")
    assert batch.columns["x"].astype(np.int64).tolist() == [[[1, 2]]] * FOUR
    for one in (made[:, 1:], made[0, 1], made[0][:0]):
        (tensors,) = making(always(one)).batch(FOUR).iter_batches(debug=True, format="torch")
        assert tensors["x"].dtype == made.dtype and tensors["x"].float().tolist() == [one.float().tolist()] * FOUR


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch says that it knows few operations on them
@pytest.mark.parametrize("make", ["meta", "nested"])
def test_tensors_that_no_array_holds_are_refused_by_name(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    value = {
        "meta": lambda: torch.empty(2, device="meta"),
        "nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
    }[make]()
    with pytest.raises((BatchShapeError, OpError), match=r"'x' of element 0 of split 0 .*[Dd]rop it"):
        run_engine(making(always(value)).batch(FOUR), order="strict")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingExtraError, match=r"torch\.bfloat16 need ml_dtypes, which is not installed"):
        as_array(torch.zeros(1, dtype=torch.bfloat16))


def test_lists_and_tensors_are_padded_and_texts_beside_them_stay() -> None:
    torch = pytest.importorskip("torch")
    for make in (times((7,)), lambda row: torch.full((row,), 7)):
        pipe = making(make)
        for padded in (pipe.padded_batch(FOUR), pipe.bucket_by_length([10], length="x", sizes=[FOUR, FOUR])):
            (batch,) = run_engine(padded, order="strict")
            assert batch.columns["x"].tolist() == [[0] * 3, [7, 0, 0], [7, 7, 0], [7] * 3]
            assert batch.columns["x"].dtype == np.int64
    (batch,) = run_engine(making(times("a text")).padded_batch(FOUR), order="strict")
    assert batch.columns["x"].tolist() == ["a text" * row for row in range(FOUR)]


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
        run_engine(made.padded_batch(FOUR), order="strict")
    assert (caught.value.op, caught.value.column, caught.value.element) == ("padded_batch", "x", 0)
