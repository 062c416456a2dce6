"""What was measured of a pipeline, as far as it matters for what to keep: reading, operators, and marked points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from pecan_ray.cache.checked import checked_amount, checked_count, checked_share
from pecan_ray.errors import PlanError

# docs/decisions/autocache.md#76-an-epochs-promise and #55-entries-in-runs-of-rows.
LOCKED_BYTES = 128 << 10
"""What is no larger is copied under Python's lock: to let it go and take it again takes longer than that."""


@dataclass(frozen=True)
class SourceCost:
    """Reading one element of the source."""

    seconds: float
    """Seconds that one reader takes."""
    nbytes: float
    """Bytes of the element."""
    waiting: float = 0.0
    """Share of the seconds in which the thread needs no CPU."""
    most_bytes_per_s: float = math.inf
    """What all readers together are given."""

    def __post_init__(self) -> None:
        checked_amount("SourceCost(seconds=...)", self.seconds)
        checked_amount("SourceCost(nbytes=...)", self.nbytes)
        checked_share("SourceCost(waiting=...)", self.waiting)
        checked_amount("SourceCost(most_bytes_per_s=...)", self.most_bytes_per_s, positive=True, endless=True)


@dataclass(frozen=True)
class OperatorCost:
    """One operator on elements, in the order in which they run."""

    name: str
    seconds: float
    """Seconds that one thread takes for an element that it is given."""
    nbytes: float
    """Bytes of an element that it gives."""
    elements: float = 1.0
    """Elements out per element in."""
    random: bool | None = None
    """Whether its results differ from epoch to epoch; None: not known."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"OperatorCost(name=...) must be a non-empty string, but got {self.name!r}.")
        for field in ("seconds", "nbytes", "elements"):
            checked_amount(f"operator {self.name!r}: {field}", getattr(self, field))


@dataclass(frozen=True)
class DeliveryCost:
    """What it takes to put elements into batches and to hand these over, wherever the elements come from."""

    per_element_s: float = 0.0
    """Of one thread, in Python."""
    per_byte_s: float = 0.0
    """Of one thread, copying."""
    per_batch_s: float = 0.0
    """CPU time of everything that is busy with a finished batch: the worker, the trainer, the job's controller."""
    per_epoch_s: float = 0.0
    """From the last batch of an epoch until the work on the next one is in full swing."""

    def __post_init__(self) -> None:
        for field in ("per_element_s", "per_byte_s", "per_batch_s", "per_epoch_s"):
            checked_amount(f"DeliveryCost({field}=...)", getattr(self, field))


@dataclass(frozen=True)
class CachePoint:
    """An `.autocache()` of the user's: here elements may be kept."""

    name: str
    behind: str | None = None
    """The operator whose results are kept; None: what is read from the source."""
    refresh: float = 0.0
    """Share of it that is computed again in each epoch."""

    def __post_init__(self) -> None:
        checked_share(f"autocache point {self.name!r}: refresh", self.refresh)


@dataclass(frozen=True)
class ExecutionProfile:
    """A pipeline's work in one epoch, and who does it."""

    source: SourceCost
    ops: tuple[OperatorCost, ...]
    """Operators on elements; batching and joins are none."""
    points: tuple[CachePoint, ...]
    elements: float
    """Of the source, in one epoch."""
    splits: int = 1
    """That is, entries to be read: one for each split."""
    workers: int = 1
    readers: int = 1
    """Threads of a worker that read, side by side."""
    threads: int = 1
    """Threads of a worker that compute, as far as they have CPUs (or wait)."""
    delivery: DeliveryCost = DeliveryCost()
    """Of what the last operator gives."""
    batches: float = 0.0
    """In one epoch."""
    rows: bool = False
    """Whether what the last operator gives is all that a batch is made of: if it is kept, whole runs of rows are copied
    from there, and no element is handled by itself."""
    split_elements: tuple[float, ...] = ()
    """Of the source, in each split, or in those of which it is known; empty: not known."""

    def __post_init__(self) -> None:
        for field in ("ops", "points", "split_elements"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        checked_amount("ExecutionProfile(elements=...)", self.elements, positive=True)
        checked_amount("ExecutionProfile(batches=...)", self.batches)
        for field in ("splits", "workers", "readers", "threads"):
            checked_count(f"ExecutionProfile({field}=...)", getattr(self, field))
        _distinct("operators", (op.name for op in self.ops))
        _distinct("autocache points", (point.name for point in self.points))
        for point in self.points:
            # Refused here: a point behind an unknown operator would otherwise fail in the middle of the
            # decision.
            self.place_of(point)

    def place_of(self, point: CachePoint) -> int:
        """Return how many operators run before a point."""
        if point.behind is None:
            return 0
        for place, op in enumerate(self.ops, 1):
            if op.name == point.behind:
                return place
        raise PlanError(f"autocache point {point.name!r} stands behind {point.behind!r}, which is no operator here.")

    def elements_at(self, place: int) -> float:
        """Return the elements of an epoch that so many operators give."""
        return list(accumulate((op.elements for op in self.ops), lambda a, b: a * b, initial=self.elements))[place]

    def bytes_at(self, place: int) -> float:
        """Return the bytes of an epoch that so many operators give."""
        size = self.ops[place - 1].nbytes if place else self.source.nbytes
        return self.elements_at(place) * size

    def entry_bytes_at(self, place: int) -> tuple[float, ...]:
        """Return the bytes that so many operators give of each split; empty where that is not known."""
        each = self.bytes_at(place) / self.elements
        # By the mean of an element: what a split really gives is known only when it has been computed.
        return tuple(each * elements for elements in self.split_elements)

    def seconds_from(self, place: int) -> float:
        """Return the thread-seconds of an epoch that the operators behind a place take: Cachew's N t_L - M t_A."""
        return sum(op.seconds * self.elements_at(at) for at, op in enumerate(self.ops) if at >= place)

    def delivery_seconds(self, place: int) -> float:
        """Return the thread-seconds of an epoch that making batches takes of what comes from a place on."""
        last = len(self.ops)
        handled = 0.0 if self.rows and place == last else self.delivery.per_element_s * self.elements_at(last)
        return handled + self.delivery.per_byte_s * self.bytes_at(last)

    def locked_seconds(self, place: int) -> float:
        """Return how much of the thread-seconds behind a place only one thread of a worker can spend at a time.

        That is the Python around each call of an operator, as far as it is known: what an element takes to be handled.
        And making batches: up to `LOCKED_BYTES` of an element are copied under Python's lock; of what is more half
        counts, since threads that copy at once take the memory's speed from each other.
        """
        last = len(self.ops)
        elements, nbytes = self.elements_at(last), self.bytes_at(last)
        around = sum(
            # An operator that takes less than handling an element cannot hold the lock for longer than it
            # runs.
            min(op.seconds, self.delivery.per_element_s) * self.elements_at(at)
            for at, op in enumerate(self.ops)
            if at >= place
        )
        small = min(nbytes, LOCKED_BYTES * elements)
        return around + self.delivery_seconds(place) - self.delivery.per_byte_s * (nbytes - small) / 2

    def random_before(self, place: int) -> tuple[str, ...]:
        """Name the operators before a place that draw random numbers."""
        return tuple(op.name for op in self.ops[:place] if op.random)


def _distinct(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PlanError(f"ExecutionProfile: two {what} are named {name!r}.")
        seen.add(name)
