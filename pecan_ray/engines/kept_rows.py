"""Elements of an entry that are handed on as columns: whole runs of rows are copied into batches at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecan_ray.engines.entry_format import EntryReader
from pecan_ray.engines.items import Item
from pecan_ray.engines.layout import Layout
from pecan_ray.engines.positions import Part, join
from pecan_ray.engines.slots import layout_of
from pecan_ray.plan.splits import OUTPUT_BITS, Array, Columns, Lease, LeaseKey

Positions: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """The intervals of positions that the elements of an entry stand for, in their order."""

    starts: Positions
    ends: Positions

    elements: Positions
    """Their numbers in the split."""

    @classmethod
    def of(cls, entry: EntryReader) -> Intervals:
        """Return those of an entry."""
        global _last
        # `_last` is read once: another thread may replace it between the comparison and the return.
        written, known = entry.origin_bytes(), _last
        if known is None or known[0] != written:
            element, output, width = (one.copy() for one in entry.source_refs())  # the entry itself may go
            begins = (element << OUTPUT_BITS) + output
            _last = known = written, cls(begins, begins + width, element)
        return known[1]

    @functools.cached_property
    def whole(self) -> bool:
        """Return whether every element stands for some positions."""
        return bool(np.all(self.ends > self.starts))

    @functools.cached_property
    def bounds(self) -> tuple[int, int] | None:
        """Where the first one begins and the last one ends, if each begins where the one before it ends."""
        if not len(self.starts) or not np.array_equal(self.starts[1:], self.ends[:-1]):
            return None
        return int(self.starts[0]), int(self.ends[-1])

    def spans_between(self, key: LeaseKey, spans: Sequence[tuple[int, int]], stop: int) -> list[Part]:
        """Return what is asked for of the positions for which there is no element, in a split that ends at `stop`."""
        # The usual entry has no gaps: nothing was filtered, and no search in arrays is needed.
        if self.bounds == (0, stop):
            return []
        starts, stops = np.append(0, self.ends), np.append(self.starts, stop)
        places = np.flatnonzero(stops > starts)
        return [part for at in places for part in clip_range(key, spans, int(starts[at]), int(stops[at]))]

    def requested_rows(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the rows that are asked for, in part at least: from one to behind the last one of a run."""
        bounds = self.bounds
        if bounds is not None and len(spans) == 1 and spans[0][0] <= bounds[0] and bounds[1] <= spans[0][1]:
            yield 0, len(self.starts)
            return
        start, stop = 0, 0
        for begin, end in spans:
            first = int(np.searchsorted(self.ends, begin, "right"))
            last = int(np.searchsorted(self.starts, end, "left"))
            # Runs that touch are joined: two spans may ask for two parts of one element, which is one row.
            if first > stop or start == stop:
                if stop > start:
                    yield start, stop
                start = first
            stop = max(stop, last)
        if stop > start:
            yield start, stop


_last: tuple[bytes, Intervals] | None = None
"""Those of the entry that was read last, and how they are written: other splits often have the same."""


@dataclass(frozen=True)
class KeptRows:
    """Elements of an entry that follow each other, as columns."""

    lease: Lease
    columns: Columns
    intervals: Intervals
    spans: tuple[tuple[int, int], ...]
    """Positions to deliver, among which may be some of other elements."""
    start: int
    stop: int
    """Which rows of the entry these are."""

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start

    @functools.cached_property
    def first(self) -> dict[str, Any]:
        """The first row as an element."""
        return {name: column[self.start] for name, column in self.columns.items()}

    @functools.cached_property
    def plain(self) -> bool:
        """Return whether all columns are of numbers."""
        return not any(column.dtype.hasobject for column in self.columns.values())

    @functools.cached_property
    def _layout_by_size(self) -> dict[int, Layout]:
        return {}

    def layout(self, size: int) -> Layout:
        """Return that of a batch of so many such rows."""
        known = self._layout_by_size.get(size)
        if known is None:
            columns = self.columns.items()
            numbers = ((name, None if one.dtype.hasobject else one.dtype, one.shape[1:]) for name, one in columns)
            known = self._layout_by_size[size] = layout_of(
                tuple((name, dtype, () if dtype is None else (size, *shape)) for name, dtype, shape in numbers)
            )
        return known

    def parts(self, start: int, stop: int) -> list[Part]:
        """Return the positions to deliver with rows `start` to `stop` of these."""
        if self.intervals.bounds is not None:
            begin = int(self.intervals.starts[self.start + start])
            end = int(self.intervals.ends[self.start + stop - 1])
            if len(self.spans) == 1 and self.spans[0][0] <= begin and end <= self.spans[0][1]:
                return [(self.lease.key, begin, end)]
            return clip_range(self.lease.key, self.spans, begin, end)
        begins = self.intervals.starts[self.start + start : self.start + stop]
        ends = self.intervals.ends[self.start + start : self.start + stop]
        breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        found: list[Part] = []
        for first, last in zip((0, *breaks), (*breaks, len(begins)), strict=True):
            join(found, clip_range(self.lease.key, self.spans, int(begins[first]), int(ends[last - 1])))
        return found

    def named(self, row: int) -> Item:
        """Return an element that stands for a row where only the kinds of its values matter: they are the first's."""
        return Item(self.first, [], self.lease, int(self.intervals.elements[self.start + row]))

    def item(self, row: int) -> Item:
        """Return a row as an element, without its positions."""
        value = {name: column[self.start + row] for name, column in self.columns.items()}
        return Item(value, [], self.lease, int(self.intervals.elements[self.start + row]))

    def column(self, name: str, start: int, stop: int) -> Array:
        """Return rows of a column."""
        return self.columns[name][self.start + start : self.start + stop]

    def items(self, name: str, start: int, stop: int) -> list[Item]:
        """Return rows as elements with one column."""
        column = self.column(name, start, stop)
        elements = self.intervals.elements[self.start + start : self.start + stop]
        return [Item({name: one}, [], self.lease, int(number)) for one, number in zip(column, elements, strict=True)]


def clip_range(key: LeaseKey, spans: Sequence[tuple[int, int]], begin: int, end: int) -> list[Part]:
    """Return the positions of an interval that are asked for."""
    return [(key, max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin and begin < end]
