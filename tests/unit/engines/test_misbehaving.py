"""Functions that misbehave: whatever they raise or return, an error names operator and element, and nothing hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.engines.contract import EngineOptions, Produced
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.python import complete_calls
from pecan_ray.engines.python.engine import PythonEngine
from pecan_ray.engines.sendable import why_unsendable
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.errors import BatchShapeError, OpError, OutputTypeError, PlanError, SourceError, listed, told
from pecan_ray.options import OnError
from pecan_ray.plan.splits import Split


class OwnError(BaseException):
    """Meant to end the process."""


class SilentError(Exception):
    """Its text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    """It holds what cannot be sent."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Unloadable:
    """It can be pickled, and not unpickled."""

    def __init__(self) -> None:
        self.x = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("not here")


class Endless:
    """Its pickling ends the process, if one lets it."""

    def __reduce__(self) -> Any:
        sys.exit(3)


RAISED = [
    SystemExit(3),
    GeneratorExit(),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    StopIteration(),
    OwnError("out"),
    SilentError(),
    UnpicklableError(),
    MemoryError("no room for 8 PiB"),
]
BASE = [error for error in RAISED if not isinstance(error, Exception)]


def numbers(count: int = 40) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(count), split_rows=10), name="numbers")


def at_seven(error: BaseException) -> Any:
    def fail(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] == 7:
            raise error
        return element

    return fail


def made(pipe: pecan.PecanPipeline, on_error: OnError = "raise") -> list[Produced]:
    """Run a pipeline as a worker does: in threads, of which none is the one that Ctrl-C reaches."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_made, pipe, on_error).result()


def _made(pipe: pecan.PecanPipeline, on_error: OnError) -> list[Produced]:
    plan = pipe.plan
    sources = tuple(plan.sources())
    engine = PythonEngine(plan, sources, EngineOptions(threads=2, on_error=on_error), HeapSlots())
    try:
        return list(engine.batches(AllLeases(sources, 0, 1)))
    finally:
        engine.close()


def rows(batches: list[Produced]) -> list[int]:
    return sorted(int(x) for one in batches if one.rows for x in one.columns["i"])


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "batch", "bucket"])
def test_whatever_a_function_raises_is_an_error_by_name(error: BaseException, kind: str) -> None:
    fail, pipe = at_seven(error), numbers()

    def fail_batch(batch: dict[str, Any]) -> dict[str, Any]:
        raise error

    if kind == "batch":
        pipe = pipe.batch(4).map(fail_batch)
    elif kind == "bucket":
        pipe = pipe.bucket_by_length([3], sizes=2, length=lambda element: len(fail(element)))
    else:
        answers = {"map": fail, "filter": lambda e: bool(fail(e)), "flat_map": lambda e: [fail(e)]}
        pipe = getattr(pipe, kind)(answers[kind]).batch(4)
    with pytest.raises(OpError, match=type(error).__name__) as caught:
        made(pipe)
    assert "element" in str(caught.value) and caught.value.op


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_on_error_is_for_exceptions_and_what_was_meant_for_the_process_ends_the_job(error: BaseException) -> None:
    pipe = numbers().map(at_seven(error)).batch(4)
    if isinstance(error, Exception):
        found = made(pipe, "skip")
        assert rows(found) == [i for i in range(40) if i != 7]
        (bad,) = [bad for one in found for bad in one.bad]
        assert type(error).__name__ in bad.error
    else:
        with pytest.raises(OpError, match=type(error).__name__):
            made(pipe, "skip")


@pytest.mark.parametrize(
    "error", [e for e in RAISED if not isinstance(e, KeyboardInterrupt)], ids=lambda error: type(error).__name__
)
def test_a_debug_run_follows_the_same_rules(error: BaseException) -> None:
    pipe = numbers().map(at_seven(error)).batch(4)
    plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
    with pytest.raises(type(error) if plain else OpError):
        list(pipe.iter_batches(epochs=1, debug=True))


def test_ctrl_c_in_a_debug_run_is_nobodys_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        list(numbers().map(at_seven(KeyboardInterrupt())).batch(4).iter_batches(epochs=1, debug=True))


class Failing:
    """A source that raises what it is told to."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def splits(self) -> Iterator[Split]:
        yield Split(0)

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        yield {"i": 0}
        raise self._error

    def num_elements(self) -> int | None:
        return None

    def identity(self) -> str:
        return "failing"


@pytest.mark.parametrize("error", BASE, ids=lambda error: type(error).__name__)
def test_whatever_a_source_raises_is_an_error_by_name(error: BaseException) -> None:
    pipe = pecan.PecanPipeline(Failing(error)).batch(4)
    for on_error in ("raise", "skip"):
        with pytest.raises(SourceError, match=rf"Failing cannot read element 1 .*{type(error).__name__}"):
            made(pipe, on_error)


def a_generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("make", [threading.Lock, a_generator, Unloadable, Endless])
def test_a_column_that_cannot_be_sent_is_a_bad_element(make: Any) -> None:
    def add(element: dict[str, Any]) -> dict[str, Any]:
        return {**element, "odd": make() if element["i"] == 7 else [1, "a"]}

    for pipe in (numbers().map(add, name="add").batch(4), numbers().map(add, name="add")):
        with pytest.raises(OpError, match="add: column 'odd' of element 7 of split 0 cannot be sent"):
            made(pipe)
        with pytest.raises(OpError, match="add: column 'odd' of element 7 of split 0 cannot be sent"):
            list(pipe.iter_batches(epochs=1, debug=True))
        found = made(pipe, "skip")
        assert len([bad for one in found for bad in one.bad]) == 1
    assert rows(made(numbers().map(add).batch(4), "skip")) == [i for i in range(40) if i != 7]


def test_what_a_function_on_batches_makes_must_be_sendable_too() -> None:
    def lock(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "lock": [None, None, threading.Lock(), None]}

    with pytest.raises(OpError, match=r"lock: column 'lock' of .*cannot be sent to the trainer: it holds a"):
        made(numbers().batch(4).map(lock, name="lock"))


def test_a_dropped_column_need_not_be_sendable() -> None:
    pipe = numbers().map(lambda e: {**e, "lock": threading.Lock()}).map(lambda e: {"i": e["i"]}).batch(4)
    assert rows(made(pipe)) == list(range(40))


def test_a_quarantined_element_is_kept_as_far_as_it_can_be() -> None:
    def lock(element: dict[str, Any]) -> dict[str, Any]:
        return {**element, "lock": threading.Lock()}

    found = made(
        numbers().map(lock).map(at_seven(ValueError("seven"))).map(lambda e: {"i": e["i"]}).batch(4), "quarantine"
    )
    (bad,) = [bad for one in found for bad in one.bad]
    assert "seven" in bad.error and why_unsendable(bad.element) == ""


def test_processes_tell_whatever_a_function_raises() -> None:
    def leave(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] == 7:
            sys.exit(3)
        return element

    with pytest.raises(OpError, match="SystemExit"):
        made(numbers().map(leave, processes=True).batch(4))


def test_an_exception_without_a_text_is_told() -> None:
    assert told(SilentError()) == "SilentError: <its text is not known: __str__ raised RuntimeError>"


class NoArray:
    """It answers every question by an exception."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError(f"no {name}")


@pytest.mark.parametrize("make", [NoArray, lambda: [[1], [1, 2]]])
@pytest.mark.parametrize("batching", ["batch", "padded_batch"])
def test_a_value_of_which_no_array_can_be_made_is_told_by_name(make: Any, batching: str) -> None:
    pipe = numbers().map(lambda e: {**e, "odd": make() if e["i"] == 7 else np.zeros(2)})
    with pytest.raises(BatchShapeError, match=r"column 'odd' of element 7 of split 0 is a \w+ that no array can be"):
        made(getattr(pipe, batching)(4))


def test_columns_whose_names_cannot_be_compared_are_told_too() -> None:
    with pytest.raises(BatchShapeError, match="element 7 of split 0 has the columns"):
        made(numbers().map(lambda e: {1: 2} if e["i"] == 7 else e).batch(4))


@pytest.mark.parametrize("answer", [None, np.ma.masked], ids=lambda answer: type(answer).__name__)
def test_what_is_no_answer_of_a_filter_is_an_error_and_no_choice(answer: Any) -> None:
    pipe = numbers().filter(lambda e: answer if e["i"] == 7 else True, name="odd").batch(4)
    with pytest.raises(OutputTypeError, match=r"odd returned \w+ for element 7 of split 0, .*: True or False"):
        made(pipe)
    assert rows(made(pipe, "skip")) == [i for i in range(40) if i != 7]


@pytest.mark.parametrize("answer", [1, 2.5, "text", [0], np.True_, np.array([1])], ids=lambda one: type(one).__name__)
def test_what_python_takes_for_true_is_an_answer_of_a_filter(answer: Any) -> None:
    assert rows(made(numbers().filter(lambda e: answer if e["i"] == 7 else False).batch(4))) == [7]


@pytest.mark.parametrize("nan", [float("nan"), np.float32("nan")])
def test_nan_is_no_answer_of_a_filter(nan: Any) -> None:
    pipe = numbers().filter(lambda e: nan if e["i"] == 7 else 1.0, name="odd").batch(4)
    with pytest.raises(OpError, match="odd failed on element 7 of split 0: ValueError: it returned NaN"):
        made(pipe)
    assert rows(made(pipe, "skip")) == [i for i in range(40) if i != 7]


def test_columns_of_unequal_lengths_are_told_of_what_made_them() -> None:
    def uneven(batch: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"i": batch["i"], "j": batch["i"][: 3 if 7 in batch["i"] else None]}]

    pipe = numbers().batch(4).flat_map(uneven, name="odd").unbatch().batch(4)
    with pytest.raises(BatchShapeError, match="odd: column 'j' of the batch that begins with element 4") as caught:
        made(pipe)
    assert caught.value.op == "odd"
    produced = made(pipe, "skip")
    assert rows(produced) == [i for i in range(40) if i not in range(4, 8)]
    [bad] = [one for batch in produced for one in batch.bad]
    assert bad.op == "odd" and bad.elements_left_out == 4


@pytest.mark.parametrize("length", ["3", b"3", None])
def test_a_length_that_is_no_number_is_an_error_by_name(length: Any) -> None:
    pipe = numbers().bucket_by_length([4], sizes=2, length=lambda e: length if e["i"] == 7 else 3)
    with pytest.raises(OutputTypeError, match=r"length returned \w+ for element 7 of split 0"):
        made(pipe)
    assert rows(made(pipe, "skip")) == [i for i in range(40) if i != 7]


def test_a_flat_map_without_an_end_is_an_error_and_no_full_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complete_calls, "MOST_OUTPUTS", 1000)

    def endless(element: dict[str, Any]) -> Iterator[dict[str, Any]]:
        while True:
            yield element
            if element["i"] != 7:
                return

    pipe = numbers().flat_map(endless).batch(4)
    with pytest.raises(OpError, match="element 7 of split 0: ValueError: it yields more than 1,000 elements for one"):
        made(pipe)
    assert rows(made(pipe, "skip")) == [i for i in range(40) if i != 7]


def masked(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": np.ma.masked_array([1, 2], [False, True])}


@pytest.mark.parametrize("batching", ["batch", "padded_batch"])
def test_a_mask_is_never_lost_in_silence(batching: str) -> None:
    with pytest.raises(OpError, match=r"masked: column 'x' of element \d of split \d .*whose mask would be lost"):
        made(getattr(numbers().map(masked), batching)(4))
    with pytest.raises(OpError, match="whose mask would be lost"):
        made(numbers().batch(4).map(masked))
    with pytest.raises(PlanError, match="whose mask would be lost"):
        pecan.sources.Arrays(x=np.ma.masked_array([1, 2], [False, True]))
    filled = numbers().map(masked).map(lambda e: {**e, "x": e["x"].filled(0)})
    assert rows(made(getattr(filled, batching)(4))) == list(range(40))


def test_a_mask_in_one_element_of_a_batch_is_not_lost_either() -> None:
    pipe = numbers().map(lambda e: masked(e) if e["i"] == 7 else {**e, "x": np.arange(2)}).batch(4)
    with pytest.raises((OpError, BatchShapeError), match=r"element 7 of split 0 .*whose mask would be lost"):
        made(pipe)


class OwnDict(dict[Any, Any]):
    """A dict that cannot tell its columns."""

    def keys(self) -> Any:
        raise RuntimeError("no keys")

    def __iter__(self) -> Any:
        raise RuntimeError("no iterator")


def test_an_element_that_cannot_tell_its_columns_is_an_error_by_name() -> None:
    pipe = numbers().map(lambda e: OwnDict(e) if e["i"] == 7 else e, name="own").batch(4)
    with pytest.raises(OpError, match="own failed on element 7 of split 0: RuntimeError: no "):
        made(pipe)
    assert rows(made(pipe, "skip")) == [i for i in range(40) if i != 7]


class Unnamed:
    """A name of a column that cannot be told."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


def test_a_message_does_not_fail_with_what_it_tells() -> None:
    with pytest.raises(BatchShapeError, match="a Unnamed whose __repr__ raised RuntimeError"):
        made(numbers().map(lambda e: {Unnamed(): e["i"]}).batch(4))


def test_of_many_columns_those_are_listed_that_others_lack() -> None:
    names = [f"c{number}" for number in range(1000)]
    assert listed([*names, "new"], names) == "['new', and 1,000 more]"
    assert listed(["b", "a"]) == "['a', 'b']"
