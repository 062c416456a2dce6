"""Functions that misbehave: whatever they raise, return or lose, an error names operator and element."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.in_process import run_in_process
from pecan_ray.engines.python import complete_calls
from pecan_ray.engines.serializable import why_not_serializable
from pecan_ray.errors import BatchShapeError, OpError, OutputTypeError, PlanError, SourceError
from pecan_ray.options import OnError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import Numbered, numbers, run_engine, running


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


def made(pipe: PecanPipeline, on_error: OnError = "raise") -> list[Produced]:
    """Run a pipeline as a worker does: in threads, of which none is the one that Ctrl-C reaches."""

    def run() -> list[Produced]:
        with running(pipe, threads=2, on_error=on_error) as (_, batches):
            return list(batches)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def rows(batches: list[Produced]) -> list[int]:
    return sorted(int(x) for one in batches if one.rows for x in one.columns["i"])


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
        made(KINDS[kind](numbers(), at_seven(error)))
    assert "element" in str(caught.value) and caught.value.op


@each_error
def test_on_error_is_for_exceptions_and_what_was_meant_for_the_process_ends_the_job(error: BaseException) -> None:
    pipe, name = numbers().map(at_seven(error)).batch(4), type(error).__name__
    if isinstance(error, Exception):
        found = made(pipe, "skip")
        (bad,) = [bad for one in found for bad in one.bad]
        assert rows(found) == ALL_BUT_SEVEN and name in bad.error
    else:
        with pytest.raises(OpError, match=name):
            made(pipe, "skip")
    in_debug_mode = isinstance(error, (Exception, KeyboardInterrupt)) and not isinstance(error, StopIteration)
    with pytest.raises(type(error) if in_debug_mode else OpError):
        list(pipe.iter_batches(epochs=1, debug=True))


@each_error
def test_whatever_a_source_raises_is_an_error_by_name(error: BaseException) -> None:
    failing = Numbered(40, make=lambda number: at_seven(error)({"i": number}))
    for on_error in ("raise", "skip") if not isinstance(error, Exception) else ("raise",):
        with pytest.raises(SourceError, match=rf"Numbered cannot read element 7 .*{type(error).__name__}"):
            made(PecanPipeline(failing).batch(4), on_error)


class Unloadable:
    def __init__(self) -> None:
        self.x = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("not here")


@pytest.mark.parametrize("make", [threading.Lock, lambda: (one for one in "ab"), Unloadable])
def test_a_column_that_cannot_be_sent_is_a_bad_element(make: Any) -> None:
    def add(element: dict[str, Any]) -> dict[str, Any]:
        return {**element, "odd": make() if element["i"] == 7 else [1, "a"]}

    batches, elements = numbers().map(add, name="add").batch(4), numbers().map(add, name="add")
    for pipe in (batches, elements):
        for run in (made, lambda pipe: list(pipe.iter_batches(epochs=1, debug=True))):
            with pytest.raises(OpError, match="add: column 'odd' of element 7 of split 0 cannot be sent"):
                run(pipe)
        assert len([bad for one in made(pipe, "skip") for bad in one.bad]) == 1
    assert rows(made(batches, "skip")) == ALL_BUT_SEVEN


def lock(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "lock": threading.Lock()}


def test_what_leaves_the_engine_must_be_sendable_and_nothing_else() -> None:
    with pytest.raises(OpError, match=r"lock: column 'lock' of .*cannot be sent to the trainer: it holds a"):
        made(numbers().batch(4).map(lambda batch: {**batch, "lock": [None, None, threading.Lock(), None]}, name="lock"))
    dropped = numbers().map(lock).map(at_seven(ValueError("seven"))).map(lambda e: {"i": e["i"]}).batch(4)
    found = made(dropped, "quarantine")
    (bad,) = [bad for one in found for bad in one.bad]
    assert rows(found) == ALL_BUT_SEVEN and "seven" in bad.error
    assert why_not_serializable(bad.element) == "", "the element is kept as far as it can be"


class OwnDict(dict[Any, Any]):
    def keys(self) -> Any:
        raise RuntimeError("no keys")

    __iter__ = keys


async def later(value: Any) -> Any:
    return value


def endless(element: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield element
    while element["i"] == 7:
        yield element


def answering(answer: Any) -> Callable[[PecanPipeline], PecanPipeline]:
    return lambda pipe: pipe.filter(lambda e: answer() if e["i"] == 7 else True, name="odd").batch(4)


def measuring(length: Any) -> Callable[[PecanPipeline], PecanPipeline]:
    """Return what makes buckets by a length that is odd for one element."""
    return lambda pipe: pipe.bucket_by_length([4], sizes=2, length=lambda e: length if e["i"] == 7 else 3)


NO_ANSWER = r"odd returned \w+ for element 7 of split 0, .*: True or False"
ODD: dict[str, tuple[Callable[[PecanPipeline], PecanPipeline], type[Exception], str]] = {
    "a coroutine of a filter": (answering(lambda: later(True)), OutputTypeError, NO_ANSWER),
    "NaN of a filter": (answering(lambda: float("nan")), OpError, "odd failed on element 7 .*: it returned NaN"),
    "several answers": (answering(lambda: np.ones(3) > 0), OpError, "odd failed on element 7 .*: The truth value"),
    "a text as length": (measuring("3"), OutputTypeError, "length returned str for element 7 of split 0"),
    "outputs without an end": (
        lambda pipe: pipe.flat_map(endless).batch(4),
        OpError,
        "element 7 of split 0: ValueError: it yields more than 1,000 elements for one",
    ),
    "a dict without columns": (
        lambda pipe: pipe.map(lambda e: OwnDict(e) if e["i"] == 7 else e, name="own").batch(4),
        OpError,
        "own failed on element 7 of split 0: RuntimeError: no ",
    ),
    "None of a filter": (answering(lambda: None), OutputTypeError, NO_ANSWER),
    "None as length": (measuring(None), OutputTypeError, "length returned NoneType for element 7 of split 0"),
}


@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
@pytest.mark.parametrize("case", ODD)
def test_what_is_no_answer_is_an_error_of_its_element_or_left_out(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete_calls, "MOST_OUTPUTS", 1000)
    build, error, said = ODD[case]
    with pytest.raises(error, match=said):
        made(build(numbers()))
    assert rows(made(build(numbers()), "skip")) == ALL_BUT_SEVEN


def masked(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": np.ma.masked_array([1, 2], [False, True])}


@pytest.mark.parametrize("batching", ["batch", "padded_batch"])
def test_a_mask_is_never_lost_in_silence_and_a_value_of_which_no_array_can_be_made_is_told(batching: str) -> None:
    for masking in (masked, lambda e: masked(e) if e["i"] == 7 else {**e, "x": np.arange(2)}):
        with pytest.raises((OpError, BatchShapeError), match=r"element \d of split \d .*whose mask would be lost"):
            made(getattr(numbers().map(masking), batching)(4))
    with pytest.raises(OpError, match="whose mask would be lost"):
        made(numbers().batch(4).map(masked))
    with pytest.raises(PlanError, match="whose mask would be lost"):
        pecan.sources.Arrays(x=np.ma.masked_array([1, 2], [False, True]))
    filled = numbers().map(masked).map(lambda e: {**e, "x": e["x"].filled(0)})
    assert rows(made(getattr(filled, batching)(4))) == list(range(40))
    ragged = numbers().map(lambda e: {**e, "odd": [[1], [1, 2]] if e["i"] == 7 else np.zeros(2)})
    with pytest.raises(BatchShapeError, match=r"column 'odd' of element 7 of split 0 is a \w+ that no array can"):
        made(getattr(ragged, batching)(4))


TWENTY = 20


def of_rows(engine: Any = "python") -> PecanPipeline:
    return numbers(TWENTY, engine=engine, x=np.zeros((TWENTY, 3)))


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
def test_a_function_without_return_is_refused_when_it_is_written_and_no_other(engine: str) -> None:
    for fn in (forgot, early, functools.partial(forgot), loses(abs), random.shuffle):
        with pytest.raises(PlanError, match=r"map\(on='x'\): .* has no `return` with a value"):
            of_rows(engine).map(fn, on="x")
    for fn in (some, lambda x: None, abs, np.sqrt, functools.partial(some), loses):
        of_rows(engine).map(fn, on="x")


@pytest.mark.parametrize("processes", [False, True])
def test_one_that_changes_its_array_in_place_and_returns_none_ends_the_job_by_name(processes: bool) -> None:
    pipe = of_rows().map(np.random.shuffle, on="x", name="mix", processes=processes).batch(4)
    for on_error in ("raise", "skip"):
        with pytest.raises(OutputTypeError, match=r"mix returned None for each of 8 values, .* element \d") as caught:
            run_engine(pipe, on_error=on_error)
        assert (caught.value.op, caught.value.column) == ("mix", "x")


def test_in_debug_mode_too_but_not_where_some_give_a_value() -> None:
    lists = PecanPipeline(Items([{"x": [row, 1]} for row in range(TWENTY)]))
    with pytest.raises(OutputTypeError, match="sort returned None"):
        list(run_in_process(lists.map(lambda x: x.sort(), on="x", name="sort").plan))
    found = [one["x"] for one in run_in_process(lists.map(lambda x: x if x[0] % 3 == 2 else None, on="x").plan)]
    assert len(found) == TWENTY and found[:3] == [None, None, [2, 1]]


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
        list(run_in_process(batches().map(CUTS[cut]).plan))


def every_third(batch: Any) -> Any:
    return {name: column[batch["i"] % 3 == 0] for name, column in batch.items()}


def two_views(batch: Any) -> Any:
    return {"i": batch["i"], "x": np.concatenate([batch["x"], batch["x"]])}


def flattened(batch: Any) -> Any:
    return {"i": batch["i"], "text": np.array([text for text in batch["text"] if len(text) > 1][:2], object)}


def test_columns_of_their_own_lengths_are_the_users_and_what_may_be_meant_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for part in (run_engine(batches().map(every_third)), run_engine(batches().map(two_views))):
        assert all(batch.rows for batch in part) and not caplog.records

    def beside(batch: Any) -> Any:
        return {"i": batch["i"], "classes": np.arange(3), "extra": {"more": np.arange(4)}}

    run_engine(batches().map(beside, name="once"))
    (record,) = caplog.records
    assert "once: it returned column 'classes' with 3 rows, and 'i' with the 10" in record.getMessage()
    run_engine(batches().map(flattened))
    assert len(caplog.records) == 2
