"""Bad input in the python engine: what an error does not wait for, and reports of what is left out on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pecan_ray.engines import positions
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.in_process import AllLeases
from pecan_ray.engines.positions import MOST_BAD
from pecan_ray.engines.python import feed, run_here
from pecan_ray.errors import OpError, PecanError, SourceError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import END, OUTPUT_BITS, Columns, Element, Lease, Origin, Split
from pecan_ray.sources import Arrays, Parquet, TextLines
from tests.unit.engines.bad_cases import files, refuses_7
from tests.unit.engines.engine_leases import (
    ListedLeases,
    OwnSource,
    bad_of,
    column,
    delivered,
    numbers,
    run_engine,
    running,
    whole_leases,
)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "behind a shuffle"])
def test_an_error_has_its_cause_and_traceback_and_what_is_left_out_where_it_comes_from(fused: bool) -> None:
    pipe = (files() if fused else files().shuffle(1)).map(refuses_7).batch(4)
    with pytest.raises(OpError, match="refuses_7 failed on element 2 of") as caught:
        run_engine(pipe, order="strict")
    assert "in refuses_7" in caught.value.message and isinstance(caught.value.__cause__, ValueError)
    leases = ListedLeases(whole_leases(tuple(pipe.plan.sources())))
    produced = run_engine(pipe, leases, threads=3, on_error="skip")
    assert sorted(column(produced)) == [i + 100 for i in range(10) if i != 7]
    assert [(bad.element, bad.origin) for bad in bad_of(produced)] == [(None, Origin(0, 0, 0, 1, 2))]
    assert delivered(produced) == leases.target(), "positions of bad elements count as dealt with"
    with pytest.raises(SourceError, match="the disk is wet") as unread:
        run_engine(files(fail_at=4).batch(3))
    assert isinstance(unread.value.__cause__, OSError)


def fails_at_77(number: Any) -> Any:
    if int(number) == 77:
        raise ValueError("no")
    return number


def test_an_error_names_an_element_by_its_place_in_the_file_and_not_in_a_split_of_it(tmp_path: Path) -> None:
    rows, lines = tmp_path / "rows.parquet", tmp_path / "lines.txt"
    pq.write_table(pa.table({"i": range(100)}), rows, row_group_size=10)
    with pytest.raises(OpError, match=f"element 77 of {rows}: ") as caught:
        run_engine(PecanPipeline(Parquet(str(rows), split_bytes=1)).map(fails_at_77, on="i").batch(4), order="strict")
    assert (caught.value.file, caught.value.element) == (str(rows), 77)
    lines.write_text("".join(f"{number:02}\n" for number in range(100)))
    (split,) = (one for one in TextLines(str(lines), split_bytes=60).splits() if one.start <= 3 * 77 < (one.stop or 0))
    number = 77 - -(-split.start // 3)  # lines that begin in the split are its own
    text = PecanPipeline(TextLines(str(lines), split_bytes=60)).map(fails_at_77, on="text")
    with pytest.raises(OpError, match=f"element {number} behind byte {split.start} of {lines}: "):
        run_engine(text.batch(4), order="strict")
    with pytest.raises(OpError, match=f"failed on the batch that begins with element 76 of {rows}: "):
        run_engine(PecanPipeline(Parquet(str(rows))).batch(4).map(lambda batch: {"i": [*map(fails_at_77, batch["i"])]}))


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
        run_engine(numbers(20).map(waits_or_fails, on="i").batch(4), threads=2)
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


@pytest.mark.parametrize("what", FAILING)
def test_where_order_is_kept_all_that_comes_before_a_bad_element_comes_first(what: str) -> None:
    for size in (10, 7):
        with running(FAILING[what]().batch(size), order="strict", threads=8) as (_, batches):
            came = [next(batches).columns["i"] for _ in range(130 // size)]
            with pytest.raises(PecanError):
                next(batches)
        assert np.concatenate(came).tolist() == list(range(130 // size * size))
    if not what.endswith("source"):  # an element behind what is taken fails nothing
        assert column(run_engine(FAILING[what]().take(130).batch(10), order="strict", threads=8)) == list(range(130))


KEY = (0, 0, 0)
SPLIT_ELEMENTS = 1000
FEW_BAD = 400
"""What an engine tells at a time, in place of `MOST_BAD`."""


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


@dataclass(frozen=True)
class Held(Counted):
    """Gives no more than so many elements before it may."""

    most: int = 4 * FEW_BAD
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def check(self, split: Split, number: int) -> None:
        if self.read_so_far[0] > self.most:
            assert self.may_go_on.wait(60), "nothing is told before the data was gone through"
        super().check(split, number)


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
    monkeypatch.setattr(feed, "MOST_PER_CHUNK", 16)  # threads end what they have while the reader is on its way to tell
    source = Counted(1)
    plan = PATHS[path](PecanPipeline(source), failing).plan
    options = EngineOptions(order="strict", on_error="skip")
    told = next(run_here(plan, options, AllLeases(tuple(plan.sources()), 0, 1)))
    assert (len(told.bad), source.read_so_far[0]) == (FEW_BAD, FEW_BAD), "in a debug run too"
    source = Held(2)
    with running(PATHS[path](PecanPipeline(source), failing), threads=2, on_error="skip") as (_, batches):
        first = next(batches)
        source.may_go_on.set()
        assert first.rows == 0 and not first.partial and first.columns == {}
        assert FEW_BAD <= len(first.bad) < 2.5 * FEW_BAD
        rest = list(batches)
    assert all(len(one.bad) < 2.5 * FEW_BAD for one in rest)
    counted = {bad.identity for one in (first, *rest) for bad in one.bad}
    twice = path in ("concat", "mix", "repeat")
    assert len(counted) == 2 * SPLIT_ELEMENTS * (2 if twice else 1), "each is told once, in each pass"


@pytest.mark.parametrize("path", ["filled", "elements", "padded"])
def test_a_filter_that_keeps_nothing_reports_what_is_done(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_DROPPED", 2000)
    source = Held(30, most=15 * SPLIT_ELEMENTS)
    with running(PATHS[path](PecanPipeline(source), lambda pipe: pipe.filter(lambda e: False)), threads=2) as (_, made):
        first = next(made)
        source.may_go_on.set()
        assert first.rows == 0 and source.read_so_far[0] >= 2000
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
    (of_unknown_length,) = bad_of(run_engine(PecanPipeline(Counted(1, 600, length_known=False)), on_error="skip"))
    assert of_unknown_length.elements_left_out == 1


def refuse_threes(element: Element) -> Element:
    if element["i"] % 3 == 0:
        raise ValueError("a three")
    return element


def identities(pipe: PecanPipeline, leases: list[Lease], **options: Any) -> list[Any]:
    return [bad.identity for bad in bad_of(run_engine(pipe, leases, on_error="skip", order="strict", **options))]


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
    (bad,) = bad_of(run_engine(PecanPipeline(Counted(1, 600)).batch(4), on_error="skip"))
    assert (bad.identity, bad.origin) == (("read Counted", Origin(0, 0, 0, 0, 600)), None)
    pipe = PecanPipeline(source).flat_map(lambda e: [e, e]).shuffle(2).map(never, name="never").batch(2)
    found = identities(pipe, [Lease(0, split, spans=spans_of((0, 1)))])
    half = 1 << OUTPUT_BITS - 1
    assert sorted(one[1].output for one in found) == [0, half], "outputs of one element have their own"
