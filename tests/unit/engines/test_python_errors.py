"""Bad input in the python engine: errors by operator and element, and reports of what is left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines import positions
from pecan_ray.engines.contract import BadElement, EngineOptions, Produced
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.positions import MOST_BAD, MOST_INTERVALS, SkippedPositions
from pecan_ray.engines.python import run_here
from pecan_ray.errors import BatchShapeError, ColumnError, OpError, OutputTypeError, PecanError, SourceError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import END, OUTPUT_BITS, Columns, Element, Lease, Origin, Split
from pecan_ray.sources import Arrays, Items
from tests.unit.engines.engine_leases import (
    ListedLeases,
    Numbered,
    OwnSource,
    column,
    delivered,
    run_engine,
    running,
    whole_leases,
)


def files(
    fail_at: int | None = None, error: type[Exception] = OSError, lengths: tuple[int, ...] = (10, 10)
) -> PecanPipeline:
    """Two files of ten numbers, or others, of which one cannot be read."""

    def make(number: int) -> Element:
        if number == fail_at:
            raise error("the disk is wet")
        return {"i": np.int64(number), "name": f"n{number % 10}"}

    return PecanPipeline(Numbered(*lengths, make=make, path="data/{}.bin"))


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


@pytest.mark.parametrize("threads", [1, 3])
@each_way
def test_an_error_names_operator_file_and_element_and_skip_records_what_is_left_out(threads: int, fused: bool) -> None:
    pipe = batched(files().map(refuses_17), 4, fused)
    with pytest.raises(OpError) as caught:
        run_engine(pipe, order="strict", threads=threads)
    assert place(caught.value) == ("refuses_17", "data/1.bin", 7, None)
    first, *traceback = caught.value.message.splitlines()
    assert first == FAILED and any("in refuses_17" in line for line in traceback)
    assert isinstance(caught.value.__cause__, ValueError)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, threads=threads, on_error="skip")
    assert sorted(column(produced, "i")) == [i + 100 for i in range(20) if i != 17]
    assert bad_of(produced) == [
        BadElement("refuses_17", "element 7 of data/1.bin", FAILED, None, Origin(0, 0, 0, 1, 7))
    ]
    assert delivered(produced) == leases.target(), "positions of bad elements count as dealt with"


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
        (lambda p: p.map(lambda i: later(i), on="i", name="f"), "f returned coroutine .* must return a value. Let the"),
    ],
)
def test_what_is_no_element_is_refused_and_a_column_that_does_not_exist_named(extended: Any, message: str) -> None:
    with pytest.raises(OutputTypeError, match=message) as caught:
        run_engine(extended(files()).batch(2))
    assert place(caught.value)[:3] == ("f", "data/0.bin", 0)
    with pytest.raises(ColumnError, match=r"f: there is no column 'x' in element 0 of .*; there are \['i', 'name'\]"):
        run_engine(files().map(lambda x: x, on="x", name="f").batch(2), on_error="skip")


NUMBERS: list[tuple[Any, Any, str]] = [
    (np.zeros(2), np.zeros(3), r"column 'x' of element 1 of split 0 is float64\[3\], but that of element 0 .*\[2\]"),
    (1, 1.5, r"is float64\[\], but that of element 0 of split 0 is int64\[\]\. Convert elements to one dtype"),
    (1, 1 << 63, r"is a int, but that of element 0 of split 0 is int64\[\]\. Convert it, or fill in"),
    (1.5, None, r"is a NoneType, but that of element 0 of split 0 is float64\[\]\. Convert it, or fill in"),
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


def test_what_a_source_raises_is_a_source_error_that_says_where() -> None:
    with pytest.raises(SourceError, match="the disk is wet"):
        run_engine(files(fail_at=4, error=SourceError).batch(3))
    pipe = files(fail_at=4).batch(3)
    with pytest.raises(SourceError, match=r"cannot read element 4 of data/0\.bin: OSError: the disk is wet") as caught:
        run_engine(pipe)
    assert place(caught.value)[1:3] == ("data/0.bin", 4) and isinstance(caught.value.__cause__, OSError)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, on_error="skip", order="strict")
    assert column(produced, "i") == [0, 1, 2, 3, *range(10, 20)], "the rest of the split is left out"
    (bad,) = bad_of(produced)
    assert (bad.op, bad.where, "the disk is wet" in bad.error) == ("read Numbered", "element 4 of data/0.bin", True)
    assert leases.lengths == {(0, 0, 0): 4, (0, 0, 1): 10}, "nothing is missing behind the break"
    assert delivered(produced) == leases.target()


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


def late_source(fail_at: int | None = None) -> PecanPipeline:
    return files(fail_at, lengths=(400,))


def refuses_130(i: Any) -> Any:
    if i == 130:
        raise ValueError("no")
    if i < 60:
        time.sleep(0.001)  # threads that are done with later elements wait for these
    return i


UNSENDABLE = object()
FAILING = {
    "a function behind a filter": lambda: late_source().filter(lambda _: True).map(refuses_130, on="i"),
    "a function of columns": lambda: PecanPipeline(Arrays(i=np.arange(400))).map(refuses_130, on="i"),
    "a source": lambda: late_source(130).map(lambda i: i, on="i", name="same"),
    "a result": lambda: late_source().map(lambda e: {**e, "o": UNSENDABLE if e["i"] == 130 else "x"}, name="odd"),
    "a function": lambda: late_source().map(refuses_130, on="i"),
    "functions": lambda: late_source().map(refuses_130, on="i").map(lambda i: i + 0, on="i", name="same"),
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
    if not what.endswith("source"):  # an element behind what is taken fails nothing
        taken = run_engine(FAILING[what]().take(130).batch(10), order="strict", threads=threads)
        assert column(taken, "i") == list(range(130))


KEY = (0, 0, 0)
SPLIT_ELEMENTS = 1000
FEW_BAD = 400
"""What an engine tells at a time, in place of `MOST_BAD`."""


def elements(first: int, stop: int) -> tuple[tuple[int, int, int], int, int]:
    return KEY, first << OUTPUT_BITS, stop << OUTPUT_BITS


@dataclass(frozen=True)
class Counted(OwnSource):
    """Numbers in splits of a thousand, which tells how many were read; none can be read from some element on."""

    splits_in_all: int
    torn_at: int = SPLIT_ELEMENTS
    """The element of the last split that cannot be read; 0: no split can be."""
    length_known: bool = True
    read_so_far: list[int] = field(default_factory=lambda: [0])

    def splits(self) -> Iterator[Split]:
        for index in range(self.splits_in_all):
            yield Split(index, elements=SPLIT_ELEMENTS if self.length_known else None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        for number in range(start, SPLIT_ELEMENTS):
            self.read_so_far[0] += 1
            self.check(split, number)
            yield {"i": np.int64(split.index * SPLIT_ELEMENTS + number)}

    def check(self, split: Split, number: int) -> None:
        if number >= self.torn_at and (split.index == self.splits_in_all - 1 or not self.torn_at):
            raise OSError("the disk is wet")


def never(element: Element) -> Any:
    raise ValueError(f"no {element['i']}")


def failing(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.map(never, name="never")


PATHS: dict[str, Callable[[PecanPipeline, Callable[[PecanPipeline], PecanPipeline]], PecanPipeline]] = {
    "filled": lambda pipe, op: op(pipe).batch(8),
    "filled, behind shuffle": lambda pipe, op: op(pipe).shuffle(4).batch(8),
    "elements": lambda pipe, op: op(pipe),
    "padded": lambda pipe, op: op(pipe).padded_batch(8),
    "buckets": lambda pipe, op: op(pipe).bucket_by_length([4], sizes=2, length=lambda e: int(e["i"])),
    "unbatch": lambda pipe, op: op(pipe).batch(8).unbatch(),
    "flat_map": lambda pipe, op: op(pipe.flat_map(lambda e: [e])).batch(8),
    "concat": lambda pipe, op: op(pipe).concat(op(pipe)).batch(8),
    "mix": lambda pipe, op: op(pipe).mix(op(pipe), weights=[1, 1]).batch(8),
    "prefetch": lambda pipe, op: op(pipe).prefetch(3).padded_batch(8),
    "take": lambda pipe, op: op(pipe).take(8).batch(4),
    "skip": lambda pipe, op: op(pipe).skip(2).batch(4),
    "zip": lambda pipe, op: op(pipe).zip(pipe.map(lambda e: {"j": e["i"]})).batch(4),
    "repeat": lambda pipe, op: op(pipe).take(8).repeat(2),
    "remainders": lambda pipe, op: op(pipe).batch(8, drop_remainder=True).unbatch().batch(4),
}


@pytest.mark.parametrize("path", PATHS)
def test_bad_elements_are_told_before_the_data_has_been_gone_through(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "MOST_BAD", FEW_BAD)
    source = Counted(1)
    plan = PATHS[path](PecanPipeline(source), failing).plan
    options = EngineOptions(order="strict", on_error="skip")
    told = next(run_here(plan, options, AllLeases(tuple(plan.sources()), 0, 1)))
    assert (len(told.bad), source.read_so_far[0]) == (FEW_BAD, FEW_BAD), "in a debug run too"
    source = Counted(2)
    with running(PATHS[path](PecanPipeline(source), failing), threads=2, on_error="skip") as (_, batches):
        first = next(batches)
        assert first.rows == 0 and not first.partial and first.columns == {}
        assert FEW_BAD <= len(first.bad) < 2.5 * FEW_BAD
        assert source.read_so_far[0] < 4 * FEW_BAD, "the data was not gone through"
        rest = list(batches)
    assert all(len(one.bad) < 2.5 * FEW_BAD for one in rest)
    counted = {bad.identity for one in (first, *rest) for bad in one.bad}
    twice = path in ("concat", "mix", "repeat")
    assert len(counted) == 2 * SPLIT_ELEMENTS * (2 if twice else 1), "each is told once, in each pass"


@pytest.mark.parametrize("path", ["filled", "elements", "padded"])
def test_a_filter_that_keeps_nothing_reports_what_is_done(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_DROPPED", 2000)
    source = Counted(30)
    with running(PATHS[path](PecanPipeline(source), lambda pipe: pipe.filter(lambda e: False)), threads=2) as (_, made):
        first = next(made)
        # The other thread reads on until this one is given a turn, which a busy machine puts off.
        assert first.rows == 0 and 2000 <= source.read_so_far[0] < 30 * SPLIT_ELEMENTS, "before all were read"
        assert sum(map(len, first.spans.values())) < 100, "neighbours are one interval"
        carried = delivered([first, *made])
    assert all(spans.contains_all(0, SPLIT_ELEMENTS << OUTPUT_BITS) for spans in carried.values())
    assert len(carried) == source.splits_in_all


class ColumnarCounted(Counted):
    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        self.check(split, start)
        yield {"i": np.arange(start, SPLIT_ELEMENTS)}


@pytest.mark.parametrize("kind", [Counted, ColumnarCounted])
def test_splits_that_cannot_be_read_are_told_of_before_all_were_tried(kind: type[Counted]) -> None:
    first, *rest = run_engine(PecanPipeline(kind(3 * MOST_BAD, torn_at=0)).batch(8), on_error="skip")
    assert MOST_BAD <= len(first.bad) < 1.1 * MOST_BAD
    assert all(bad.elements_left_out == SPLIT_ELEMENTS for bad in first.bad)
    assert sum(len(one.bad) for one in rest) == 3 * MOST_BAD - len(first.bad)


def test_neighbours_become_one_interval_in_whatever_order_they_come() -> None:
    skipped_positions = SkippedPositions()
    numbers = np.random.default_rng(0).permutation(8 * MOST_INTERVALS).tolist()
    most = 0
    for number in numbers:
        skipped_positions.add([elements(number, number + 1)])
        most = max(most, len(skipped_positions._parts))
    assert skipped_positions.due, "half of them, at random, are many intervals"
    assert most <= 8 * MOST_INTERVALS
    report = skipped_positions.report(3)
    assert report is not None and report.spans == {KEY: [(0, 8 * MOST_INTERVALS << OUTPUT_BITS)]}
    assert (report.epoch, report.rows, report.partial) == (3, 0, False)
    assert skipped_positions.report(3) is None and not skipped_positions.due


def spans_of(*elements: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((a << OUTPUT_BITS, END if b < 0 else b << OUTPUT_BITS) for a, b in elements)


@pytest.mark.parametrize(
    ("spans", "left_out", "length"),
    [
        (spans_of((0, -1)), 400, 600),
        (spans_of((0, 10), (590, 610), (700, 710)), 20, 600),
        (spans_of((700, 710), (990, -1)), 20, 700),
    ],
)
def test_a_break_ends_the_split_and_tells_how_much_is_lost(
    spans: tuple[tuple[int, int], ...], left_out: int, length: int
) -> None:
    source = Counted(1, 600)
    (split,) = source.splits()
    leases = ListedLeases([Lease(0, split, spans=spans)])
    produced = run_engine(PecanPipeline(source).batch(64), leases, on_error="skip")
    assert [bad.elements_left_out for bad in bad_of(produced)] == [left_out]
    assert leases.lengths == {KEY: length}
    assert delivered(produced) == leases.target()
    assert [bad.elements_left_out for bad in bad_in(PecanPipeline(Counted(1, 600, length_known=False)))] == [1]


def refuse_threes(element: Element) -> Element:
    if element["i"] % 3 == 0:
        raise ValueError("a three")
    return element


def bad_in(pipe: PecanPipeline, leases: list[Lease] | None = None, **options: Any) -> list[BadElement]:
    produced = run_engine(pipe, leases, on_error="skip", order="strict", **options)
    return [bad for one in produced for bad in one.bad]


def identities(pipe: PecanPipeline, leases: list[Lease], **options: Any) -> list[Any]:
    return [bad.identity for bad in bad_in(pipe, leases, **options)]


def test_an_element_that_is_read_again_has_the_same_identity() -> None:
    source = Counted(1)
    (split,) = source.splits()
    pipe = PecanPipeline(source).map(refuse_threes, name="threes").batch(2)
    first = identities(pipe, [Lease(0, split, spans=spans_of((0, 12)))])
    again = identities(pipe, [Lease(0, split, spans=spans_of((3, 5), (7, 12)))], threads=3)
    assert first == [("threes", Origin(0, 0, 0, 0, number)) for number in (0, 3, 6, 9)]
    assert len(again) == 2 and set(again) == {first[1], first[3]}
    assert identities(pipe, [Lease(1, split, spans=spans_of((3, 4)))]) != first[1:2], "another epoch counts again"
    assert identities(pipe, [Lease(0, split, pass_index=1, spans=spans_of((3, 4)))]) != first[1:2]
    (bad,) = bad_in(PecanPipeline(Counted(1, 600)).batch(4))
    assert (bad.identity, bad.origin) == (("read Counted", Origin(0, 0, 0, 0, 600)), None)
    pipe = PecanPipeline(source).flat_map(lambda e: [e, e]).shuffle(2).map(never, name="never").batch(2)
    found = identities(pipe, [Lease(0, split, spans=spans_of((0, 1)))])
    half = 1 << OUTPUT_BITS - 1
    assert sorted(one[1].output for one in found) == [0, half], "outputs of one element have their own"
