"""What yields no batch, filtered and bad elements, is reported while the work goes on, and costs little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines import positions
from pecan_ray.engines.contract import BadElement, EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.positions import MOST_BAD, MOST_INTERVALS, SkippedPositions
from pecan_ray.engines.python import run_here
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import END, OUTPUT_BITS, Columns, Element, Lease, Origin, Split
from pecan_ray.sampling.spans import Spans
from tests.unit.engines.engine_leases import ListedLeases, OwnSource, delivered, run_engine, running

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


class ColumnarCounted(Counted):
    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        for first in range(start, SPLIT_ELEMENTS, 100):
            self.check(split, first)
            yield {"i": np.arange(first, min(first + 100, SPLIT_ELEMENTS)) + split.index * SPLIT_ELEMENTS}


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
    source = Counted(4)
    plan = PATHS[path](PecanPipeline(source), failing).plan
    options = EngineOptions(order="strict", on_error="skip")
    told = next(run_here(plan, options, AllLeases(tuple(plan.sources()), 0, 1)))
    assert (len(told.bad), source.read_so_far[0]) == (MOST_BAD, MOST_BAD), "in a debug run too"
    monkeypatch.setattr(positions, "MOST_BAD", FEW_BAD)
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
    monkeypatch.setattr(positions, "MOST_DROPPED", 5000)
    source = Counted(80)
    with running(PATHS[path](PecanPipeline(source), lambda pipe: pipe.filter(lambda e: False)), threads=2) as (_, made):
        first = next(made)
        # The other thread reads on until this one is given a turn, which a busy machine puts off.
        assert first.rows == 0 and 5000 <= source.read_so_far[0] < 80 * SPLIT_ELEMENTS, "before all were read"
        assert sum(map(len, first.spans.values())) < 100, "neighbours are one interval"
        carried = delivered([first, *made])
    assert all(spans.contains_all(0, SPLIT_ELEMENTS << OUTPUT_BITS) for spans in carried.values())
    assert len(carried) == source.splits_in_all


@pytest.mark.parametrize("kind", [Counted, ColumnarCounted])
def test_splits_that_cannot_be_read_are_told_of_before_all_were_tried(kind: type[Counted]) -> None:
    pipe = PecanPipeline(kind(3 * MOST_BAD, torn_at=0)).batch(8)
    first, *rest = run_engine(pipe, on_error="skip")
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
        (spans_of((0, 600)), 0, None),
    ],
)
def test_a_break_ends_the_split_and_tells_how_much_is_lost(
    spans: tuple[tuple[int, int], ...], left_out: int, length: int | None
) -> None:
    source = Counted(1, 600)
    (split,) = source.splits()
    leases = ListedLeases([Lease(0, split, spans=spans)])
    produced = run_engine(PecanPipeline(source).batch(64), leases, on_error="skip")
    assert [bad.elements_left_out for one in produced for bad in one.bad] == ([left_out] if left_out else [])
    assert leases.lengths == ({} if length is None else {KEY: length})
    assert delivered(produced) == leases.wanted()


def test_where_the_length_is_not_known_a_break_counts_once() -> None:
    produced = run_engine(PecanPipeline(Counted(1, 600, length_known=False)).batch(64), on_error="skip")
    assert [bad.elements_left_out for one in produced for bad in one.bad] == [1]


def refuse_threes(element: Element) -> Element:
    if element["i"] % 3 == 0:
        raise ValueError("a three")
    return element


def refuse_batch(batch: Element) -> Element:
    if batch["i"][0] == 4:
        raise ValueError("four")
    return batch


def bad_of(pipe: PecanPipeline, leases: list[Lease] | None = None, **options: Any) -> list[BadElement]:
    produced = run_engine(pipe, leases, on_error="skip", order="strict", **options)
    return [bad for one in produced for bad in one.bad]


def identities(pipe: PecanPipeline, leases: list[Lease], **options: Any) -> list[Any]:
    return [bad.identity for bad in bad_of(pipe, leases, **options)]


def test_an_element_that_is_read_again_has_the_same_identity() -> None:
    source = Counted(1)
    (split,) = source.splits()
    pipe = PecanPipeline(source).map(refuse_threes, name="threes").batch(2)
    first = identities(pipe, [Lease(0, split, spans=spans_of((0, 12)))])
    again = identities(pipe, [Lease(0, split, spans=spans_of((3, 5), (7, 12)))], threads=3)
    assert first == [("threes", Origin(0, 0, 0, 0, number)) for number in (0, 3, 6, 9)]
    assert len(again) == 2 and set(again) == {first[1], first[3]}
    assert identities(pipe, [Lease(1, split, spans=spans_of((3, 4)))]) != first[1:2], "another epoch counts again"
    assert identities(pipe, [Lease(0, split, repetition=1, spans=spans_of((3, 4)))]) != first[1:2]


def test_a_failing_batch_and_a_broken_split_are_named_by_their_first_element() -> None:
    source = Counted(1)
    (split,) = source.splits()
    pipe = PecanPipeline(source).batch(4).map(refuse_batch, name="four")
    (bad,) = bad_of(pipe, [Lease(0, split, spans=spans_of((0, 12)))])
    assert (bad.identity, bad.origin, bad.elements_left_out) == (("four", Origin(0, 0, 0, 0, 4)), None, 4)
    (bad,) = bad_of(PecanPipeline(Counted(1, 600)).batch(4))
    assert (bad.identity, bad.origin) == (("read Counted", Origin(0, 0, 0, 0, 600)), None)


def test_outputs_of_one_element_have_their_own_identities() -> None:
    source = Counted(1)
    (split,) = source.splits()
    pipe = PecanPipeline(source).flat_map(lambda e: [e, e]).shuffle(2).map(never, name="never").batch(2)
    found = identities(pipe, [Lease(0, split, spans=spans_of((0, 1)))])
    assert len(set(found)) == 2
    assert Spans((one[1].output, one[1].output + 1) for one in found) == Spans(
        [(0, 1), (1 << OUTPUT_BITS - 1, (1 << OUTPUT_BITS - 1) + 1)]
    )
