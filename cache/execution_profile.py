"""What was measured of a pipeline, as far as it matters for what to keep: reading, operators, and marked points."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from pecan_ray.cache.checked import checked_amount, checked_count, checked_share
from pecan_ray.errors import PlanError


@dataclass(frozen=True)
class SourceCost:
    """Reading one element of the source."""

    seconds: float
    """That one reader takes."""
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
    """That one thread takes for an element that it is given."""
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
    """What one thread takes to put an element into a batch, wherever the element comes from."""

    per_element_s: float = 0.0
    per_byte_s: float = 0.0

    def __post_init__(self) -> None:
        checked_amount("DeliveryCost(per_element_s=...)", self.per_element_s)
        checked_amount("DeliveryCost(per_byte_s=...)", self.per_byte_s)


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

    def __post_init__(self) -> None:
        for field in ("ops", "points"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        checked_amount("ExecutionProfile(elements=...)", self.elements, positive=True)
        for field in ("splits", "workers", "readers", "threads"):
            checked_count(f"ExecutionProfile({field}=...)", getattr(self, field))
        _distinct("operators", (op.name for op in self.ops))
        _distinct("autocache points", (point.name for point in self.points))
        for point in self.points:
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

    def seconds_from(self, place: int) -> float:
        """Return the thread-seconds of an epoch that the operators behind a place take: Cachew's N t_L - M t_A."""
        return sum(op.seconds * self.elements_at(at) for at, op in enumerate(self.ops) if at >= place)

    @property
    def delivery_seconds(self) -> float:
        """Thread-seconds of an epoch that making batches takes, whatever is kept."""
        last = len(self.ops)
        return self.delivery.per_element_s * self.elements_at(last) + self.delivery.per_byte_s * self.bytes_at(last)

    def random_before(self, place: int) -> tuple[str, ...]:
        """Name the operators before a place that draw random numbers."""
        return tuple(op.name for op in self.ops[:place] if op.random)


def _distinct(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PlanError(f"ExecutionProfile: two {what} are named {name!r}.")
        seen.add(name)
