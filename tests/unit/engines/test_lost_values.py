"""Functions that lose values: a map without `return`, and a part of a column beside whole ones, are told by name."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.inprocess import run_inprocess
from pecan_ray.errors import OpError, OutputTypeError, PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import column, numbers, run_engine

ROWS = 20


def of_rows(engine: Any = "python") -> PecanPipeline:
    return numbers(ROWS, engine=engine, x=np.zeros((ROWS, 3)))


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


@pytest.mark.parametrize("processes", [False, True])
def test_one_that_changes_its_array_in_place_and_returns_none_ends_the_job_by_name(processes: bool) -> None:
    pipe = of_rows().map(np.random.shuffle, on="x", name="mix", processes=processes).batch(4)
    for on_error in ("raise", "skip"):
        with pytest.raises(OutputTypeError, match=r"mix returned None for each of 8 values, .* element \d") as caught:
            run_engine(pipe, on_error=on_error)
        assert (caught.value.op, caught.value.column) == ("mix", "x")


def test_in_debug_mode_too_but_not_where_some_give_a_value() -> None:
    lists = PecanPipeline(Items([{"x": [row, 1]} for row in range(ROWS)]))
    with pytest.raises(OutputTypeError, match="sort returned None"):
        list(run_inprocess(lists.map(lambda x: x.sort(), on="x", name="sort").plan))
    found = [one["x"] for one in run_inprocess(lists.map(lambda x: x if x[0] % 3 == 2 else None, on="x").plan)]
    assert len(found) == ROWS and found[:3] == [None, None, [2, 1]]
    words = PecanPipeline(Items([{"s": str(row)} for row in range(ROWS)], split_rows=ROWS))
    kept = column(run_engine(words.map(lambda s: s if len(s) > 1 else None, on="s").batch(5), order="strict"), "s")
    assert kept == [None] * 10 + [str(row) for row in range(10, ROWS)]


# --- columns of a batch ------------------------------------------------------------------------------------------


def batches() -> PecanPipeline:
    rows = [{"i": row, "x": np.full(3, row), "text": str(row)} for row in range(40)]
    return PecanPipeline(Items(rows, split_rows=40)).batch(10)


def cut_in_place(batch: Any) -> Any:
    batch["x"] = batch["x"][2:]
    return batch


CUTS: dict[str, Any] = {
    "beside": lambda batch: {"i": batch["i"], "j": batch["i"][:3]},
    "one": lambda batch: {**batch, "x": batch["x"][batch["i"] % 2 == 0]},
    "in_place": cut_in_place,
    "texts": lambda batch: {**batch, "text": batch["text"][:4]},
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_part_of_a_column_beside_whole_ones_is_refused_by_name(cut: str) -> None:
    with pytest.raises(OpError, match=rf"^{cut} failed on element 0 .* the 10 of the batch: .* is a part of"):
        run_engine(batches().map(CUTS[cut], name=cut))
    with pytest.raises(ValueError, match=r"returned column '[jx]|text' with . rows"):
        list(run_inprocess(batches().map(CUTS[cut]).plan))


OF_THEIR_OWN_LENGTHS: dict[str, Any] = {
    "packed": lambda batch: {"i": batch["i"], "tokens": batch["x"].reshape(-1), "cu_seqlens": np.arange(0, 31, 3)},
    "two views": lambda batch: {"i": batch["i"], "x": np.concatenate([batch["x"], batch["x"]])},
    "few shots": lambda batch: {"support": batch["x"][:3], "query": batch["x"][3:]},
    "fewer rows": lambda batch: {name: column[batch["i"] % 3 == 0] for name, column in batch.items()},
}


def flattened(batch: Any) -> Any:
    return {"i": batch["i"], "text": np.array([text for text in batch["text"] if len(text) > 1][:2], object)}


def test_columns_of_their_own_lengths_are_the_users_and_what_may_be_meant_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for made in OF_THEIR_OWN_LENGTHS.values():
        assert all(batch.rows for batch in run_engine(batches().map(made)))
    assert not caplog.records

    def beside(batch: Any) -> Any:
        return {"i": batch["i"], "classes": np.arange(3), "extra": {"more": np.arange(4)}}

    run_engine(batches().map(beside, name="once"))
    (record,) = caplog.records
    assert "once: it returned column 'classes' with 3 rows, and 'i' with the 10" in record.getMessage()
    run_engine(batches().map(flattened))
    assert len(caplog.records) == 2
