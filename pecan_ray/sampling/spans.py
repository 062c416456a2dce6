"""Sets of integers as sorted, disjoint, half-open intervals: which positions of a split are given out or done."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
SpanArray: TypeAlias = NDArray[np.int64]
"""Intervals as rows of an array of shape (n, 2)."""
MANY = 32
"""Intervals that are removed, or merged, at a time: of fewer, one after the other takes as little time."""
MOST_WAITING = 1 << 17
"""Removed intervals that wait, 2 MiB of them, unless the set has more of its own: so many share the work on both."""


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return intervals in order, and as one where they touch; faster than `Spans` for many that come at once."""
    ordered = sorted(spans)
    if len(ordered) >= MANY:
        return tuple(PackedSpans(merged_bounds(bounds_of(ordered))))
    found: list[Span] = []
    for start, stop in ordered:
        if start >= stop:
            continue
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def merged_bounds(bounds: SpanArray) -> SpanArray:
    """Return intervals that are sorted by their starts as one where they touch, without empty ones."""
    bounds = bounds[bounds[:, 0] < bounds[:, 1]]
    starts, stops = bounds[:, 0], np.maximum.accumulate(bounds[:, 1])
    apart = starts[1:] > stops[:-1]
    begins = starts[np.append(True, apart)[: len(starts)]]
    ends = stops[np.append(apart, True)[: len(stops)]]
    return np.stack([begins, ends], axis=1)


class PackedSpans(Sequence[Span]):
    """Many intervals as one array: they travel as its bytes, and become pairs of numbers where these are asked for.

    A batch of rows in a random order has nearly as many intervals as rows (decision 180).
    """

    __slots__ = ("bounds",)

    def __init__(self, bounds: SpanArray) -> None:
        self.bounds = bounds

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[Span]:
        return zip(self.bounds[:, 0].tolist(), self.bounds[:, 1].tolist(), strict=True)

    @overload
    def __getitem__(self, place: int) -> Span: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Span]: ...
    def __getitem__(self, place: int | slice) -> Span | Sequence[Span]:
        return list(self)[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of a list, and mypy wants the base's signature

    def __repr__(self) -> str:
        return f"PackedSpans({list(self)})"

    def __reduce__(self) -> tuple[Callable[[bytes], PackedSpans], tuple[bytes]]:
        return _unpacked, (self.bounds.tobytes(),)


def _unpacked(written: bytes) -> PackedSpans:
    return PackedSpans(np.frombuffer(written, np.int64).reshape(-1, 2))


def packed(bounds: SpanArray) -> Sequence[Span]:
    """Return intervals of an array packed where they are many, else as a list."""
    spans = PackedSpans(bounds)
    return spans if len(spans) >= MANY else list(spans)


def bounds_of(spans: Iterable[Span]) -> SpanArray:
    """Return intervals as an array."""
    if isinstance(spans, PackedSpans):
        return spans.bounds
    spans = list(spans)
    return np.fromiter(chain.from_iterable(spans), np.int64, 2 * len(spans)).reshape(-1, 2)


def one_after_the_other(several: Sequence[Iterable[Span]]) -> Sequence[Span]:
    """Return several lists of intervals as one; those that are packed stay so."""
    if any(isinstance(spans, PackedSpans) for spans in several):
        return PackedSpans(np.concatenate([bounds_of(spans) for spans in several]))
    return list(chain.from_iterable(several))


class Spans:
    """A mutable set of positions; adding and removing an interval costs O(log n + what it touches)."""

    __slots__ = ("_least", "_removed", "_starts", "_stops")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._removed: list[NDArray[np.int64]] = []
        """What was removed and is still in the lists: taken out together, many intervals cost a tenth."""
        self._least = 0
        """While something is: at least so many positions are left."""
        for start, stop in spans:
            self.add(start, stop)

    def __reduce__(self) -> tuple[type[Spans], tuple[tuple[Span, ...]]]:
        return Spans, (tuple(self),)  # by default slots take pickle five times as long, and a snapshot has many

    def __iter__(self) -> Iterator[Span]:
        self._settle()
        return zip(self._starts, self._stops, strict=True)

    def __bool__(self) -> bool:
        if self._least > 0:
            return True
        self._settle()
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, and mypy wants the base's signature

    def __repr__(self) -> str:
        return f"Spans({list(self)})"

    def __contains__(self, position: int) -> bool:
        self._settle()
        place = bisect_right(self._starts, position) - 1
        return place >= 0 and position < self._stops[place]

    def size(self) -> int:
        """Return how many positions are in the set."""
        return sum(stop - start for start, stop in self)

    def add(self, start: int, stop: int) -> None:
        """Put [start, stop) into the set."""
        if start >= stop:
            return
        self._settle()
        # Also those that only touch it: they become one.
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Take [start, stop) out of the set; parts that are not in it are ignored."""
        if start >= stop:
            return
        self._settle()
        # Those that only touch it stay as they are.
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if first >= last:
            return
        kept_starts: list[int] = []
        kept_stops: list[int] = []
        if self._starts[first] < start:
            kept_starts.append(self._starts[first])
            kept_stops.append(start)
        if self._stops[last - 1] > stop:
            kept_starts.append(stop)
            kept_stops.append(self._stops[last - 1])
        self._starts[first:last] = kept_starts
        self._stops[first:last] = kept_stops

    def contains_all(self, start: int, stop: int) -> bool:
        """Tell whether all of [start, stop) is in the set."""
        if start >= stop:
            return True
        self._settle()
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and stop <= self._stops[place]

    def remove_all(self, spans: Iterable[Span]) -> None:
        """Take intervals of 64-bit numbers out of the set, as `remove` does one."""
        spans = spans if isinstance(spans, PackedSpans) else list(spans)
        if not self._removed and len(spans) < MANY:
            for start, stop in spans:
                self.remove(start, stop)
            return
        removed = bounds_of(spans)
        removed = removed[removed[:, 0] < removed[:, 1]]
        if not len(removed):
            return
        if not self._removed:
            self._least = self.size()
        self._removed.append(removed)
        self._least -= sum((removed[:, 1] - removed[:, 0]).tolist())  # which may need more than 64 bits
        if sum(map(len, self._removed)) > max(MOST_WAITING, len(self._starts)):
            self._settle()

    def _settle(self) -> None:
        """Take out what was removed."""
        if not self._removed:
            return
        removed = np.concatenate(self._removed)
        self._removed, self._least = [], 0
        bounds = np.concatenate([self._starts, self._stops, removed[:, 0], removed[:, 1]])
        # Equal bounds may come in any order: only the sum behind the last of them counts.
        order = np.argsort(bounds)
        # One more interval begins or ends at each bound: of the set, or, counted the other way, of what is removed.
        mine, others = len(self._starts), len(removed)
        levels = np.cumsum(np.repeat([1, -1, -1, 1], [mine, mine, others, others])[order])
        bounds = bounds[order]
        last_of_place = np.append(bounds[1:] != bounds[:-1], True)
        bounds, is_in = bounds[last_of_place], levels[last_of_place] == 1
        changes = np.diff(is_in, prepend=False)
        self._starts, self._stops = bounds[changes & is_in].tolist(), bounds[changes & ~is_in].tolist()
