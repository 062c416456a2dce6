"""Bad input in the python engine: errors that name the operator, the file, the element and the column."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.contract import BadElement, Produced
from pecan_ray.errors import BatchShapeError, ColumnError, OpError, OutputTypeError, PecanError, SourceError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Element, Origin, Split
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import (
    ListedLeases,
    OwnSource,
    column,
    delivered,
    run_engine,
    running,
    whole_leases,
)


class Files(OwnSource):
    """A source of two files with ten elements each; may fail while it reads."""

    def __init__(self, fail_at: int | None = None, error: type[Exception] = SourceError) -> None:
        self.fail_at, self.error = fail_at, error

    def splits(self) -> Iterator[Split]:
        for index in range(2):
            yield Split(index, path=f"data/{index}.bin")

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for number in range(start, 10):
            if split.index == 0 and number == self.fail_at:
                raise self.error("the disk is wet")
            yield {"i": np.int64(10 * split.index + number), "name": f"n{number}"}


def files(fail_at: int | None = None, error: type[Exception] = SourceError) -> PecanPipeline:
    return PecanPipeline(Files(fail_at, error))


def refuses_17(element: Element) -> Element:
    if element["i"] == 17:
        raise ValueError("no sevens\nplease")
    return {**element, "i": element["i"] + 100}


def place(error: PecanError) -> tuple[Any, ...]:
    return tuple(error.fields.get(name) for name in ("op", "file", "element", "column"))


def bad_of(produced: list[Produced]) -> list[BadElement]:
    return [bad for batch in produced for bad in batch.bad]


def batched(pipe: PecanPipeline, size: int, fused: bool) -> PecanPipeline:
    """Batches that threads fill as they call functions, or that are filled behind another operator."""
    return pipe.batch(size) if fused else pipe.shuffle(1).batch(size)


each_way = pytest.mark.parametrize("fused", [True, False], ids=["fused", "behind a shuffle"])
FAILED = "refuses_17 failed on element 7 of data/1.bin: ValueError: no sevens"


@each_way
def test_an_error_names_operator_file_and_element_and_carries_the_traceback(fused: bool) -> None:
    with pytest.raises(OpError) as caught:
        run_engine(batched(files().map(refuses_17), 4, fused), order="strict", threads=2)
    assert place(caught.value) == ("refuses_17", "data/1.bin", 7, None)
    lines = caught.value.message.splitlines()
    assert lines[0] == FAILED
    assert any("in refuses_17" in line for line in lines)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("threads", [1, 3])
@each_way
def test_skip_records_what_it_leaves_out(threads: int, fused: bool) -> None:
    pipe = batched(files().map(refuses_17), 4, fused)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, threads=threads, on_error="skip")
    assert sorted(column(produced, "i")) == [i + 100 for i in range(20) if i != 17]
    assert bad_of(produced) == [
        BadElement("refuses_17", "element 7 of data/1.bin", FAILED, None, Origin(0, 0, 0, 1, 7))
    ]
    assert delivered(produced) == leases.wanted(), "positions of bad elements count as dealt with"


def test_an_error_in_a_generator_of_outputs_leaves_out_all_of_them() -> None:
    def unfinished(element: Element) -> Iterator[Element]:
        yield element
        if element["i"] == 3:
            raise KeyError("half way")

    with pytest.raises(OpError, match=r"unfinished failed on element 3 of data/0\.bin: KeyError: 'half way'"):
        run_engine(files().flat_map(unfinished).batch(2))
    produced = run_engine(files().flat_map(unfinished).batch(19), on_error="skip")
    assert sorted(column(produced, "i")) == [0, 1, 2, *range(4, 20)]
    assert [bad.where for bad in bad_of(produced)] == ["element 3 of data/0.bin"]


def test_quarantine_keeps_the_element_as_the_source_gave_it() -> None:
    def invalidates(element: Element) -> Element:
        element["i"] += 1000
        element["x"][:] = 0
        return element

    def fails_at_1017(element: Element) -> Element:
        assert element["i"] != 1017
        return element

    pipe = files().map(lambda e: {**e, "x": np.ones(2)}, name="widen").shuffle(2).map(invalidates).map(fails_at_1017)
    (bad,) = bad_of(run_engine(pipe.batch(4), on_error="quarantine"))
    assert (bad.op, bad.where) == ("fails_at_1017", "element 7 of data/1.bin")
    assert bad.element["i"] == 17 and bad.element["x"].tolist() == [1, 1] and bad.element["name"] == "n7"


async def later(value: Any) -> Any:
    return value


@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
@pytest.mark.parametrize(
    ("extended", "message"),
    [
        (lambda p: p.map(lambda e: e["i"], name="f"), r"f returned int64 .*a dict .*pass on=\"column\""),
        (lambda p: p.map(lambda e: None, name="f"), "f returned NoneType for element 0"),
        (lambda p: p.flat_map(lambda e: e, name="f"), "f returned dict .*a list of elements"),
        (lambda p: p.flat_map(lambda e: [1], name="f"), "f returned int .*dicts from column name to value"),
        (lambda p: p.flat_map(lambda i: i, on="i", name="f"), r"f returned int64 .*iterable of them\)\.$"),
        (
            lambda p: p.map(lambda value: later(value), on="i", name="f").map(lambda i: i, on="i"),
            r"f returned coroutine for element 0 .* must return a value. Let the",
        ),
    ],
)
def test_what_is_no_element_is_refused(extended: Any, message: str) -> None:
    with pytest.raises(OutputTypeError, match=message) as caught:
        run_engine(extended(files()).batch(2))
    assert place(caught.value)[:3] == ("f", "data/0.bin", 0)


def test_a_column_that_does_not_exist_is_named_beside_those_that_do() -> None:
    with pytest.raises(ColumnError, match=r"f: there is no column 'x' in element 0 of .*; there are \['i', 'name'\]"):
        run_engine(files().map(lambda x: x, on="x", name="f").batch(2), on_error="skip")


NUMBERS: list[tuple[Any, Any, str]] = [
    (np.zeros(2), np.zeros(3), r"column 'x' of element 1 of split 0 is float64\[3\], but that of element 0 .*\[2\]"),
    (1, 1.5, r"is float64\[\], but that of element 0 of split 0 is int64\[\]\. Convert elements to one dtype"),
    (1, 1 << 63, r"is a int, but that of element 0 of split 0 is int64\[\]\. Convert it, or fill in"),
    (np.int8(1), np.int64(1), r"is int64\[\], but that of element 0 of split 0 is int8\[\]\. Convert elements to one"),
    (np.datetime64(1, "s"), np.datetime64(1, "ns"), r"is datetime64\[ns\]\[\], but that of .* is datetime64\[s\]\[\]"),
    (1.5, None, r"is a NoneType, but that of element 0 of split 0 is float64\[\]\. Convert it, or fill in"),
    (None, 1.5, r"is float64\[\], but that of element 0 of split 0 is a NoneType\. Convert one of them, or fill in"),
    ("a", np.zeros(2), r"is float64\[2\], but that of element 0 of split 0 is a str"),
]


@each_way
def test_elements_that_differ_are_refused_whichever_comes_first(fused: bool) -> None:
    mismatches = [({"x": first}, {"x": second}, said, "x") for first, second, said in NUMBERS]
    mismatches.append(
        ({"x": 1}, {"x": 2, "y": 3}, r"element 1 of split 0 has the columns \['x', 'y'\], but .*\['x'\]", "y")
    )
    for first, second, said, name in mismatches:
        pipe = PecanPipeline(Items([first, second], split_rows=2))
        with pytest.raises(BatchShapeError, match=said) as caught:
            run_engine(batched(pipe, 2, fused), order="strict")
        assert place(caught.value) == ("batch", "", 1, name)


@pytest.mark.parametrize("error", [SourceError, OSError])
def test_what_a_source_raises_is_a_source_error_that_says_where(error: type[Exception]) -> None:
    pipe = files(fail_at=4, error=error).batch(3)
    with pytest.raises(SourceError, match="the disk is wet") as caught:
        run_engine(pipe)
    if error is OSError:
        assert "Files cannot read element 4 of data/0.bin: OSError: the disk is wet" in str(caught.value)
        assert place(caught.value)[1:3] == ("data/0.bin", 4) and isinstance(caught.value.__cause__, OSError)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, on_error="skip", order="strict")
    assert column(produced, "i") == [0, 1, 2, 3, *range(10, 20)], "the rest of the split is left out"
    (bad,) = bad_of(produced)
    assert (bad.op, bad.where, "the disk is wet" in bad.error) == ("read Files", "element 4 of data/0.bin", True)
    assert leases.lengths == {(0, 0, 0): 4, (0, 0, 1): 10}, "nothing is missing behind the break"
    assert delivered(produced) == leases.wanted()


def test_an_error_does_not_wait_for_elements_that_are_stuck() -> None:
    may_go_on, went_on = threading.Event(), threading.Event()

    def waits_or_fails(i: Any) -> Any:
        if i == 0:
            may_go_on.wait(60)
            went_on.set()
        elif i == 5:
            raise ValueError("five")
        return i

    with pytest.raises(OpError, match="five"):
        run_engine(files().map(waits_or_fails, on="i").batch(4), threads=2)
    assert not went_on.is_set()
    may_go_on.set()


def late_source(fail_at: int) -> PecanPipeline:
    """Numbers of which reading fails at one."""

    class Numbers(OwnSource):
        def splits(self) -> Iterator[Split]:
            yield Split(0, path="data/0.bin")

        def read(self, split: Split, start: int = 0) -> Iterator[Element]:
            for number in range(start, 400):
                if number == fail_at:
                    raise SourceError("the disk is wet")
                yield {"i": np.int64(number)}

    return PecanPipeline(Numbers())


def refuses_130(i: Any) -> Any:
    if i == 130:
        raise ValueError("no")
    if i < 60:
        time.sleep(0.001)  # threads that are done with later elements wait for these
    return i


UNSENDABLE = object()
FAILING = {
    "a function": lambda: late_source(400).map(refuses_130, on="i"),
    "functions": lambda: late_source(400).map(refuses_130, on="i").map(lambda i: i + 0, on="i", name="same"),
    "a function behind a filter": lambda: late_source(400).filter(lambda _: True).map(refuses_130, on="i"),
    "a source": lambda: late_source(130).map(lambda i: i, on="i", name="same"),
    "a result": lambda: late_source(400).map(lambda e: {**e, "o": UNSENDABLE if e["i"] == 130 else "x"}, name="odd"),
}


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("what", FAILING)
def test_where_order_is_kept_all_that_comes_before_a_bad_element_comes_first(what: str, threads: int) -> None:
    for size in (10, 7):
        with running(FAILING[what]().batch(size), order="strict", threads=threads) as (_, batches):
            came = [next(batches).columns["i"] for _ in range(130 // size)]
            with pytest.raises(PecanError):
                next(batches)
        assert np.concatenate(came).tolist() == list(range(130 // size * size))


def test_an_element_behind_what_is_taken_fails_nothing() -> None:
    taken = run_engine(FAILING["a function"]().take(130).batch(10), order="strict", threads=8)
    assert column(taken, "i") == list(range(130))
