"""What yields no batch, filtered and bad elements, is reported while the work goes on, and costs little memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines import positions
from pecan_ray.engines.contract import BadElement, EngineOptions, Produced
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.positions import MOST_BAD, MOST_DROPPED, MOST_INTERVALS, UndeliveredPositions
from pecan_ray.engines.python import PythonEngine, run_here
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.engines.whole import ending_with_the_last_batch
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_check import check_ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.splits import END, OUTPUT_BITS, Columns, Element, Lease, Origin, Split
from pecan_ray.sampling.spans import Spans
from tests.unit.engines.engine_leases import ListedLeases, delivered, run_engine, whole_leases

KEY = (0, 0, 0)
SPLIT_ELEMENTS = 1000
FEW_BAD = 400
"""What an engine tells at a time, in place of `MOST_BAD`."""


def elements(first: int, stop: int) -> tuple[tuple[int, int, int], int, int]:
    """Return the positions of elements."""
    return KEY, first << OUTPUT_BITS, stop << OUTPUT_BITS


@dataclass(frozen=True)
class Counted:
    """Numbers in splits of a thousand, which tells how many were read."""

    splits_in_all: int
    broken: bool = False
    read_so_far: list[int] = field(default_factory=lambda: [0])

    def splits(self) -> Iterator[Split]:
        """Yield the splits."""
        for index in range(self.splits_in_all):
            yield Split(index, elements=SPLIT_ELEMENTS)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers of a split, unless it is broken."""
        for number in range(start, SPLIT_ELEMENTS):
            self.read_so_far[0] += 1
            if self.broken:
                raise OSError("the disk is wet")
            yield {"i": np.int64(split.index * SPLIT_ELEMENTS + number)}

    def num_elements(self) -> int:
        """Return the number of elements."""
        return self.splits_in_all * SPLIT_ELEMENTS

    def identity(self) -> str:
        """Return a constant: the numbers never change."""
        return "counted"


class ColumnarCounted(Counted):
    """The same, by columns of a hundred."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the numbers of a split, unless it is broken."""
        for first in range(start, SPLIT_ELEMENTS, 100):
            self.read_so_far[0] += 100
            if self.broken:
                raise OSError("the disk is wet")
            yield {"i": np.arange(first, min(first + 100, SPLIT_ELEMENTS)) + split.index * SPLIT_ELEMENTS}


def never(element: Element) -> Any:
    raise ValueError(f"no {element['i']}")


def none(element: Element) -> bool:
    return False


def flat(element: Element) -> list[Element]:
    return [element]


PATHS: dict[str, Callable[[PecanPipeline, Callable[[PecanPipeline], PecanPipeline]], PecanPipeline]] = {
    "filled": lambda pipe, op: op(pipe).batch(8),
    "filled, behind shuffle": lambda pipe, op: op(pipe).shuffle(4).batch(8),
    "elements": lambda pipe, op: op(pipe),
    "padded": lambda pipe, op: op(pipe).padded_batch(8),
    "buckets": lambda pipe, op: op(pipe).bucket_by_length([4], sizes=2, length=lambda e: int(e["i"])),
    "unbatch": lambda pipe, op: op(pipe).batch(8).unbatch(),
    "flat_map": lambda pipe, op: op(pipe.flat_map(flat)).batch(8),
    "concat": lambda pipe, op: op(pipe).concat(op(pipe)).batch(8),
    "mix": lambda pipe, op: op(pipe).mix(op(pipe), weights=[1, 1]).batch(8),
    "prefetch": lambda pipe, op: op(pipe).prefetch(3).padded_batch(8),
    "take": lambda pipe, op: op(pipe).take(8).batch(4),
    "skip": lambda pipe, op: op(pipe).skip(2).batch(4),
    "zip": lambda pipe, op: op(pipe).zip(pipe.map(lambda e: {"j": e["i"]})).batch(4),
    "repeat": lambda pipe, op: op(pipe).take(8).repeat(2),
    "remainders": lambda pipe, op: op(pipe).batch(8, drop_remainder=True).unbatch().batch(4),
}


def running(plan: Plan, **options: Any) -> Iterator[Produced]:
    """Yield what a python engine makes of all data."""
    sources = tuple(plan.sources())
    engine = PythonEngine(plan, sources, EngineOptions(on_error="skip", **options), HeapSlots())
    with contextlib.closing(engine):
        yield from engine.batches(ListedLeases(whole_leases(sources)))


def bad_op(pipe: PecanPipeline) -> PecanPipeline:
    return pipe.map(never, name="never")


@pytest.mark.parametrize("path", PATHS)
def test_bad_elements_are_told_before_the_data_has_been_gone_through(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "MOST_BAD", FEW_BAD)
    source = Counted(2)
    produced = running(PATHS[path](PecanPipeline(source), bad_op).plan, threads=2)
    first = next(produced)
    assert first.rows == 0 and not first.partial and first.columns == {}
    assert FEW_BAD <= len(first.bad) < 2.5 * FEW_BAD
    assert source.read_so_far[0] < 4 * FEW_BAD, "the data was not gone through"
    rest = list(produced)
    assert all(len(one.bad) < 2.5 * FEW_BAD for one in rest)
    counted = {bad.identity for one in (first, *rest) for bad in one.bad}
    twice = path in ("concat", "mix", "repeat")
    assert len(counted) == 2 * SPLIT_ELEMENTS * (2 if twice else 1), "each is told once, in each pass"


@pytest.mark.parametrize("path", PATHS)
def test_a_debug_run_tells_bad_elements_too(path: str) -> None:
    source = Counted(4)
    plan = PATHS[path](PecanPipeline(source), bad_op).plan
    options = EngineOptions(order="strict", on_error="skip")
    first = next(run_here(plan, options, AllLeases(tuple(plan.sources()), 0, 1)))
    assert (len(first.bad), source.read_so_far[0]) == (MOST_BAD, MOST_BAD)


@pytest.mark.parametrize("path", ["filled", "elements", "padded"])
def test_a_filter_that_keeps_nothing_reports_what_is_done(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "MOST_DROPPED", 5000)
    source = Counted(20)
    produced = running(PATHS[path](PecanPipeline(source), lambda pipe: pipe.filter(none)).plan, threads=2)
    first = next(produced)
    assert first.rows == 0 and 5000 <= source.read_so_far[0] < 15_000
    assert sum(map(len, first.spans.values())) < 100, "neighbours are one interval"
    carried = delivered([first, *produced])
    assert all(spans.covers(0, SPLIT_ELEMENTS << OUTPUT_BITS) for spans in carried.values())
    assert len(carried) == source.splits_in_all


def test_a_whole_plan_keeps_positions_for_its_last_batch_and_tells_bad_elements_at_once() -> None:
    bad = BadElement("op", "element 7", "", first=Origin(0, 0, 0, 0, 7))
    batch = Produced({"x": np.arange(2)}, {KEY: [(0, 2)]}, 2, 0)
    stream = [
        Produced({}, {KEY: [(7, 8)]}, 0, 0, bad=[bad]),
        batch,
        *(Produced({}, {KEY: [(start, start + 1)]}, 0, 0) for start in range(2, 7)),
    ]
    told, last = ending_with_the_last_batch(stream)
    assert (told.rows, told.spans, told.bad) == (0, {}, [bad])
    assert last is batch and last.spans == {KEY: [(0, 8)]}


@pytest.mark.parametrize("kind", [Counted, ColumnarCounted])
def test_splits_that_cannot_be_read_are_told_of_before_all_were_tried(kind: type[Counted]) -> None:
    source = kind(3 * MOST_BAD, broken=True)
    produced = running(PecanPipeline(source).batch(8).plan)
    first = next(produced)
    assert MOST_BAD <= len(first.bad) < 1.1 * MOST_BAD
    assert all(bad.elements_left_out == SPLIT_ELEMENTS for bad in first.bad)
    assert sum(len(one.bad) for one in produced) == 3 * MOST_BAD - len(first.bad)


# --- the set itself ------------------------------------------------------------------------------------------


def test_neighbours_become_one_interval_in_whatever_order_they_come() -> None:
    undelivered = UndeliveredPositions()
    numbers = np.random.default_rng(0).permutation(8 * MOST_INTERVALS).tolist()
    most = 0
    for number in numbers:
        undelivered.add([elements(number, number + 1)])
        most = max(most, len(undelivered._parts))
    assert undelivered.due, "half of them, at random, are many intervals"
    assert most <= 8 * MOST_INTERVALS
    report = undelivered.report(3)
    assert report is not None and report.spans == {KEY: [(0, 8 * MOST_INTERVALS << OUTPUT_BITS)]}
    assert (report.epoch, report.rows, report.partial) == (3, 0, False)
    assert undelivered.report(3) is None and not undelivered.due


def test_a_few_positions_wait_for_a_batch() -> None:
    undelivered = UndeliveredPositions()
    for number in range(MOST_DROPPED - 1):
        undelivered.add([elements(number, number + 1)])
    assert not undelivered.due
    undelivered.add([elements(MOST_DROPPED - 1, MOST_DROPPED)])
    assert undelivered.due and undelivered.take() == ([elements(0, MOST_DROPPED)], [])


# --- broken splits -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Torn(Counted):
    """The same numbers; what begins at element 600 of the last split cannot be read."""

    length_known: bool = True

    def splits(self) -> Iterator[Split]:
        """Yield the splits."""
        for index in range(self.splits_in_all):
            yield Split(index, elements=SPLIT_ELEMENTS if self.length_known else None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers of a split up to the break."""
        for number in range(start, SPLIT_ELEMENTS):
            if split.index == self.splits_in_all - 1 and number >= 600:
                raise OSError("torn")
            yield {"i": np.int64(split.index * SPLIT_ELEMENTS + number)}


def spans_of(*elements: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the positions of ranges of elements."""
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
    source = Torn(1)
    (split,) = source.splits()
    leases = ListedLeases([Lease(0, split, spans=spans)])
    produced = run_engine(PecanPipeline(source).batch(64), leases, on_error="skip")
    assert [bad.elements_left_out for one in produced for bad in one.bad] == ([left_out] if left_out else [])
    assert leases.lengths == ({} if length is None else {KEY: length})
    assert delivered(produced) == leases.wanted()


def test_where_the_length_is_not_known_a_break_counts_once() -> None:
    source = Torn(1, length_known=False)
    produced = run_engine(PecanPipeline(source).batch(64), on_error="skip")
    assert [bad.elements_left_out for one in produced for bad in one.bad] == [1]


class LedgerLeases:
    """The leases of one worker, straight from a ledger."""

    def __init__(self, ledger: Ledger, worker: str) -> None:
        self._ledger, self._worker = ledger, worker

    def take(self, branch: int = 0) -> Lease | None:
        """Return the worker's next lease."""
        lease = self._ledger.take(self._worker, branch)
        return lease if isinstance(lease, Lease) else None

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell the ledger."""
        self._ledger.ended(self._worker, lease.epoch, lease.key, elements)


@pytest.mark.parametrize("trainers", [1, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_around_a_torn_split_each_element_is_delivered_once(trainers: int, workers: int) -> None:
    source = Torn(4, length_known=False)
    ledger = Ledger(LedgerShape(world_size=trainers, batch_size=64))
    ledger.add_splits(0, list(source.splits()))
    ledger.end_listing(0)
    for number in range(workers):
        ledger.join(f"w{number}")
    received: list[int] = []
    plan = PecanPipeline(source).batch(64).plan
    engine = PythonEngine(plan, (source,), EngineOptions(on_error="skip"), HeapSlots())
    rank = 0
    with contextlib.closing(engine):
        for _ in range(40):
            if ledger.finished:
                break
            for number in range(workers):
                worker = f"w{number}"
                assignment = ledger.next_assignment(worker)
                if isinstance(assignment, str):
                    continue
                leftovers = []
                for produced in engine.batches(LedgerLeases(ledger, worker)):
                    check_ledger(ledger)
                    if produced.partial:
                        leftovers.append(produced)
                    elif not produced.rows:
                        ledger.consumed(worker, 0, produced.spans)
                    else:
                        to = rank if assignment.rank is None else assignment.rank
                        ledger.acked(to, worker, 0, produced.spans)
                        received += produced.columns["i"].tolist()
                        rank = (rank + 1) % trainers
                spans = {key: list(intervals) for one in leftovers for key, intervals in one.spans.items()}
                if ledger.assignment_ended(worker, spans) == "flush":
                    for one in leftovers:
                        ledger.acked(assignment.rank or 0, worker, 0, one.spans)
                        received += one.columns["i"].tolist()
                check_ledger(ledger)
    assert ledger.finished
    readable = range(3 * SPLIT_ELEMENTS + 600)
    assert len(received) == len(set(received)) and set(received) <= set(readable)
    assert len(received) + ledger.left_out_elements == len(readable)
    assert ledger.left_out_elements < 2 * trainers


# --- counting bad elements once ------------------------------------------------------------------------------


def refuse_threes(element: Element) -> Element:
    if element["i"] % 3 == 0:
        raise ValueError("a three")
    return element


def refuse_batch(batch: Element) -> Element:
    if batch["i"][0] == 4:
        raise ValueError("four")
    return batch


def identities(pipe: PecanPipeline, leases: list[Lease], **options: Any) -> list[Any]:
    produced = run_engine(pipe, leases, on_error="skip", order="strict", **options)
    return [bad.identity for one in produced for bad in one.bad]


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
    produced = run_engine(pipe, [Lease(0, split, spans=spans_of((0, 12)))], on_error="skip", order="strict")
    (bad,) = (bad for one in produced for bad in one.bad)
    assert (bad.identity, bad.origin, bad.elements_left_out) == (("four", Origin(0, 0, 0, 0, 4)), None, 4)
    torn = Torn(1)
    produced = run_engine(PecanPipeline(torn).batch(4), on_error="skip")
    (bad,) = (bad for one in produced for bad in one.bad)
    assert (bad.identity, bad.origin) == (("read Torn", Origin(0, 0, 0, 0, 600)), None)


def test_outputs_of_one_element_have_their_own_identities() -> None:
    source = Counted(1)
    (split,) = source.splits()
    pipe = PecanPipeline(source).flat_map(lambda e: [e, e]).shuffle(2).map(never, name="never").batch(2)
    found = identities(pipe, [Lease(0, split, spans=spans_of((0, 1)))])
    assert len(set(found)) == 2
    assert Spans((one[1].output, one[1].output + 1) for one in found) == Spans(
        [(0, 1), (1 << OUTPUT_BITS - 1, (1 << OUTPUT_BITS - 1) + 1)]
    )
