"""Functions that return their own arrays, lists and dicts again and again: each element keeps its values."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.engines.own_results import HeldValue, SharedBufferError, SharedBuffers, own_element
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Split
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import run_engine

ROWS = 60


def array_again() -> Callable[[Any], Any]:
    out = np.zeros(4, np.int64)

    def fill(i: Any) -> Any:
        out[:] = i
        return out

    return fill


def view_again() -> Callable[[Any], Any]:
    fill = array_again()
    return lambda i: fill(i)[1:]


def arrays_in_turn() -> Callable[[Any], Any]:
    arrays = [array_again() for _ in range(3)]
    return lambda i: arrays[int(i) % 3](i)


def image_again() -> Callable[[Any], Any]:
    image = Image.new("L", (4, 4))

    def fill(i: Any) -> Any:
        image.paste(int(i), (0, 0, 4, 4))
        return image

    return fill


def tensor_again() -> Callable[[Any], Any]:
    out = torch.zeros(4, dtype=torch.int64)
    return lambda i: out.fill_(int(i))


def view_of_tensor() -> Callable[[Any], Any]:
    fill = tensor_again()
    return lambda i: fill(i)[1:]


def array_of_tensor() -> Callable[[Any], Any]:
    fill = tensor_again()
    return lambda i: fill(i).numpy()


def tensor_of_array() -> Callable[[Any], Any]:
    fill = array_again()
    return lambda i: torch.from_numpy(fill(i))


def memory_of_a_library() -> Callable[[Any], Any]:
    memory = (ctypes.c_int64 * 4)()

    def fill(i: Any) -> Any:
        memory[:] = [int(i)] * 4
        return np.ctypeslib.as_array(ctypes.cast(memory, ctypes.POINTER(ctypes.c_int64)), (4,))

    return fill


def bytes_again() -> Callable[[Any], Any]:
    memory = bytearray(8)

    def fill(i: Any) -> Any:
        memory[:] = int(i).to_bytes(8, "little")
        return np.frombuffer(memory, np.int64)

    return fill


def nested() -> Callable[[Any], Any]:
    fill, row = array_again(), [0]

    def both(i: Any) -> Any:
        row[0] = int(i)
        return {"arrays": [fill(i)], "row": row}

    return both


def first_number(value: Any) -> int:
    while isinstance(value, (dict, list, tuple)):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return int(np.ravel(np.asarray(value))[0])


def numbers(values: list[Any]) -> list[int]:
    return sorted(map(first_number, values))


def rows_of(produced: list[Produced], name: str = "i") -> list[int]:
    found: list[Any] = []
    for batch in produced:
        if batch.rows:
            column = batch.columns[name]
            while isinstance(column, (dict, tuple)):
                column = next(iter(column.values())) if isinstance(column, dict) else column[0]
            found += list(column)
    return numbers(found)


def of_rows() -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(ROWS)))


VALUES = (
    *(array_again, view_again, arrays_in_turn, tensor_again, view_of_tensor, array_of_tensor, tensor_of_array),
    *(memory_of_a_library, bytes_again, nested, image_again),
)


@pytest.mark.parametrize("make", VALUES)
def test_a_function_may_return_its_own_value_again(make: Callable[[], Callable[[Any], Any]]) -> None:
    every = list(range(ROWS))
    assert rows_of(run_engine(of_rows().map(make(), on="i").batch(10))) == every
    assert rows_of(run_engine(of_rows().map(make(), on="i").shuffle(20).batch(10))) == every


def test_in_debug_mode_too() -> None:
    elements = run_inprocess(of_rows().map(array_again(), on="i").plan)
    assert numbers([element["i"] for element in elements]) == list(range(ROWS))


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
        assert rows_of(run_engine(of_rows().map(function).batch(10))) == list(range(ROWS))


def three_times(element: Any) -> Iterator[Any]:
    row: dict[str, Any] = {}
    for k in range(3):
        row["i"] = 3 * int(element["i"]) + k
        yield row


def three_arrays(i: Any) -> Iterator[Any]:
    fill = array_again()
    for k in range(3):
        yield fill(3 * int(i) + k)


def test_a_generator_may_yield_one_dict_or_array_again_and_a_list_be_returned_again() -> None:
    rows = [{"i": 0} for _ in range(3)]

    def one_list(element: Any) -> Any:
        for k in range(3):
            rows[k]["i"] = 3 * int(element["i"]) + k
        return rows

    every = list(range(3 * ROWS))
    assert rows_of(run_engine(of_rows().flat_map(three_times).batch(10))) == every
    assert rows_of(run_engine(of_rows().flat_map(three_arrays, on="i").batch(10))) == every
    assert rows_of(run_engine(of_rows().flat_map(one_list).batch(10))) == every


def test_maps_behind_flat_map_are_called_several_times_for_an_element() -> None:
    pipe = of_rows().flat_map(three_times).map(array_again(), on="i").batch(10)
    assert rows_of(run_engine(pipe)) == list(range(3 * ROWS))


def test_functions_on_batches_may_return_their_own_array() -> None:
    out = np.zeros(10, np.int64)

    def fill(batch: Any) -> Any:
        out[:] = batch["i"]
        return {"i": out}

    assert rows_of(run_engine(of_rows().batch(10).map(fill).shuffle(4))) == list(range(ROWS))


@dataclass(frozen=True)
class OneDict:
    """A source that yields one dict with one array again and again."""

    def splits(self) -> Iterator[Split]:
        yield Split(0, stop=ROWS, elements=ROWS)

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"a": np.zeros(2)}
        for number in range(start, ROWS):
            row["i"] = number
            row["a"][:] = number
            yield row

    def num_elements(self) -> int:
        return ROWS

    def identity(self) -> str:
        return "OneDict"


@pytest.mark.parametrize("column", ["i", "a"])
def test_a_source_may_yield_one_dict_again(column: str) -> None:
    assert rows_of(run_engine(PecanPipeline(OneDict()).shuffle(20).batch(10)), column) == list(range(ROWS))


def test_what_nobody_else_holds_and_what_was_given_is_not_copied() -> None:
    given: dict[str, Any] = {"old": np.ones(3), "text": "t"}
    before = dict(given)
    base = np.arange(6)
    value = {**given, "new": np.zeros(3), "view": given["old"][1:], "list": [1, 2], "x": base[:5], "y": base[1:]}
    del base
    kept = {name: id(one) for name, one in value.items()}
    held: list[HeldValue] = []
    made = own_element(value, before, given, held)
    assert not held and made is value and {name: id(one) for name, one in made.items()} == kept


def test_one_array_in_two_columns_stays_one() -> None:
    mine = np.zeros(3)
    value = {"a": mine, "b": mine}
    held: list[HeldValue] = []
    made = own_element(value, {}, None, held)
    assert made["a"] is made["b"] and made["a"] is not mine and len(held) == 1


def in_a_thread(call: Callable[[], None]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_one_array_with_changing_contents_in_two_threads_at_once_is_an_error() -> None:
    buffers, mine = SharedBuffers(), np.zeros(3)
    buffers.check([HeldValue(mine, mine.copy())], buffers.now())
    began = buffers.now()
    in_a_thread(lambda: buffers.check([HeldValue(mine, mine.copy())], buffers.now()))  # ends while this one runs
    buffers.check([HeldValue(mine, mine.copy())], began)  # a constant, so far
    mine[:] = 1
    with pytest.raises(SharedBufferError, match="several threads call it"):
        buffers.check([HeldValue(mine, mine.copy())], buffers.now())


def test_two_threads_may_have_it_one_after_the_other() -> None:
    buffers, mine = SharedBuffers(), np.zeros(3)
    for number in range(4):

        def call(number: int = number) -> None:
            began = buffers.now()
            mine[:] = number
            buffers.check([HeldValue(mine, mine.copy())], began)

        in_a_thread(call)
