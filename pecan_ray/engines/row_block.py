"""Rows of a table on their way through an engine, as columns: no row becomes an element unless something needs it."""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pecan_ray.engines.contract import is_plain
from pecan_ray.engines.items import Item
from pecan_ray.engines.layout import Layout
from pecan_ray.engines.positions import Part, PartArray, parts_of_arrays
from pecan_ray.engines.reading import Run
from pecan_ray.engines.row_types import are_of_one_kind
from pecan_ray.engines.serializable import PLAIN_OR_NUMBERS
from pecan_ray.engines.slots import layout_of
from pecan_ray.plan.splits import OUTPUT_BITS, Array, Columns, Lease
from pecan_ray.sampling.spans import SpanArray
from pecan_ray.sources.copies import own_copy

RowNumbers: TypeAlias = NDArray[np.int64]

PIECE_ROWS = 4096
"""Rows that go through operators together: 40 columns of numbers are a megabyte, which a processor's cache holds."""
PIECE_BYTES = 4 << 20
"""Most bytes that go through operators together: as much as is decoded of a Parquet file at a time."""
ELEMENT_BITS = 63 - OUTPUT_BITS
"""Bits of an element's number: positions are numbers of 63 bits."""
MAX_ELEMENT = (1 << ELEMENT_BITS) - 1
MISSING: Any = object()
"""Stands for the value of a column that a row does not have, among rows that have it."""


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Elements of one pass, of any leases and in any order; nobody writes into the columns."""

    columns: Columns
    leases: tuple[Lease, ...]
    lease_of: RowNumbers
    """By row: the place of its lease among `leases`."""
    elements: RowNumbers
    """By row: the number of the element in its split."""

    @classmethod
    def of_run(cls, run: Run) -> RowBlock:
        """Return consecutive elements of a split."""
        elements = np.arange(run.first, run.first + run.rows, dtype=np.int64)
        return cls(run.columns, (run.lease,), np.zeros(run.rows, np.int64), elements)

    @classmethod
    def of_items(cls, items: Sequence[Item]) -> RowBlock:
        """Return elements of whose positions all that is asked for is to be delivered."""
        names = list(dict.fromkeys(name for item in items for name in item.value))
        # Behind a map rows may differ in their columns; MISSING and not None, which is a value that a column
        # may have.
        values = {name: [item.value.get(name, MISSING) for item in items] for name in names}
        columns = {name: np.fromiter(column, object, len(items)) for name, column in values.items()}
        # By identity: comparing leases compares their splits and spans, for each row.
        leases = {id(item.lease): item.lease for item in items}
        places = {one: place for place, one in enumerate(leases)}
        lease_of = np.array([places[id(item.lease)] for item in items], np.int64)
        elements = np.array([item.element for item in items], np.int64)
        return cls(columns, tuple(leases.values()), lease_of, elements)

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.elements)

    @property
    def lease(self) -> Lease:
        """The newest of the leases."""
        # Leases stand in the order in which they came, so the largest place is the newest.
        return self.leases[int(self.lease_of.max())]

    @functools.cached_property
    def first(self) -> dict[str, Any]:
        """The first row as an element."""
        return self._value(0)

    @functools.cached_property
    def plain(self) -> bool:
        """Return whether all columns are of numbers or dates."""
        return all(is_plain(column.dtype) for column in self.columns.values())

    @functools.cached_property
    def is_serializable(self) -> bool:
        """Return whether it is known that all values can travel to the trainer as they are."""
        objects = (column for column in self.columns.values() if column.dtype.hasobject)
        return all(column.ndim == 1 and all(map(_is_serializable, _samples(column))) for column in objects)

    @functools.cached_property
    def is_of_one_kind(self) -> bool:
        """Return whether it is known that all rows can be rows of one batch."""
        objects = (column for column in self.columns.values() if not is_plain(column.dtype))
        return not self.rows or all(column.ndim == 1 and are_of_one_kind(column.tolist()) for column in objects)

    def layout(self, size: int) -> Layout | None:
        """Return that of a batch of so many such rows; None where the values have to be looked at."""
        if not self.plain:
            return None
        return layout_of(tuple((name, one.dtype, (size, *one.shape[1:])) for name, one in self.columns.items()))

    def cut(self, start: int, stop: int) -> RowBlock:
        """Return rows `start` to `stop`."""
        # No copy and the cached properties stay: most cuts are of whole blocks.
        if stop - start == self.rows:
            return self
        return self._of_rows(slice(start, stop))

    def take(self, rows: RowNumbers) -> RowBlock:
        """Return rows with some numbers."""
        return self._of_rows(rows)

    def _of_rows(self, rows: Any) -> RowBlock:
        columns = {name: column[rows] for name, column in self.columns.items()}
        return RowBlock(columns, self.leases, self.lease_of[rows], self.elements[rows])

    def chunks(self, most: int = PIECE_ROWS) -> Iterator[RowBlock]:
        """Yield it in blocks of so many rows, of fewer if these are large, and of fewer at the end."""
        step = max(1, min(most, PIECE_BYTES // max(1, sum(map(row_bytes, self.columns.values())))))
        return (self.cut(start, min(start + step, self.rows)) for start in range(0, self.rows, step))

    def parts(self, start: int, stop: int) -> list[Part]:
        """Return the positions to deliver with rows `start` to `stop`."""
        return parts_of_arrays(self.part_arrays(start, stop))

    def part_arrays(self, start: int, stop: int) -> list[PartArray]:
        """Return the same, in arrays: of rows in a random order nearly each one is an interval."""
        return part_arrays(self.leases, self.lease_of[start:stop], self.elements[start:stop])

    def row_parts(self, start: int, stop: int) -> list[Part]:
        """Return the last positions to deliver with each of some rows, whose leases have one interval."""
        begins = self.elements[start:stop] << OUTPUT_BITS
        bounds = np.array([lease.spans[-1][1] for lease in self.leases])[self.lease_of[start:stop]]
        # A lease may end within an element, whose later outputs were delivered before.
        ends = np.minimum(begins + (1 << OUTPUT_BITS), bounds)
        keys = [lease.key for lease in self.leases]
        keys_of_rows = [keys[place] for place in self.lease_of[start:stop].tolist()]
        return list(zip(keys_of_rows, begins.tolist(), ends.tolist(), strict=True))

    def column(self, name: str, start: int, stop: int) -> Array:
        """Return rows of a column."""
        return self.columns[name][start:stop]

    def named(self, row: int) -> Item:
        """Return a row as an element that names it, without its positions."""
        return self.item(row)

    def item(self, row: int) -> Item:
        """Return a row as an element, without its positions."""
        return self._item(row, self._value(row))

    def items(self, name: str, start: int, stop: int) -> list[Item]:
        """Return rows as elements with one column."""
        column = self.columns[name]
        return [self._item(row, {name: column[row]}) for row in range(start, stop)]

    def own_items(self) -> list[Item]:
        """Return the rows as elements that functions may write into, with their positions."""
        names, whole = list(self.columns), 1 << OUTPUT_BITS
        values = zip(*(_own_values(column) for column in self.columns.values()), strict=True)
        found = []
        for row, one in enumerate(values):
            value = {name: column for name, column in zip(names, one, strict=True) if column is not MISSING}
            item = self._item(row, value)
            begin = item.element << OUTPUT_BITS
            item.parts, item.width = _requested_parts(item.lease, [begin], [begin + whole]), whole
            found.append(item)
        return found

    def _value(self, row: int) -> dict[str, Any]:
        value = {name: column[row] for name, column in self.columns.items()}
        return {name: one for name, one in value.items() if one is not MISSING}

    def _item(self, row: int, value: dict[str, Any]) -> Item:
        return Item(value, [], self.leases[self.lease_of[row]], int(self.elements[row]))


def part_arrays(leases: Sequence[Lease], lease_of: RowNumbers, elements: RowNumbers) -> list[PartArray]:
    """Return the positions to deliver of some elements, neighbours as one interval.

    Args:
        leases: what asks for them.
        lease_of: by element: the place of its lease among `leases`.
        elements: their numbers, in any order.
    """
    # Rows of a shuffle that were neighbours in their split are one interval again. NumPy sorts plain numbers, here by
    # lease and then by element, in a tenth of the time that `lexsort` or `unique` take.
    numbers = np.sort(lease_of << ELEMENT_BITS | elements)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    firsts = numbers[np.append(0, breaks)[: len(numbers)]]
    lasts = numbers[np.append(breaks, len(numbers))[: len(numbers)] - 1]
    bounds = np.stack([firsts & MAX_ELEMENT, (lasts & MAX_ELEMENT) + 1], axis=1) << OUTPUT_BITS
    places = firsts >> ELEMENT_BITS
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    found = ((leases[places[start]], mine) for start, mine in zip(starts, np.split(bounds, starts[1:]), strict=False))
    return [(lease.key, asked) for lease, mine in found if len(asked := _requested(lease, mine))]


def _requested(lease: Lease, bounds: SpanArray) -> SpanArray:
    """Return what a lease asks for of some intervals, which are in order."""
    start, stop = lease.spans[0]
    if len(lease.spans) == 1 and start <= bounds[0, 0] and bounds[-1, 1] <= stop:
        return bounds
    parts = _requested_parts(lease, *bounds.T.tolist())
    return np.array([interval for _, *interval in parts], np.int64).reshape(-1, 2)


def _requested_parts(lease: Lease, begins: list[int], ends: list[int]) -> list[Part]:
    """Return what a lease asks for of some intervals, which are in order."""
    start, stop = lease.spans[0]
    key = lease.key
    if len(lease.spans) == 1 and start <= begins[0] and ends[-1] <= stop:
        return list(zip(itertools.repeat(key), begins, ends, strict=False))
    found: list[Part] = []
    # There may be many spans, of an epoch that was left in the middle.
    for begin, end in zip(begins, ends, strict=True):
        first = bisect_right(lease.spans, begin, key=lambda span: span[1])
        last = bisect_left(lease.spans, end, key=lambda span: span[0])
        found += [(key, max(start, begin), min(stop, end)) for start, stop in lease.spans[first:last]]
    return found


def _samples(column: Array) -> Iterable[Any]:
    """Return a value of each of the usual types of a column, and all values of the others."""
    values = column.tolist()
    return values if set(map(type, values)) - PLAIN_OR_NUMBERS else ()


def _is_serializable(value: Any) -> bool:
    return type(value) in PLAIN_OR_NUMBERS or (type(value) is np.ndarray and not value.dtype.hasobject)


def _own_values(column: Array) -> list[Any]:
    """Return the values of a column, of which none is the column's own where it can be written into."""
    # Scalars of NumPy are copies; rows of wider columns, records and objects are views or shared.
    if column.ndim == 1 and column.dtype.kind not in "OV":
        return list(column)
    return [one if one is MISSING else own_copy(one) for one in column]


def row_bytes(column: Array) -> int:
    """Return how many bytes a row of a column takes in its array."""
    return column.itemsize * int(math.prod(column.shape[1:]))


def objects_of(column: Array) -> Array:
    """Return a column as objects, each of which is as large as it is and holds nothing of the column."""
    # `np.array` would make one array of more dimensions of rows that are arrays.
    return np.fromiter(_own_values(column), object, len(column))


def same_layout(one: Array, other: Array) -> bool:
    """Tell whether two columns hold values of one dtype and shape."""
    return bool(one.dtype == other.dtype) and one.shape[1:] == other.shape[1:]


def put_together(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return the rows of several blocks in one, which has memory of its own."""
    names = list(dict.fromkeys(name for block in blocks for name in block.columns))
    columns = {name: _joined([block.columns.get(name) for block in blocks], blocks) for name in names}
    leases = tuple(lease for block in blocks for lease in block.leases)
    begins = np.cumsum([0, *(len(block.leases) for block in blocks)])
    lease_of = [block.lease_of + begin for block, begin in zip(blocks, begins, strict=False)]
    return RowBlock(columns, leases, np.concatenate(lease_of), np.concatenate([block.elements for block in blocks]))


def _joined(columns: Sequence[Array | None], blocks: Sequence[RowBlock]) -> Array:
    known = [column for column in columns if column is not None]
    if len(known) == len(columns) and all(same_layout(known[0], column) for column in known):
        return np.concatenate(known)
    return np.concatenate([as_objects(column, block.rows) for column, block in zip(columns, blocks, strict=True)])


def as_objects(column: Array | None, rows: int) -> Array:
    """Return a column as objects; None: one that these rows do not have."""
    if column is None:
        return np.full(rows, MISSING, object)
    return column if column.dtype == object and column.ndim == 1 else objects_of(column)
