"""Leases in memory for driving an engine directly, and the check that it delivers each position once."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import BadElement, Engine, EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.lease_tracker import LeaseTracker
from pecan_ray.engines.registry import build_engine
from pecan_ray.engines.slots import HeapSlot, HeapSlots
from pecan_ray.options import EngineName
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Columns, Element, Lease, LeaseKey, Source, Split
from pecan_ray.sampling.spans import Spans
from pecan_ray.sources import Arrays


def numbers(
    rows: int = 40, split_rows: int = 10, column: str = "i", *, engine: EngineName = "python", **columns: Any
) -> PecanPipeline:
    """Rows with their numbers in a column, and other columns beside it."""
    source = Arrays({column: np.arange(rows), **columns}, split_rows=split_rows)
    return PecanPipeline(source, name="numbers", engine=engine)


class ListedLeases:
    """Hands out given leases, each branch's in order, and records the lengths that the engine reports."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.given = list(leases)
        self.lengths: dict[LeaseKey, int] = {}
        self._queues: dict[int, deque[Lease]] = {}
        self._lock = threading.Lock()
        for lease in self.given:
            self._queues.setdefault(lease.branch, deque()).append(lease)

    def take(self, branch: int = 0) -> Lease | None:
        with self._lock:
            queue = self._queues.get(branch)
            return queue.popleft() if queue else None

    def ended(self, lease: Lease, elements: int) -> None:
        with self._lock:
            assert lease.key not in self.lengths, f"the end of {lease.key} was reported twice"
            self.lengths[lease.key] = elements

    def target(self) -> dict[LeaseKey, Spans]:
        """Return the positions that were given out, splits that were read to their end cut to their lengths."""
        wanted: dict[LeaseKey, Spans] = {}
        for lease in self.given:
            spans = wanted.setdefault(lease.key, Spans())
            for start, stop in lease.spans:
                spans.add(start, stop)
            if lease.key in self.lengths:
                spans.remove(self.lengths[lease.key] << OUTPUT_BITS, END)
        return {key: spans for key, spans in wanted.items() if spans}


def whole_leases(sources: Sequence[Source], *, epoch: int = 0, num_passes: int = 1) -> list[Lease]:
    """Return a lease of every split of every source, as often as the data is repeated."""
    return [
        Lease(epoch, split, branch=branch, pass_index=pass_index)
        for branch, source in enumerate(sources)
        for pass_index in range(num_passes)
        for split in source.splits()
    ]


class OwnSource:
    def splits(self) -> Iterator[Split]:
        yield Split(0)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        raise NotImplementedError

    def num_elements(self) -> int | None:
        return None

    def identity(self) -> str:
        return type(self).__name__


class Numbered(OwnSource):
    """Splits of so many numbers each; `make` makes an element of a number, and may note it, fail or stand still."""

    def __init__(
        self, *lengths: int, make: Callable[[int], Element] | None = None, path: str = "", known: bool = False
    ) -> None:
        self._lengths, self._path, self._known = lengths, path, known
        self._make = make or (lambda number: {"i": np.int64(number)})

    def splits(self) -> Iterator[Split]:
        for index, length in enumerate(self._lengths):
            yield Split(index, path=self._path.format(index), elements=length if self._known else None)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        first = sum(self._lengths[: split.index])
        for number in range(first + start, first + self._lengths[split.index]):
            yield self._make(number)


class InColumns(Numbered):
    """Gives its rows as columns, too: each one alone."""

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        for element in self.read(split, start):
            yield {name: np.array([value]) for name, value in element.items()}


class Blocking:
    """Stands still at a number, or at whatever comes first."""

    def __init__(self, at: int | None = None) -> None:
        self.at = at
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def __call__(self, number: Any = None) -> Any:
        if self.at is None or np.any(np.asarray(number) == self.at):
            self.reached.set()
            assert self.may_go_on.wait(60)
        return number


class CountedSlot(HeapSlot):
    def __init__(self, nbytes: int, free: threading.Semaphore) -> None:
        super().__init__(nbytes)
        self._free = free

    def release(self) -> None:
        self._free.release()


class FewSlots:
    """Memory for so many batches only; the others wait until one is released."""

    def __init__(self, count: int) -> None:
        self._free = threading.Semaphore(count)

    def acquire(self, nbytes: int) -> CountedSlot:
        assert self._free.acquire(timeout=60), "no batch was finished while all memory was taken"
        return CountedSlot(nbytes, self._free)


@contextlib.contextmanager
def built(
    pipe: PecanPipeline | Plan, engine: EngineName | None = None, slots: Slots | None = None, **options: Any
) -> Iterator[Engine]:
    """The engine of a pipeline, or the one that is named; it is closed at the end."""
    kind = engine or ("python" if isinstance(pipe, Plan) else pipe.engine)
    made = build_engine(kind, plan_of(pipe), EngineOptions(**options), slots or HeapSlots())
    with contextlib.closing(made):
        yield made


@contextlib.contextmanager
def running(
    pipe: PecanPipeline | Plan, leases: Leases | None = None, **options: Any
) -> Iterator[tuple[Engine, Generator[Produced, None, None]]]:
    """An engine and its batches, which are made while they are asked for; both are closed at the end."""
    given = leases or ListedLeases(whole_leases(sources_of(pipe)))
    with built(pipe, **options) as engine, contextlib.closing(engine.batches(given)) as batches:
        yield engine, batches


def run_engine(
    pipe: PecanPipeline | Plan, leases: Leases | Iterable[Lease] | None = None, **options: Any
) -> list[Produced]:
    """Run one stretch of an engine to its end and return what it has produced."""
    if leases is None:
        leases = whole_leases(sources_of(pipe))
    given = ListedLeases(leases) if isinstance(leases, Iterable) else leases
    with built(pipe, **options) as engine:
        return all_said(plan_of(pipe), given, engine.batches)


def run_beside(pipe: PecanPipeline, came: list[Produced], **options: Any) -> list[Produced]:
    """Run a pipeline as a worker does, in threads that Ctrl-C does not reach; `came`: filled also before an error."""
    with running(pipe, threads=2, **options) as (_, batches), ThreadPoolExecutor(1) as pool:
        pool.submit(came.extend, batches).result()
    return came


def bad_of(produced: Iterable[Produced]) -> list[BadElement]:
    return [bad for one in produced for bad in one.bad]


def plan_of(pipe: PecanPipeline | Plan) -> Plan:
    return pipe if isinstance(pipe, Plan) else pipe.plan


def sources_of(pipe: PecanPipeline | Plan) -> tuple[Source, ...]:
    return tuple(plan_of(pipe).sources())


def all_said(plan: Plan, leases: Leases, batches: Callable[[Leases], Iterator[Produced]]) -> list[Produced]:
    """Return what an engine produces of leases; raises AssertionError if it says nothing of some of their positions."""
    accounted = LeaseTracker(leases)
    produced = list(batches(accounted))
    for one in produced:
        accounted.mark_processed(one.spans)
    assert plan_shape(plan).serial or accounted.unresolved_spans() == {}
    return produced


def delivered(produced: Iterable[Produced]) -> dict[LeaseKey, Spans]:
    """Return the positions that batches carry; raises AssertionError if one is carried twice."""
    found: dict[LeaseKey, Spans] = {}
    for batch in produced:
        for key, intervals in batch.spans.items():
            spans = found.setdefault(key, Spans())
            for start, stop in intervals:
                before = spans.size()
                spans.add(start, stop)
                assert spans.size() == before + stop - start, f"[{start}, {stop}) of {key} was delivered twice"
    return found


def missing(leases: ListedLeases, received: list[Produced]) -> list[Lease]:
    """Return leases of what was given out and not received, to the end of each split."""
    rest = []
    done = delivered(received)
    for lease in leases.given:
        spans = Spans([(0, END)])
        for span in done.get(lease.key, ()):
            spans.remove(*span)
        rest.append(replace(lease, spans=tuple(spans)))
    return rest


def column(produced: Iterable[Produced], name: str = "i") -> list[Any]:
    return [value for batch in produced if batch.rows for value in batch.columns[name]]


def exact(value: Any) -> Any:
    """Return a value in a form in which equality means the same types and contents."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, {name: exact(one) for name, one in value.items()}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return kind, value.dtype, value.shape, value.tobytes(), value.flags.writeable
    if isinstance(value, np.ndarray):
        return kind, value.dtype, value.shape, [exact(one) for one in value.ravel()]
    if isinstance(value, (list, tuple)):
        return kind, [exact(one) for one in value]
    return kind, repr(value)
