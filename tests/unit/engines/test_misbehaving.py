"""Functions that misbehave: whatever they raise, return or lose, an error names operator and element."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.serializable import why_not_serializable
from pecan_ray.errors import OpError, OutputTypeError, PlanError, SourceError
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from tests.unit.engines.bad_cases import ON_BATCHES, rows_of_ten
from tests.unit.engines.cache_rig import sorted_numbers
from tests.unit.engines.engine_leases import Numbered, bad_of, numbers, run_beside, run_engine


class OwnError(BaseException):
    pass


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


RAISED = [
    SystemExit(3),
    KeyboardInterrupt(),
    StopIteration(),
    OwnError("out"),
    SilentError(),
    UnpicklableError(),
]
each_error = pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)


def at_seven(error: BaseException) -> Any:
    def fail(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] == 7:
            raise error
        return element

    return fail


ALL_BUT_SEVEN = [i for i in range(40) if i != 7]
KINDS: dict[str, Callable[[PecanPipeline, Any], PecanPipeline]] = {
    "map": lambda pipe, fail: pipe.map(fail).batch(4),
    "filter": lambda pipe, fail: pipe.filter(lambda e: bool(fail(e))).batch(4),
    "flat_map": lambda pipe, fail: pipe.flat_map(lambda e: [fail(e)]).batch(4),
    "batch": lambda pipe, fail: pipe.batch(4).map(lambda batch: fail({"i": 7})),
    "bucket": lambda pipe, fail: pipe.bucket_by_length([3], sizes=2, length=lambda e: len(fail(e))),
}


@each_error
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_function_raises_is_an_error_by_name(error: BaseException, kind: str) -> None:
    with pytest.raises(OpError, match=type(error).__name__) as caught:
        run_beside(KINDS[kind](numbers(), at_seven(error)), [])
    assert "element" in str(caught.value) and caught.value.op


@each_error
def test_on_error_is_for_exceptions_and_what_was_meant_for_the_process_ends_the_job(error: BaseException) -> None:
    pipe, name = numbers().map(at_seven(error)).batch(4), type(error).__name__
    if isinstance(error, Exception):
        found = run_beside(pipe, [], on_error="skip")
        (bad,) = bad_of(found)
        assert sorted_numbers(found) == ALL_BUT_SEVEN and name in bad.error
    else:
        with pytest.raises(OpError, match=name):
            run_beside(pipe, [], on_error="skip")
    in_debug_mode = isinstance(error, (Exception, KeyboardInterrupt)) and not isinstance(error, StopIteration)
    with pytest.raises(type(error) if in_debug_mode else OpError):
        list(pipe.iter_batches(epochs=1, debug=True))


@each_error
def test_whatever_a_source_raises_is_an_error_by_name(error: BaseException) -> None:
    failing = Numbered(40, make=lambda number: at_seven(error)({"i": number}))
    for on_error in ("raise", "skip") if not isinstance(error, Exception) else ("raise",):
        with pytest.raises(SourceError, match=rf"Numbered cannot read element 7 .*{type(error).__name__}"):
            run_beside(PecanPipeline(failing).batch(4), [], on_error=on_error)


def test_what_leaves_the_engine_must_be_sendable_and_nothing_else() -> None:
    locked = numbers().map(lambda e: {**e, "lock": threading.Lock()})
    dropped = locked.map(at_seven(ValueError("seven"))).map(lambda e: {"i": e["i"]}).batch(4)
    found = run_beside(dropped, [], on_error="quarantine")
    (bad,) = bad_of(found)
    assert sorted_numbers(found) == ALL_BUT_SEVEN and "seven" in bad.error
    assert why_not_serializable(bad.element) == "", "the element is kept as far as it can be"


def forgot(x: Any) -> Any:
    x + 1


def early(x: Any) -> Any:
    if x.any():
        return
    x += 1


def loses(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(x: Any) -> Any:
        fn(x)

    return wrapper


def some(x: Any) -> Any:
    if x > 5:
        return x
    return None


@pytest.mark.parametrize("engine", ["python", "tensorflow"])
def test_a_function_without_return_is_refused_when_it_is_written_and_no_other(engine: EngineName) -> None:
    pipe = numbers(20, engine=engine)
    for fn in (forgot, early, functools.partial(forgot), loses(abs), random.shuffle):
        with pytest.raises(PlanError, match=r"map\(on='i'\): .* has no `return` with a value"):
            pipe.map(fn, on="i")
    for fn in (some, lambda x: None, abs, np.sqrt, functools.partial(some), loses):
        pipe.map(fn, on="i")


@pytest.mark.parametrize("processes", [False, True])
def test_one_that_changes_its_array_in_place_and_returns_none_ends_the_job_by_name(processes: bool) -> None:
    pipe = numbers(20, x=np.zeros((20, 3))).map(np.random.shuffle, on="x", name="mix", processes=processes)
    for on_error in ("raise", "skip"):
        with pytest.raises(OutputTypeError, match=r"mix returned None for each of 8 values, .* element \d") as caught:
            run_engine(pipe.batch(4), on_error=on_error)
        assert (caught.value.op, caught.value.column) == ("mix", "x")
    with pytest.raises(OutputTypeError, match="mix returned None"):
        list(run_in_process(pipe.plan))


def flattened(batch: Any) -> Any:
    return {"i": batch["i"], "text": np.array([text for text in batch["text"] if len(text) > 1][:2], object)}


def test_columns_of_their_own_lengths_are_the_users_and_what_may_be_meant_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_engine(rows_of_ten().batch(10).map(ON_BATCHES["leaves every third"]))
    assert not caplog.records

    def beside(batch: Any) -> Any:
        return {"i": batch["i"], "classes": np.arange(3), "extra": {"more": np.arange(4)}}

    run_engine(rows_of_ten().batch(10).map(beside, name="once"))
    (record,) = caplog.records
    assert "once: it returned column 'classes' with 3 rows, and 'i' with the 10" in record.getMessage()
    run_engine(rows_of_ten().batch(10).map(flattened))
    assert len(caplog.records) == 2
