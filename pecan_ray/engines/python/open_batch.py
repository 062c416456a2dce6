"""A batch that is being written: several threads write elements straight into their rows of its memory."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.collate import (
    check_columns,
    check_is_object,
    checked_array,
    is_empty_list,
    numbers_of_one_type,
    numbers_of_python,
)
from pecan_ray.engines.contract import Produced, Slot, Slots, is_columnar
from pecan_ray.engines.items import Item
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.layout import Layout
from pecan_ray.engines.positions import Part, PartArray, SkippedPositions, join, merge, parts_of_arrays
from pecan_ray.engines.python.nested import STAY, BatchRows, finished
from pecan_ray.engines.reading import Run
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.engines.row_types import RowKind, kind_of
from pecan_ray.engines.slots import layout_of

FREE_ITEMS = 500
"""NumPy keeps Python's lock while it copies so many items."""
# Decision 55: to get Python's lock back takes as long as to copy so many bytes.
HELD_BYTES = 1 << 17


class OpenBatch:
    """A batch whose rows are being written; its layout is that of its first element."""

    def __init__(self, item: Item, size: int, op: str, slots: Slots, layout: Layout | None = None) -> None:
        """`layout`: that of the first element, where it is known."""
        self.op, self.claimed = op, 0
        self.stop = size
        """It is complete with so many rows."""
        self.error: BaseException | None = None
        """Why it cannot be made."""
        self._parts: list[Part] = []
        self._part_arrays: list[PartArray] = []
        self.complete = False
        self._item = item
        self._done = 0
        self._lock = threading.Lock()
        """Guards positions, `complete` and how many rows are done: rows are written without it, side by side."""
        if layout is None:
            layout = layout_of(tuple((name, *_kind(value, size)) for name, value in item.value.items()))
        self._layout = layout
        total = self._layout.nbytes
        self.slot: Slot | None = slots.acquire(total) if total else None
        memory = np.frombuffer(self.slot.buffer, np.uint8) if self.slot else np.empty(0, np.uint8)
        self._columns: dict[str, np.ndarray[Any, Any]] = {
            name: np.empty(size, object) if place is None else place.view(memory)
            for name, place in self._layout.columns.items()
        }
        self._row_parts: list[Part] = []
        """Of each row its last positions, where the trainer joins them."""
        if self.is_joined:
            self._row_parts = [(item.lease.key, 0, 0)] * size
        self._rows: list[Item | None] = [None] * size
        """Of values that are put together at the end, whose they are."""

    @property
    def first(self) -> str:
        """Which element the others must agree with, in words."""
        return self._item.where()

    @property
    def is_full(self) -> bool:
        """Return whether all of its rows are claimed."""
        return self.claimed == self.stop

    @property
    def is_joined(self) -> bool:
        """Return whether the trainer joins its rows to batches, so that it may have any number of them."""
        return self._item.lease.place is not None

    @functools.cached_property
    def kind(self) -> RowKind:
        """The kind of its first element."""
        return kind_of(self._item.value)

    def cut(self) -> None:
        """Let it be complete with the rows that are claimed; no others are claimed meanwhile."""
        with self._lock:
            self.stop = self.claimed
            self.complete = self._done == self.stop

    def fail(self, error: BaseException) -> None:
        """Note that it cannot be made; the first reason counts."""
        with self._lock:
            self.error = self.error or error

    def write(self, first: int, items: list[Item]) -> bool:
        """Write elements into rows from `first` on; True if the batch is complete with them."""
        names = self._columns.keys()
        for item in items:
            if item.value.keys() != names:
                check_columns(item, names, self.first, self.op)
        for name, column in self._columns.items():
            rows = slice(first, first + len(items))
            numbers = numbers_of_one_type(items, name, column) if len(items) > 1 else None
            if numbers is not None:
                copy_into(column[rows], numbers)
            else:
                self._write_each(name, column[rows], items, first)
        if self._row_parts:
            self._row_parts[first : first + len(items)] = [item.parts[-1] for item in items]
        parts: list[Part] = []
        # Outside of the lock; neighbours of one split become one interval, which keeps acknowledgements
        # short.
        join(parts, itertools.chain.from_iterable([item.parts for item in items]))
        return self._note(len(items), parts)

    def _write_each(self, name: str, rows: np.ndarray[Any, Any], items: list[Item], first: int) -> None:
        """Write one column, element by element, into rows of the batch from `first` on."""
        shape, dtype = rows.shape[1:], rows.dtype
        if dtype.hasobject:
            self._write_objects(name, rows, items, first)
            return
        other = ""
        for row, item in enumerate(items):
            value = item.value[name]
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                other = other or self.first
                value = checked_array(name, value, shape, dtype, item, other, self.op)
            # NumPy would give Python's lock up for these: `copy_into` decides whether that is worth it.
            if value.size > FREE_ITEMS:
                copy_into(rows[row : row + 1], value[None])
            else:
                rows[row] = value

    def _write_objects(self, name: str, rows: np.ndarray[Any, Any], items: list[Item], first: int) -> None:
        """Write one column of objects, of which lists and values that fit no array are made at the end."""
        opened_by = self._item.value[name]
        lists = type(opened_by) in (list, tuple) or is_empty_list(opened_by)
        for row, item in enumerate(items):
            value = item.value[name]
            if is_columnar(value) and not (lists and is_empty_list(value)):
                check_is_object(name, value, opened_by, item, self.first, self.op)
            rows[row] = value
            if type(value) not in STAY:
                # For errors at the end, which name the element. Its value would stay in memory until then.
                self._rows[first + row] = item.without_value()

    def write_run(self, first: int, run: Run | KeptRows | RowBlock, start: int, stop: int) -> bool:
        """Write some of a run's elements into rows from `first` on; True if the batch is complete with them."""
        if run.columns.keys() != self._columns.keys():
            check_columns(run.item(start), self._columns.keys(), self.first, self.op)
        for name, column in self._columns.items():
            rows, values = column[first : first + stop - start], run.column(name, start, stop)
            if rows.dtype == object and values.dtype == object and STAY.issuperset(map(type, values)):
                rows[:] = values
            elif rows.dtype != object and rows.dtype == values.dtype and rows.shape == values.shape:
                copy_into(rows, values)
            elif (numbers := numbers_of_python(values, rows.dtype)) is not None:
                copy_into(rows, numbers)
            else:
                self._write_each(name, rows, run.items(name, start, stop), first)
        return self._note_run(first, run, start, stop)

    def _note_run(self, first: int, run: Run | KeptRows | RowBlock, start: int, stop: int) -> bool:
        """Note the positions of a run's elements that are written into rows from `first` on."""
        if self._row_parts and not isinstance(run, KeptRows):  # which are of whole splits, and never joined
            self._row_parts[first : first + stop - start] = run.row_parts(start, stop)
        if not isinstance(run, RowBlock):
            return self._note(stop - start, run.parts(start, stop))
        return self._note(stop - start, (), run.part_arrays(start, stop))

    def _note(self, rows: int, parts: Iterable[Part], arrays: Iterable[PartArray] = ()) -> bool:
        with self._lock:
            self._done += rows
            self._parts += parts
            self._part_arrays += arrays
            # Rows are done in any order, so their number tells, and not the last row.
            self.complete = self._done == self.stop
            return self.complete

    def item(self, partial: bool) -> Item:
        """Return the batch, cut to the rows that were written, for operators on batches."""
        rows = self._done
        columns = {name: column[:rows] for name, column in self._columns.items()}
        parts = self._parts + parts_of_arrays(self._part_arrays)
        return replace(self._item, value=columns, parts=parts, rows=rows, members=[], partial=partial)

    def finish(self, skipped_positions: SkippedPositions | None) -> Produced:
        """Return the batch, cut to the rows that were written, with what waits for a batch; None: it is partial.

        What becomes of a partial batch is not known yet: it carries nothing but itself.
        """
        parts, bad = skipped_positions.take() if skipped_positions is not None else ([], [])
        # All claimed rows are written by now: a batch is finished when it is complete, or when all threads
        # are done.
        rows = self._done
        columns = {name: column[:rows] for name, column in self._columns.items()}
        return Produced(
            finished(columns, BatchRows(self.op, self._item, self._rows)),
            merge(self._parts + parts, self._part_arrays),
            rows,
            self._item.lease.epoch,
            partial=skipped_positions is None,
            slot=self.slot,
            bad=bad,
            # A batch that was not filled is cut, and lies otherwise than the layout says.
            layout=self._layout if rows == len(self._rows) else None,
            without_data=merge(parts),
            row_parts=self._row_parts[:rows],
        )


def copy_into(rows: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    """Copy values into rows of the same shape and dtype.

    NumPy lets go of Python's lock to copy more than some hundred items.  For a few kilobytes getting it back takes
    longer than copying, so these are copied as one item.
    """
    if values.size > FREE_ITEMS and values.nbytes <= HELD_BYTES and values.flags.c_contiguous:
        whole = np.dtype((np.void, values.nbytes))
        rows.reshape(-1).view(whole)[:] = values.reshape(-1).view(whole)
    else:
        rows[...] = values


def _kind(value: Any, size: int) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return dtype and shape of the column of a batch that a value begins; no dtype for a column of objects."""
    # What an empty list of JSON would hold is not known: lists of texts may follow.
    if not is_columnar(value) or (is_empty_list(value) and value.dtype == np.float64):
        return None, ()
    array = value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)
    return array.dtype, (size, *array.shape)
