"""Sets of integers as sorted, disjoint, half-open intervals: which positions of a split are given out or done."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[int, int]


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return intervals in order, and as one where they touch; faster than `Spans` for many that come at once."""
    found: list[Span] = []
    start = stop = 0
    for begin, end in sorted(spans):
        if begin > stop or start == stop:
            if start < stop:
                found.append((start, stop))
            start, stop = begin, max(begin, end)
        elif end > stop:
            stop = end
    if start < stop:
        found.append((start, stop))
    return tuple(found)


class Spans:
    """A mutable set of positions; adding and removing an interval costs O(log n + what it touches)."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        for start, stop in spans:
            self.add(start, stop)

    def __reduce__(self) -> tuple[type[Spans], tuple[tuple[Span, ...]]]:
        return Spans, (tuple(self),)  # by default slots take pickle five times as long, and a snapshot has many

    def __iter__(self) -> Iterator[Span]:
        return zip(self._starts, self._stops, strict=True)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # mutable, and mypy wants the base's signature

    def __repr__(self) -> str:
        return f"Spans({list(self)})"

    def __contains__(self, position: int) -> bool:
        place = bisect_right(self._starts, position) - 1
        return place >= 0 and position < self._stops[place]

    def size(self) -> int:
        """Return how many positions are in the set."""
        return sum(stop - start for start, stop in self)

    def add(self, start: int, stop: int) -> None:
        """Put [start, stop) into the set."""
        if start >= stop:
            return
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
        place = bisect_right(self._starts, start) - 1
        return place >= 0 and stop <= self._stops[place]
