"""Functions that return their own arrays, lists and dicts again and again: each element keeps its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from PIL import Image

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.own_results import HeldValue, SharedBufferError, SharedBuffers, own_element
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Split
from tests.unit.engines.engine_leases import OwnSource, numbers, run_engine

ROWS = 60
Fill: TypeAlias = Callable[[Any], Any]
"""A function that returns what it has returned before, with another number in it."""


def array_again() -> Fill:
    out = np.zeros(4, np.int64)

    def fill(i: Any) -> Any:
        out[:] = i
        return out

    return fill


def through(make: Callable[[], Fill], change: Callable[[Any], Any]) -> Callable[[], Fill]:
    """Return a maker of functions whose results are those of others, changed."""

    def made() -> Fill:
        fill = make()
        return lambda i: change(fill(i))

    return made


def arrays_in_turn() -> Fill:
    arrays = [array_again() for _ in range(3)]
    return lambda i: arrays[int(i) % 3](i)


def image_again() -> Fill:
    image = Image.new("L", (4, 4))

    def fill(i: Any) -> Any:
        image.paste(int(i), (0, 0, 4, 4))
        return image

    return fill


def tensor_again() -> Fill:
    out = torch.zeros(4, dtype=torch.int64)
    return lambda i: out.fill_(int(i))


def bytes_again() -> Fill:
    memory = bytearray(8)

    def fill(i: Any) -> Any:
        memory[:] = int(i).to_bytes(8, "little")
        return np.frombuffer(memory, np.int64)

    return fill


def nested() -> Fill:
    fill, row = array_again(), [0]

    def both(i: Any) -> Any:
        row[0] = int(i)
        return {"arrays": [fill(i)], "row": row}

    return both


def first_number(value: Any) -> int:
    while isinstance(value, (dict, list, tuple)):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return int(np.ravel(np.asarray(value))[0])


def sorted_numbers(values: list[Any]) -> list[int]:
    return sorted(map(first_number, values))


def rows_of(produced: list[Produced], name: str = "i") -> list[int]:
    found: list[Any] = []
    for batch in produced:
        if batch.rows:
            column = batch.columns[name]
            while isinstance(column, (dict, tuple)):
                column = next(iter(column.values())) if isinstance(column, dict) else column[0]
            found += list(column)
    return sorted_numbers(found)


VALUES: dict[str, Callable[[], Fill]] = {
    "array": array_again,
    "view": through(array_again, lambda array: array[1:]),
    "arrays in turn": arrays_in_turn,
    "tensor": tensor_again,
    "view of a tensor": through(tensor_again, lambda tensor: tensor[1:]),
    "array of a tensor": through(tensor_again, lambda tensor: tensor.numpy()),
    "tensor of an array": through(array_again, torch.from_numpy),
    "bytes": bytes_again,
    "nested": nested,
    "image": image_again,
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_a_function_may_return_its_own_value_again(make: Callable[[], Fill]) -> None:
    for shuffled in (False, True):
        pipe = numbers(ROWS).map(make(), on="i")
        assert rows_of(run_engine((pipe.shuffle(20) if shuffled else pipe).batch(10))) == list(range(ROWS))
    assert sorted_numbers([one["i"] for one in run_inprocess(numbers(ROWS).map(make(), on="i").plan)]) == list(
        range(ROWS)
    )


def test_a_dict_may_be_returned_again_and_an_array_put_into_the_given_one() -> None:
    row: dict[str, Any] = {}
    fill = array_again()

    def one_dict(element: Any) -> Any:
        row["i"] = int(element["i"])
        return row

    def in_place(element: Any) -> Any:
        element["i"] = fill(element["i"])
        return element

    for function in (one_dict, in_place):
        assert rows_of(run_engine(numbers(ROWS).map(function).batch(10))) == list(range(ROWS))


def three_times(element: Any) -> Iterator[Any]:
    row: dict[str, Any] = {}
    for k in range(3):
        row["i"] = 3 * int(element["i"]) + k
        yield row


def three_arrays(i: Any) -> Iterator[Any]:
    fill = array_again()
    for k in range(3):
        yield fill(3 * int(i) + k)


def test_functions_of_several_outputs_or_batches_and_sources_may_give_one_thing_again() -> None:
    rows = [{"i": 0} for _ in range(3)]
    out = np.zeros(10, np.int64)

    def one_list(element: Any) -> Any:
        for k in range(3):
            rows[k]["i"] = 3 * int(element["i"]) + k
        return rows

    def one_array(batch: Any) -> Any:
        out[:] = batch["i"]
        return {"i": out}

    every = list(range(3 * ROWS))
    assert rows_of(run_engine(numbers(ROWS).flat_map(three_times).batch(10))) == every
    assert rows_of(run_engine(numbers(ROWS).flat_map(three_arrays, on="i").batch(10))) == every
    assert rows_of(run_engine(numbers(ROWS).flat_map(one_list).batch(10))) == every
    assert rows_of(run_engine(numbers(ROWS).flat_map(three_times).map(array_again(), on="i").batch(10))) == every
    assert rows_of(run_engine(numbers(ROWS).batch(10).map(one_array).shuffle(4))) == every[:ROWS]
    for name in ("i", "a"):
        assert rows_of(run_engine(PecanPipeline(OneDict()).shuffle(20).batch(10)), name) == every[:ROWS]


class OneDict(OwnSource):
    """A source that yields one dict with one array again and again."""

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"a": np.zeros(2)}
        for number in range(start, ROWS):
            row["i"] = number
            row["a"][:] = number
            yield row


def test_what_nobody_else_holds_and_what_was_given_is_not_copied() -> None:
    given: dict[str, Any] = {"old": np.ones(3), "text": "t"}
    before, base = dict(given), np.arange(6)
    value = {**given, "new": np.zeros(3), "view": given["old"][1:], "list": [1, 2], "x": base[:5], "y": base[1:]}
    del base
    kept = {name: id(one) for name, one in value.items()}
    held: list[HeldValue] = []
    made = own_element(value, before, given, held)
    assert not held and made is value and {name: id(one) for name, one in made.items()} == kept
    mine = np.zeros(3)
    made = own_element({"a": mine, "b": mine}, {}, None, held)
    assert made["a"] is made["b"] and made["a"] is not mine and len(held) == 1, "one array in two columns stays one"


def test_one_array_with_changing_contents_in_two_threads_at_once_is_an_error() -> None:
    mine = np.zeros(3)

    def check(buffers: SharedBuffers, number: int, began: float | None = None) -> None:
        began = buffers.now() if began is None else began
        mine[:] = number
        buffers.check([HeldValue(mine, mine.copy())], began)

    with ThreadPoolExecutor(1) as other:
        in_turn, at_once = SharedBuffers(), SharedBuffers()
        for number in range(4):
            check(in_turn, 2 * number)
            other.submit(check, in_turn, 2 * number + 1).result()
        check(at_once, 0)
        began = at_once.now()
        other.submit(check, at_once, 0).result()  # ends while this one runs
        check(at_once, 0, began)  # a constant, so far
        with pytest.raises(SharedBufferError, match="several threads call it"):
            check(at_once, 1)
