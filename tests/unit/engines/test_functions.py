"""What functions are given, by the names of their parameters or set up, and what they return again and again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.own_results import HeldValue, SharedBufferError, SharedBuffers, own_element
from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import ElementOp, is_pass_dependent, wants_epoch, wants_rng
from pecan_ray.plan.splits import Split
from tests.unit.engines.engine_leases import OwnSource, column, numbers, run_engine


def drawn(i: Any, rng: Any) -> float:
    return float(rng.random())


@functools.wraps(drawn)
def with_its_own(i: Any) -> float:
    return drawn(i, rng=np.random.default_rng(7))


@functools.wraps(drawn)
def passing_on(*args: Any, **keywords: Any) -> float:
    return drawn(*args, **keywords)


def bound() -> Any:
    return functools.partial(drawn, rng=np.random.default_rng(7))


def test_which_functions_are_given_a_generator_or_the_epoch() -> None:
    given: list[Any] = [drawn, passing_on, functools.partial(drawn, 1), functools.partial(passing_on, 1)]
    left = [bound(), functools.partial(bound()), functools.partial(drawn, 1, 2), with_its_own, lambda i: drawn(i, 1)]
    assert [wants_rng(function) for function in [*given, *left, len]] == [True] * 4 + [False] * 6
    of_five = functools.partial(numbered, epoch=5)
    assert wants_epoch(numbered) and not wants_epoch(of_five)
    (batch,) = numbers(ROWS).map(of_five, on="i", name="bound").batch(ROWS).iter_batches(debug=True, first_epoch=2)
    assert batch["i"][0] == 500, "what was given already stays"


def test_the_users_generator_goes_on_from_element_to_element_in_another_process_too() -> None:
    mine = np.random.default_rng(7).random(3).tolist()
    for function, processes, wanted in ((bound(), False, mine), (bound(), True, mine), (with_its_own, False, mine[:1])):
        pipe = numbers(3, 3).map(function, on="i", processes=processes, name="draw").batch(3)
        assert column(run_engine(pipe, order="strict")) == wanted * (3 // len(wanted))


ROWS = 12


def numbered(i: Any, epoch: int) -> int:
    return 100 * epoch + int(i)


def test_each_pass_of_a_debug_run_has_its_epoch_and_a_pass_of_repeat_has_none_of_its_own() -> None:
    batches = numbers(ROWS).map(numbered, on="i").batch(5).iter_batches(debug=True, epochs=2, first_epoch=3)
    assert sorted(i for b in batches for i in b["i"]) == [*range(300, 300 + ROWS), *range(400, 400 + ROWS)]
    some = numbers(ROWS).filter(lambda i, epoch: i >= epoch, on="i").repeat(2).batch(50)
    assert [len(batch["i"]) for batch in some.iter_batches(debug=True, epochs=2)] == [2 * ROWS, 2 * ROWS - 2]


def test_nothing_is_kept_behind_it_and_autoorder_leaves_it_where_it_is() -> None:
    later = numbers(ROWS).map(numbered, on="i")
    (op,) = later.plan.ops
    assert isinstance(op, ElementOp) and is_pass_dependent(op) and not is_pass_dependent(replace(op, fn=len))
    with pytest.raises(PlanError, match="autocache: it stands behind numbered, which is given the number of the epoch"):
        later.autocache()
    numbers(ROWS).map(numbered, on="i", random=False).autocache()
    behind = numbers(ROWS).map(lambda e: e, name="same").map(numbered, on="i").batch(4)
    assert "a sample shows the first epoch alone" in behind.explain()


PIPE = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(200)))


class RecordedInfo:
    """Makes a number, once in a process: it notes that in a folder."""

    def __init__(self, folder: Path, number: int = 7) -> None:
        self.folder, self.number = folder, number

    def __call__(self) -> int:
        (self.folder / str(os.getpid())).touch(exist_ok=False)
        return self.number


def added(value: Any, number: int) -> Any:
    return value + number


@pytest.mark.parametrize("processes", [False, True])
def test_it_is_made_once_in_each_process(tmp_path: Path, processes: bool) -> None:
    pipe = PIPE.map(added, on="i", setup=RecordedInfo(tmp_path), processes=processes).batch(20)
    assert sorted(column(run_engine(pipe, threads=2))) == [*range(7, 207)]
    assert list(tmp_path.iterdir())
    other = PIPE.map(added, on="i", setup=RecordedInfo(tmp_path, 8), processes=processes).batch(20)
    assert pipe.fingerprint() != other.fingerprint(), "pipelines are told apart by what is made"


SIXTY = 60
Fill: TypeAlias = Callable[[Any], Any]
"""A function that returns what it has returned before, with another number in it."""


def array_again() -> Fill:
    out = np.zeros(4, np.int64)

    def fill(i: Any) -> Any:
        out[:] = i
        return out

    return fill


def tensor_again() -> Fill:
    torch = pytest.importorskip("torch")
    out = torch.zeros(4, dtype=torch.int64)
    return lambda i: out.fill_(int(i))


def through(make: Callable[[], Fill], change: Callable[[Any], Any]) -> Callable[[], Fill]:
    """Return a maker of functions whose results are those of others, changed."""

    def made() -> Fill:
        fill = make()
        return lambda i: change(fill(i))

    return made


def first_number(value: Any) -> int:
    while isinstance(value, (dict, list, tuple)):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return int(np.ravel(np.asarray(value))[0])


def rows_of(pipe: PecanPipeline, name: str = "i") -> list[int]:
    """Return a number of each row that comes out."""
    found: list[Any] = []
    for batch in run_engine(pipe):
        if batch.rows:
            column = batch.columns[name]
            while isinstance(column, (dict, tuple)):
                column = next(iter(column.values())) if isinstance(column, dict) else column[0]
            found += list(column)
    return sorted(map(first_number, found))


VALUES: dict[str, Callable[[], Fill]] = {
    "array": array_again,
    "view": through(array_again, lambda array: array[1:]),
    "tensor": tensor_again,
    "array of a tensor": through(tensor_again, lambda tensor: tensor.numpy()),
    "nested": through(array_again, lambda array: {"arrays": [array], "row": [int(array[0])]}),
}


@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_a_function_may_return_its_own_value_again(make: Callable[[], Fill]) -> None:
    for shuffled in (False, True):
        pipe = numbers(SIXTY).map(make(), on="i")
        assert rows_of((pipe.shuffle(20) if shuffled else pipe).batch(10)) == list(range(SIXTY))
    elements = list(run_in_process(numbers(SIXTY).map(make(), on="i").plan))
    assert sorted(first_number(one["i"]) for one in elements) == list(range(SIXTY))


class OneDict(OwnSource):
    """A source that yields one dict with one array again and again."""

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        row: dict[str, Any] = {"a": np.zeros(2)}
        for number in range(start, SIXTY):
            row["i"] = number
            row["a"][:] = number
            yield row


def test_a_dict_a_list_or_the_rows_of_a_source_may_be_given_again() -> None:
    rows = [{"i": 0} for _ in range(3)]
    out = np.zeros(10, np.int64)

    def one_dict(element: Any) -> Any:
        rows[0]["i"] = int(element["i"])
        return rows[0]

    def one_batch(batch: Any) -> Any:
        out[:] = batch["i"]
        return {"i": out}

    def one_list(element: Any) -> Any:
        for k in range(3):
            rows[k]["i"] = 3 * int(element["i"]) + k
        return rows

    def three_times(element: Any) -> Iterator[Any]:
        mine: dict[str, Any] = {}
        for k in range(3):
            mine["i"] = 3 * int(element["i"]) + k
            yield mine

    every = list(range(3 * SIXTY))
    given, source = numbers(SIXTY), PecanPipeline(OneDict())
    for pipe in (
        given.map(one_dict).batch(10),
        source.shuffle(20).batch(10),
        given.batch(10).map(one_batch).shuffle(4),
    ):
        assert rows_of(pipe) == every[:SIXTY]
    assert rows_of(source.shuffle(20).batch(10), "a") == every[:SIXTY]
    spread = given.flat_map(three_times)
    for pipe in (spread, given.flat_map(one_list), spread.map(array_again(), on="i")):
        assert rows_of(pipe.batch(10)) == every


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
