"""Elements of an entry that are handed on as columns: whole runs of rows are copied into batches at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecan_ray.engines.entry_format import EntryReader
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import Part, join
from pecan_ray.plan.splits import OUTPUT_BITS, Array, Columns, Lease, LeaseKey

Positions: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class Intervals:
    """The intervals of positions that the elements of an entry stand for, in their order."""

    begins: Positions
    ends: Positions

    @classmethod
    def of(cls, entry: EntryReader) -> Intervals:
        """Return those of an entry."""
        element, output, width = entry.origins()
        begins = (element << OUTPUT_BITS) + output
        return cls(begins, begins + width)

    def gaps(self, key: LeaseKey, spans: Sequence[tuple[int, int]], stop: int) -> list[Part]:
        """Return what is asked for of the positions for which there is no element, in a split that ends at `stop`."""
        starts, stops = np.append(0, self.ends), np.append(self.begins, stop)
        places = np.flatnonzero(stops > starts)
        return [part for at in places for part in clipped(key, spans, int(starts[at]), int(stops[at]))]

    def asked(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the rows that are asked for, in part at least: from one to behind the last one of a run."""
        start, stop = 0, 0
        for begin, end in spans:
            first = int(np.searchsorted(self.ends, begin, "right"))
            last = int(np.searchsorted(self.begins, end, "left"))
            if first > stop or start == stop:
                if stop > start:
                    yield start, stop
                start = first
            stop = max(stop, last)
        if stop > start:
            yield start, stop


@dataclass(frozen=True)
class KeptRows:
    """Elements of an entry that follow each other, as columns."""

    lease: Lease
    columns: Columns
    intervals: Intervals
    elements: Positions
    """Their numbers in the split."""
    spans: tuple[tuple[int, int], ...]
    """Positions to deliver, among which may be some of other elements."""
    start: int
    stop: int
    """Which rows of the entry these are."""

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start

    def parts(self, start: int, stop: int) -> list[Part]:
        """Return the positions to deliver with rows `start` to `stop` of these."""
        begins = self.intervals.begins[self.start + start : self.start + stop]
        ends = self.intervals.ends[self.start + start : self.start + stop]
        breaks = np.flatnonzero(begins[1:] != ends[:-1]) + 1
        found: list[Part] = []
        for first, last in zip((0, *breaks), (*breaks, len(begins)), strict=True):
            join(found, clipped(self.lease.key, self.spans, int(begins[first]), int(ends[last - 1])))
        return found

    def item(self, row: int) -> Item:
        """Return a row as an element, without its positions."""
        value = {name: column[self.start + row] for name, column in self.columns.items()}
        return Item(value, [], self.lease, int(self.elements[self.start + row]))

    def column(self, name: str, start: int, stop: int) -> Array:
        """Return rows of a column."""
        return self.columns[name][self.start + start : self.start + stop]

    def items(self, name: str, start: int, stop: int) -> list[Item]:
        """Return rows as elements with one column."""
        column, elements = self.column(name, start, stop), self.elements[self.start + start : self.start + stop]
        return [Item({name: one}, [], self.lease, int(number)) for one, number in zip(column, elements, strict=True)]


def clipped(key: LeaseKey, spans: Sequence[tuple[int, int]], begin: int, end: int) -> list[Part]:
    """Return the positions of an interval that are asked for."""
    return [(key, max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin and begin < end]
