"""Values come as they are, or are refused by element: zeros at the end of bytes, values that hold themselves."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

from pecan_ray.by_value import dumps
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.nesting import MOST_LEVELS
from pecan_ray.engines.plain import decode, encode
from pecan_ray.errors import OpError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import column, run_engine

WHOLE = np.bytes_(b"PNG\x00\x01\x00\x00")
ROWS = 10


def of_rows() -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(ROWS), split_rows=ROWS))


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


@pytest.mark.parametrize("processes", [False, True])
def test_they_come_whole_out_of_every_engine(processes: bool) -> None:
    pipe = of_rows().map(lambda i: {"whole": WHOLE, "list": [WHOLE]}, on="i", name="make", processes=processes).batch(5)
    for batch in run_engine(pipe):
        if batch.rows:
            values = batch.columns["i"]
            assert set(map(len, [*values["whole"], *values["list"].ravel()])) == {len(WHOLE)}


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

    made = of_rows().map(tree)
    spread = of_rows().flat_map(lambda element: [tree(element)], name="tree")
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

    pipe = of_rows().map(lambda i: [int(i)], on="i", name="list").shuffle(3).map(into_itself, name="tree")
    with pytest.raises(OpError, match=r"tree: column 'i' of element . .* cannot be sent .* holds itself"):
        run_engine(pipe)


def test_what_is_deep_comes_whole_as_far_as_python_goes_and_a_recursion_without_end_is_told_in_few_words() -> None:
    value = list(run_inprocess(of_rows().map(lambda i: nested(MOST_LEVELS - 10), on="i").plan))[3]["i"]
    while isinstance(value, list):
        (value,) = value
    assert value == 1

    def even(i: int) -> int:
        return uneven(i)

    def uneven(i: int) -> int:
        return even(i)

    with pytest.raises(OpError, match="more calls") as caught:
        run_engine(of_rows().map(even, on="i").batch(2))
    assert len(str(caught.value)) < 10_000
