"""Functions that return nothing: a map of a column that forgot its return is no column of None."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import OutputTypeError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import column, run_engine

ROWS = 20


def of_rows(engine: Any = "python") -> PecanPipeline:
    return PecanPipeline(Arrays(i=np.arange(ROWS), x=np.zeros((ROWS, 3))), engine=engine)


def forgot(x: Any) -> Any:
    x + 1


def early(x: Any) -> Any:
    if x.any():
        return
    x += 1


class Step:
    def __call__(self, x: Any) -> Any:
        self.seen = x

    forgot = __call__


def loses(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(x: Any) -> Any:
        fn(x)

    return wrapper


def some(x: Any) -> Any:
    if x > 5:
        return x
    return None


def looped(x: Any) -> Any:
    for one in x:
        if one:
            return one
    return None


def fails(x: Any) -> Any:
    raise ValueError(x)


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_a_function_without_return_is_refused_when_it_is_written_and_no_other(engine: str) -> None:
    for fn in (forgot, early, Step(), Step().forgot, functools.partial(forgot), loses(abs), random.shuffle):
        with pytest.raises(PlanError, match=r"map\(on='x'\): .* has no `return` with a value"):
            of_rows(engine).map(fn, on="x")
    for fn in (some, looped, fails, lambda x: None, abs, np.sqrt, functools.partial(some), loses):
        of_rows(engine).map(fn, on="x")


def test_values_that_are_missing_stay_none() -> None:
    words = PecanPipeline(Items([{"s": str(row)} for row in range(ROWS)], split_rows=ROWS))
    found = column(run_engine(words.map(lambda s: s if len(s) > 1 else None, on="s").batch(5), order="strict"), "s")
    assert found == [None] * 10 + [str(row) for row in range(10, ROWS)]


@pytest.mark.parametrize("processes", [False, True])
def test_one_that_changes_its_array_in_place_and_returns_none_ends_the_job_by_name(processes: bool) -> None:
    pipe = of_rows().map(np.random.shuffle, on="x", name="mix", processes=processes).batch(4)
    for on_error in ("raise", "skip"):
        with pytest.raises(OutputTypeError, match=r"mix returned None for each of 8 values, .* element \d") as caught:
            run_engine(pipe, on_error=on_error)
        assert (caught.value.op, caught.value.column) == ("mix", "x")


def test_in_debug_mode_too_but_not_where_some_arrays_give_a_value() -> None:
    lists = PecanPipeline(Items([{"x": [row, 1]} for row in range(ROWS)]))
    with pytest.raises(OutputTypeError, match="sort returned None"):
        list(run_inprocess(lists.map(lambda x: x.sort(), on="x", name="sort").plan))
    found = [one["x"] for one in run_inprocess(lists.map(lambda x: x if x[0] % 3 == 2 else None, on="x").plan)]
    assert len(found) == ROWS and found[:3] == [None, None, [2, 1]]
