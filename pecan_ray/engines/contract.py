"""What a worker and an engine say to each other.

The worker hands an engine a stream of leases; the engine yields batches as they are finished.  Nothing here
knows Ray or a framework.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from pecan_ray.cache_options import Cache
from pecan_ray.engines.counting import OpCount
from pecan_ray.engines.foreign import REGISTERED
from pecan_ray.engines.layout import Layout
from pecan_ray.engines.stages import Recognized
from pecan_ray.engines.users_order import UsersOrder
from pecan_ray.job.blocks import RowRange
from pecan_ray.job.pending_leases import RowParts
from pecan_ray.options import OnError, Order
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.plan.splits import AtWork, Lease, LeaseKey, Origin, Source, Split
from pecan_ray.plan.stage_seconds import SlowElements
from pecan_ray.sampling.spans import Span

# Positions are element << OUTPUT_BITS | output, and spans are half open
# (docs/decisions/exactly-once.md#5-positions-and-spans).
SpansByKey: TypeAlias = Mapping[LeaseKey, Sequence[Span]]
"""Lease key -> intervals of positions."""


class Slot(Protocol):
    """A piece of reusable memory that a batch is written into."""

    @property
    def buffer(self) -> memoryview:
        """The writable bytes."""
        ...

    def release(self) -> None:
        """Give the memory back; what was written is lost."""
        ...


class Slots(Protocol):
    """Where engines get memory for batches; `acquire` blocks while too many bytes are in flight."""

    def acquire(self, nbytes: int) -> Slot:
        """Return a slot of at least `nbytes` bytes."""
        ...


class Leases(Protocol):
    """The work of one stretch (an epoch, or its tail), as seen by an engine."""

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease of a source, waiting if need be; None when the stretch has no more of it."""
        ...

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements the split of a lease holds, once it has been read to its end."""
        ...


@runtime_checkable
class ConcurrentLeases(Leases, Protocol):
    """Leases of which several may be worked on at a time, as long as that takes nothing from other workers."""

    # None while others are read is no end: the job keeps the last splits of an epoch for workers that have
    # none.
    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        """Return the next lease of a source while `reading` others are worked on; None: not now.

        With none being read it is waited for, and None is the end.  `streams`: so many are wanted at a time.
        """
        ...


@dataclass(frozen=True)
class BadElement:
    """An element that was left out under ``on_error="skip"`` or ``"quarantine"``."""

    op: str
    where: str
    error: str
    element: Any = None
    """The element as the source gave it, kept for quarantine only."""
    origin: Origin | None = None
    """None where the element was never read, or several went into the failing call."""
    first: Origin | None = None
    """The first element that is left out, where `origin` is None."""
    # The budget for bad elements counts these, so a broken split of a thousand elements must not count as
    # one.
    elements_left_out: int = 1
    """How many elements are left out for this reason: all in a failing batch, all behind a break in a split.
    Where its length is not known it is estimated, and `error` says by what; with nothing to go by it is 1, and `error`
    says that it is at least so many."""
    estimated: bool = False
    """`elements_left_out` is an estimate."""
    open_end: bool = False
    """Nothing tells how many elements are left out: there are at least `elements_left_out`."""

    @property
    def identity(self) -> Hashable:
        """What it is counted by: the same when the element is read again, in this process or another one."""
        return self.op, self.origin or self.first or self.where


@runtime_checkable
class SharedLeases(Leases, Protocol):
    """Leases of which other workers may have what this one cannot open."""

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave a lease to other workers; False: there are none after all.

        `bad`: what is left out if none of them can open its split.
        """
        ...


@dataclass(frozen=True)
class Unfinished:
    """What the trainer has yet to do to a batch."""

    ops: tuple[str, ...]
    """The operators to run on it, in this order."""
    why: str
    """Why they were left to it."""
    images: str = ""
    """A column of images (`pecan_ray.known.encoded_images`) to finish before; empty: there is none."""


@dataclass
class Produced:
    """A finished batch (or, in a pipeline without batching, a single element)."""

    columns: dict[str, Any]
    """NumPy arrays, views of the slot where there is one; ragged and object columns as they are."""
    spans: SpansByKey
    """Which data is in it, elements that were filtered or skipped on the way included."""
    rows: int
    """How many, without those that repeat others of the batch."""
    epoch: int
    # The engine cannot know whether other workers still hold elements of this epoch, which decides between a
    # smaller batch and a return of its elements (docs/decisions/exactly-once.md#4-workers-return-leftovers).
    partial: bool = False
    """A batch smaller than the batch size since the stretch ended: the worker decides what becomes of it."""
    ends_run: bool = False
    """It tells that all of a run is made."""
    rank: int | None = None
    """The trainer that a batch of a round is for; None: no round, or elements that are in none."""
    slot: Slot | None = None
    bad: list[BadElement] = field(default_factory=list)
    layout: Layout | None = None
    """How the columns lie in the slot, where that is known beforehand."""
    # If a batch is returned, a filter must not be asked again about what it left out: it may have a state of
    # its own.
    without_data: SpansByKey = field(default_factory=dict)
    """Of `spans`, what was filtered or skipped: it is dealt with even if the batch is not used."""
    row_parts: RowParts = ()
    """Of each row its last positions; may be empty where rows are not joined to batches."""
    row_range: RowRange | None = None
    """Which part of the epoch its rows are, where these come in order: the worker says it."""
    unfinished: Unfinished | None = None
    """What the trainer has to do to it: the worker says it."""
    dropped: int = 0
    """Elements of a remainder that were left out; known where the whole epoch is run in this process."""


@dataclass(frozen=True)
class EngineOptions:
    """How an engine shall run on this worker."""

    seed: int = 0
    threads: int = 1
    """Threads at first, which is also how many CPUs there are for them."""
    most_threads: int | None = None
    """Up to so many where they make it faster (python engine); None: always `threads`."""
    memory_bytes: float = math.inf
    """Bound on the elements in progress where there are more threads than CPUs, as far as their sizes tell."""
    order: Order = "relaxed"
    on_error: OnError = "raise"
    count_epoch: int | None = None
    """Count bytes in and out of operators during this epoch; None: never."""
    users_order: UsersOrder | None = None
    """The order of a plan whose operators run in another one: an element that fails in that is run in this."""
    cache: Cache | None = None
    """Where entries of `autocache` points lie; None: nothing is kept, and nothing taken from there."""
    ranks: int | None = None
    """Make rounds of buckets, a batch for each of so many trainers; None: no rounds."""
    tail_ranks: int = 1
    """Trainers that get equally many of the batches that groups of elements leave at the end of an epoch."""


@dataclass(frozen=True)
class UnderWay:
    """What an engine has been doing for long with one element."""

    text: str
    """It in words, with `{seconds}` for how long."""
    since: float
    """When it was first seen, by the clock of whoever asks."""
    at: AtWork | None = None
    """None: it waits for a storage that fails, which has a patience of its own."""


@runtime_checkable
class TimesElements(Protocol):
    """An engine that finds elements which take many times as long as the others."""

    @property
    def slow(self) -> SlowElements:
        """What it has found so far, where order is kept."""
        ...


class Engine(Protocol):
    """Runs a plan on leases, on one machine."""

    def batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch; ends when the leases do and nothing is in progress.

        What does not fill a batch comes marked `partial`.  What has no rows tells of data that yields nothing.
        Raises `ElementError` for a bad element under ``on_error="raise"``, and `OrderError` where an element failed
        that the user's order may take, and that could not be run in it here.
        """
        ...

    @property
    def threads(self) -> int:
        """How many threads work at the moment."""
        ...

    @property
    def ends_runs(self) -> bool:
        """Return whether it gives up rows that fill no batch behind a lease that ends a run, and goes on meanwhile."""
        ...

    def counts(self) -> Mapping[str, OpCount]:
        """Return what went into and came out of operators during the epoch that is counted; empty if none is."""
        ...

    # By looks at stacks and not by a note for each call, which every element would pay for
    # (docs/decisions/faults-and-silence.md#36-when-a-worker-hangs).
    def under_way(self, now: float) -> UnderWay | None:
        """Return what has been under way for longer than a few seconds, the longest; to be asked about every second.

        Nothing is noted between two questions: what both of them meet has been under way since the first one.
        """
        ...

    def stages(self) -> Mapping[CodeType, Recognized]:
        """Return the functions by which the stacks of its threads show what they do."""
        ...

    def reads(self, branch: int, split: Split) -> bool:
        """Tell whether a split of a source would be read from there, and not taken from a cache."""
        ...

    def flush(self) -> None:
        """Wait until what is written behind is written, for a few seconds at most; from any thread."""
        ...

    def close(self) -> None:
        """Stop threads and processes."""
        ...


class EngineModule(Protocol):
    """What the package of an engine offers."""

    def build(self, plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> Engine:
        """Return an engine that runs a plan on this machine."""
        ...

    def run_here(self, plan: Plan, options: EngineOptions, leases: Leases) -> Generator[Produced, None, None]:
        """Yield what a plan makes of leases in this process, for debugging."""
        ...

    def replay(self, ops: Sequence[ElementOp], bad: BadElement, seed: int) -> None:
        """Run operators on a quarantined element; raises what they raise."""
        ...


def is_columnar(value: Any) -> bool:
    """Tell whether a value can live in a slot: a number or date, or an array of them, also of ml_dtypes' kinds.

    A masked array cannot: its mask would be lost.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return is_plain(value.dtype) and not isinstance(value, np.ma.MaskedArray)
    # Beyond 64 bits NumPy makes an array of objects, which no slot can hold.
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, (float, complex))


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Tell whether items of a dtype are numbers or dates of a fixed size; strings and records are not."""
    return dtype.kind in "biufcmM" or dtype.isbuiltin == REGISTERED
