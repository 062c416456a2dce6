"""Lists, dicts and other values in batches: put together by type, whole as they were, or refused by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.by_value import dumps
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.nesting import MOST_LEVELS
from pecan_ray.engines.plain import decode, encode
from pecan_ray.errors import BatchShapeError, OpError
from tests.unit.engines.engine_leases import column, numbers, run_engine

ROWS = 3
OFF = pecan.Config(reorder="off")


def of(*values: Any) -> pecan.PecanPipeline:
    rows = [{"x": value, "row": row} for row, value in enumerate(values)]
    return pecan.PecanPipeline(pecan.sources.Items(rows, split_rows=1), config=OFF)


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
    "one by one": lambda pipe: pipe.skip(0).batch(ROWS),
    "behind a map": lambda pipe: pipe.batch(ROWS).map(again),
    "of columns behind a map": lambda pipe: pipe.batch(ROWS).prefetch(1).map(again),
}
ends = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)


@ends
def test_dicts_become_dicts_of_columns(end: Callable[..., Any]) -> None:
    boxes = [{"at": {"x": row, "y": 0.5}, "name": f"box {row}", "pixels": np.full((2, 2), row)} for row in range(ROWS)]
    column = batch_of(end(of(*boxes)))
    assert column["at"]["x"].dtype == np.int64 and column["at"]["x"].tolist() == [0, 1, 2]
    assert column["at"]["y"].dtype == np.float64
    assert column["name"].tolist() == ["box 0", "box 1", "box 2"]
    assert column["pixels"].shape == (ROWS, 2, 2)


EQUAL: list[tuple[Any, Any, Any]] = [
    ([[1, 2], [3, 4], [5, 6]], [[1, 2], [3, 4], [5, 6]], np.int64),
    ([(0.5,), (1.5,), (2.5,)], [[0.5], [1.5], [2.5]], np.float64),
    ([[[1], [2]]] * ROWS, [[[1], [2]]] * ROWS, np.int64),
    ([["a", "longer"]] * ROWS, [["a", "longer"]] * ROWS, object),
    ([[]] * ROWS, [[]] * ROWS, np.float64),
    ([np.array(["a", "b"])] * ROWS, [["a", "b"]] * ROWS, np.dtype("<U1")),
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


def test_images_and_tensors_within_dicts_and_lists_become_arrays() -> None:
    image, torch = pytest.importorskip("PIL.Image"), pytest.importorskip("torch")
    values = [
        {"picture": image.new("L", (4, 3), row), "tensors": [torch.full((2,), row), torch.tensor(row)]}
        for row in range(ROWS)
    ]
    column = batch_of(of(*values).batch(ROWS))
    assert column["picture"].shape == (ROWS, 3, 4) and column["picture"].dtype == np.uint8
    vectors, numbers = column["tensors"]
    assert vectors.tolist() == [[0, 0], [1, 1], [2, 2]] and numbers.tolist() == [0, 1, 2]


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


def test_a_function_on_batches_gets_objects_and_the_list_that_it_returns_stays_one() -> None:
    def longest(batch: Any) -> Any:
        assert batch["x"].dtype == object
        return {"x": list(batch["x"]), "longest": max(map(len, batch["x"]))}

    (batch,) = run_engine(of([1], [1, 2], []).batch(ROWS).map(longest), order="strict")
    assert batch.columns["x"] == [[1], [1, 2], []] and batch.columns["longest"] == 2


@pytest.mark.parametrize("library", ["torch", "tf", "jax"])
def test_columns_in_dicts_become_tensors_of_a_framework(library: Any) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(library, library))
    pipe = of(*({"pair": (row, {"y": [row]}), "text": "a"} for row in range(ROWS))).batch(ROWS)
    (batch,) = pipe.iter_batches(debug=True, format=library)
    number, inner = batch["x"]["pair"]
    assert type(number).__module__.partition(".")[0] in ("torch", "tensorflow", "jaxlib", "jax")
    assert np.asarray(inner["y"]).tolist() == [[0], [1], [2]] and type(inner["y"]) is type(number)


WHOLE = np.bytes_(b"PNG\x00\x01\x00\x00")
TEN = 10


@pytest.mark.parametrize("value", [WHOLE, np.str_("ab\0\0")])
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


def dict_of_itself() -> Any:
    value: dict[str, Any] = {}
    value["twice"] = [value, value]
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


@pytest.mark.parametrize("make", [list_of_itself, dict_of_itself, array_of_itself, lambda: nested(5000)])
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


def test_one_that_was_put_into_a_given_value_is_found_before_it_is_sent() -> None:
    def into_itself(element: Any) -> Any:
        element["i"].append(element["i"])
        return element

    pipe = numbers(TEN).map(lambda i: [int(i)], on="i", name="list").shuffle(3).map(into_itself, name="tree")
    with pytest.raises(OpError, match=r"tree: column 'i' of element . .* cannot be sent .* holds itself"):
        run_engine(pipe)


def test_what_is_deep_comes_whole_as_far_as_python_goes_and_a_recursion_without_end_is_told_in_few_words() -> None:
    value = list(run_inprocess(numbers(TEN).map(lambda i: nested(MOST_LEVELS - 10), on="i").plan))[3]["i"]
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
