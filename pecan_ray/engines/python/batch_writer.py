"""Filling batches from many threads: each thread writes its elements straight into their rows of a slot."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pecan_ray.engines.contract import Produced, Slot, Slots, is_columnar
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.items import Item
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.layout import Layout
from pecan_ray.engines.positions import Part, SkippedPositions, join, merge
from pecan_ray.engines.python.chain import apply_error_policy, check_serializable
from pecan_ray.engines.python.collate import (
    check_columns,
    check_is_object,
    checked_array,
    is_empty_list,
    numbers_of_one_type,
    numbers_of_python,
    with_arrays,
)
from pecan_ray.engines.python.nested import STAY, BatchRows, finished
from pecan_ray.engines.python.ordered_results import ITEM_BYTES, items_bytes
from pecan_ray.engines.reading import Run
from pecan_ray.engines.serializable import PLAIN_OR_NUMBERS
from pecan_ray.engines.slots import layout_of
from pecan_ray.errors import OpError
from pecan_ray.options import OnError

MOST_IN_PIECE = 256
"""Elements of a chunk that stand in line together."""
FREE_ITEMS = 500
"""NumPy keeps Python's lock while it copies so many items."""
# Decision 55: to get Python's lock back takes as long as to copy so many bytes.
HELD_BYTES = 1 << 17


class OpenBatch:
    """A batch whose rows are being written; its layout is that of its first element."""

    def __init__(self, item: Item, size: int, op: str, slots: Slots, layout: Layout | None = None) -> None:
        """`layout`: that of the first element, where it is known."""
        self.size, self.op, self.claimed = size, op, 0
        self.parts: list[Part] = []
        self.complete = False
        self._item = item
        self._done = 0
        self._lock = threading.Lock()
        """Guards `parts`, `complete` and how many rows are done: rows are written without it, side by side."""
        if layout is None:
            layout = layout_of(tuple((name, *_kind(value, size)) for name, value in item.value.items()))
        self._layout = layout
        total = self._layout.nbytes
        self.slot: Slot | None = slots.acquire(total) if total else None
        memory = np.frombuffer(self.slot.buffer, np.uint8) if self.slot else np.empty(0, np.uint8)
        self._columns: dict[str, np.ndarray[Any, Any]] = {
            name: np.empty(size, object) if place is None else place.view(memory)
            for name, place in self._layout.places.items()
        }
        self._rows: list[Item | None] = [None] * size
        """Of values that are put together at the end, whose they are."""

    @property
    def first(self) -> str:
        """Which element the others must agree with, in words."""
        return self._item.where()

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
        return self._note(len(items), itertools.chain.from_iterable([item.parts for item in items]))

    def _write_each(self, name: str, rows: np.ndarray[Any, Any], items: list[Item], first: int) -> None:
        """Write one column, element by element, into rows of the batch from `first` on."""
        shape, dtype, objects = rows.shape[1:], rows.dtype, rows.dtype.hasobject
        other, opened_by = "", self._item.value[name]
        lists = objects and (type(opened_by) in (list, tuple) or is_empty_list(opened_by))
        for row, item in enumerate(items):
            value = item.value[name]
            if objects:
                if is_columnar(value) and not (lists and is_empty_list(value)):
                    check_is_object(name, value, opened_by, item, self.first, self.op)
                rows[row] = value
                if type(value) not in STAY:
                    # For errors at the end, which name the element. Its value would stay in memory until then.
                    self._rows[first + row] = item.without_value()
                continue
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                other = other or self.first
                value = checked_array(name, value, shape, dtype, item, other, self.op)
            # NumPy would give Python's lock up for these: `copy_into` decides whether that is worth it.
            if value.size > FREE_ITEMS:
                copy_into(rows[row : row + 1], value[None])
            else:
                rows[row] = value

    def write_run(self, first: int, run: Run | KeptRows, start: int, stop: int) -> bool:
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
        return self._note(stop - start, run.parts(start, stop))

    def _note(self, rows: int, parts: Iterable[Part]) -> bool:
        with self._lock:
            self._done += rows
            join(self.parts, parts)
            # Rows are done in any order, so their number tells, and not the last row.
            self.complete = self._done == self.size
            return self.complete

    def item(self, partial: bool) -> Item:
        """Return the batch, cut to the rows that were written, for operators on batches."""
        rows = self._done
        columns = {name: column[:rows] for name, column in self._columns.items()}
        return replace(self._item, value=columns, parts=self.parts, rows=rows, members=[], partial=partial)

    def finish(self, skipped_positions: SkippedPositions | None) -> Produced:
        """Return the batch, cut to the rows that were written, with what waits for a batch; None: it is partial.

        What becomes of a partial batch is not known yet: it carries nothing but itself.
        """
        parts, bad = skipped_positions.take() if skipped_positions is not None else ([], [])
        rows = self._done
        columns = {name: column[:rows] for name, column in self._columns.items()}
        return Produced(
            finished(columns, BatchRows(self.op, self._item, self._rows)),
            merge(self.parts + parts),
            rows,
            self._item.lease.epoch,
            partial=skipped_positions is None,
            slot=self.slot,
            bad=bad,
            # A batch that was not filled is cut, and lies otherwise than the layout says.
            layout=self._layout if rows == self.size else None,
            without_data=merge(parts),
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


class _RowsInLine(NamedTuple):
    """Rows of an entry that wait for their places in batches."""

    rows: KeptRows
    start: int
    stop: int


def chunk_bytes(chunk: list[Item] | _RowsInLine) -> int:
    """Return about how many bytes a chunk takes: its elements are like its first one."""
    if isinstance(chunk, _RowsInLine):
        return (chunk.stop - chunk.start) * (element_bytes(chunk.rows.first) + ITEM_BYTES)
    return items_bytes(chunk)


NEVER = -1
"""No chunk has this number: nothing comes behind an error."""


class BatchWriter:
    """Gives rows to elements: in the order of completion, or (strict) in the order of the source.

    Elements wait in one line for their rows.  A thread opens the next batch, which may have to wait for memory, only
    when it owes no row to another one: the memory comes from batches that are finished.
    """

    def __init__(
        self,
        size: int,
        op: str,
        slots: Slots,
        skipped_positions: SkippedPositions,
        strict: bool,
        ready: Callable[[Produced], None],
        on_error: OnError = "raise",
        made_by: str = "",
        raise_error: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`made_by`: the operator that the elements come from.

        `raise_error` is given, where order is kept, the error of the first chunk that failed, behind all batches that
        are full before it.
        """
        self._on_error, self._made_by = on_error, made_by or op
        self._holds_objects: bool | None = None
        """Whether elements have columns that are pickled on their way; None: not known yet."""
        self.size = size
        """Rows of a batch."""
        self._op, self._slots, self._skipped_positions = op, slots, skipped_positions
        self.strict, self._ready, self._raise = strict, ready, raise_error
        self._open: OpenBatch | None = None
        self._claim_lock = threading.Lock()
        """Guards the line, what came too early for it, and the open batch with its place in the sequence."""
        self._line: deque[list[Item] | _RowsInLine] = deque()
        self._early: dict[int, tuple[list[Item] | _RowsInLine, int]] = {}
        """Chunks that wait for an earlier one, and about how many bytes each takes, by number."""
        self._next = 0
        self._errors: dict[int, BaseException] = {}
        """Those of chunks, by number."""
        self._due: BaseException | None = None
        """The one to raise when the batches before it are handed on."""
        self._finishing = threading.Lock()
        """Guards the beginning of the sequence: batches are handed on one after the other."""
        self._sequence: deque[OpenBatch] = deque()
        self._left = False

    def leave(self) -> None:
        """Begin no other batch: nobody takes it.  A thread that waits for memory may hold the lock."""
        self._left = True

    @property
    def failed(self) -> bool:
        """Whether a chunk has failed, so that nothing behind it is wanted."""
        return bool(self._errors)

    def place(self, number: int, items: list[Item], error: BaseException | None = None) -> int:
        """Write the outputs of chunk `number`, and of others in line, into batches.

        `error`: what ended the chunk, where order is kept.  Returns how many bytes more wait for an earlier chunk: less
        than none, if it is one that others waited for.
        """
        if self._holds_objects is None and items:
            self._holds_objects = not all(map(is_columnar, items[0].value.values()))
        if self._holds_objects:
            items = with_arrays(items)
            items, error = self._sendable_ones(items, error)
        if error is not None:
            with self._claim_lock:
                self._errors[number] = error
        return self._place(number, items)

    def _sendable_ones(self, items: list[Item], error: BaseException | None) -> tuple[list[Item], BaseException | None]:
        """Return what can be sent; where order is kept, up to an item that cannot, and the error."""
        plain, kept = PLAIN_OR_NUMBERS.issuperset, []
        try:
            for item in items:
                if plain(map(type, item.value.values())) or self._can_send(item):
                    kept.append(item)
        except OpError as cannot:
            if not self.strict:
                raise
            error = cannot
        return kept, error

    def place_rows(self, number: int, rows: KeptRows, start: int, stop: int) -> int:
        """Write rows of an entry as chunk `number`, as `place` does."""
        if not self.strict and rows.plain:
            # What stands in line waits for the rest, and keeps the slot of the open batch: there is always one more.
            while stop - start >= self.size:
                self._ready(self._whole(rows, start))
                start += self.size
        return self._place(number, _RowsInLine(rows, start, stop) if start < stop else [])

    def _whole(self, rows: KeptRows, start: int) -> Produced:
        """Return a batch of rows of one entry: nobody else has to do with it, so it takes few steps."""
        size, layout = self.size, rows.layout(self.size)
        slot = self._slots.acquire(layout.nbytes) if layout.nbytes else None
        memory = slot.buffer if slot else b""
        columns = {}
        for name, place in layout.places.items():
            assert place is not None
            columns[name] = into = place.view(memory)
            copy_into(into, rows.column(name, start, start + size))
        parts = rows.parts(start, start + size)
        # `waits` is asked without the lock: what is added meanwhile goes with the next batch.
        waiting, bad = self._skipped_positions.take() if self._skipped_positions.waits else ([], [])
        return Produced(
            columns,
            merge(parts + waiting),
            size,
            rows.lease.epoch,
            slot=slot,
            bad=bad,
            layout=layout,
            without_data=merge(waiting),
        )

    def _place(self, number: int, chunk: list[Item] | _RowsInLine) -> int:
        # Weighed outside of the lock. If the chunk's turn comes meanwhile, `_line_up` takes its bytes off again.
        nbytes = chunk_bytes(chunk) if self.strict and number != self._next else 0
        with self._claim_lock:
            waiting = self._line_up(number, chunk, nbytes)
        # Claimed rows are written before the next claim: who waits for memory there owes no batch a row.
        while claim := self._claim():
            batch, first, claimed = claim
            if batch.write(first, claimed) if isinstance(claimed, list) else batch.write_run(first, *claimed):
                self._finish(batch)
        if self._due is not None:
            self._raise_if_due()
        return waiting

    def _raise_if_due(self) -> None:
        """Raise the error that is due if all batches that are full before it are handed on."""
        # Both: neither may a full batch before the error be on its way, nor elements before it stand in line.
        with self._finishing, self._claim_lock:
            full = bool(self._sequence) and self._sequence[0].claimed == self.size
            error = self._due
            if error is None or self._line or full:
                return
            self._due = None
        assert self._raise is not None
        self._raise(error)

    def _can_send(self, item: Item) -> bool:
        try:
            check_serializable(item, self._made_by)
        except OpError as error:
            apply_error_policy(item, error, self._on_error, self._skipped_positions)
            return False
        return True

    def _line_up(self, number: int, chunk: list[Item] | _RowsInLine, nbytes: int) -> int:
        """Put a chunk in line, with those that waited for it; the caller holds the lock.

        Returns how many bytes more wait for an earlier chunk.
        """
        if not self.strict:
            self._append(chunk)
            return 0
        self._early[number] = chunk, nbytes
        waiting = nbytes
        while self._next in self._early:
            due, due_bytes = self._early.pop(self._next)
            self._append(due)
            waiting -= due_bytes
            if self._next in self._errors:
                self._due, self._next = self._errors[self._next], NEVER
                break
            self._next += 1
        return waiting

    def _append(self, chunk: list[Item] | _RowsInLine) -> None:
        """Put a chunk last in line, in pieces where it is long: what a batch leaves of one is copied."""
        if isinstance(chunk, list):
            self._line.extend(chunk[at : at + MOST_IN_PIECE] for at in range(0, len(chunk), MOST_IN_PIECE))
        else:
            self._line.append(chunk)

    def _claim(self) -> tuple[OpenBatch, int, list[Item] | _RowsInLine] | None:
        """Take as many elements from the line as the open batch has room for, and as are of one kind."""
        with self._claim_lock:
            if not self._line or self._left:
                return None
            head, batch = self._line[0], self._open
            if batch is None or batch.claimed == self.size:
                batch = self._open = self._opened(head)
                if self.strict:
                    self._sequence.append(batch)
            first, room = batch.claimed, self.size - batch.claimed
            if isinstance(head, _RowsInLine):
                stop = min(head.stop, head.start + room)
                batch.claimed += stop - head.start
                if stop < head.stop:
                    self._line[0] = _RowsInLine(head.rows, stop, head.stop)
                else:
                    self._line.popleft()
                return batch, first, _RowsInLine(head.rows, head.start, stop)
            claimed = self._items_in_line(room)
            batch.claimed += len(claimed)
            return batch, first, claimed

    def _opened(self, head: list[Item] | _RowsInLine) -> OpenBatch:
        """Return a new batch that begins with what stands first in line; the caller holds the lock."""
        if isinstance(head, list):
            return OpenBatch(head[0], self.size, self._op, self._slots)
        layout = head.rows.layout(self.size)
        return OpenBatch(head.rows.named(head.start), self.size, self._op, self._slots, layout)

    def _items_in_line(self, most: int) -> list[Item]:
        """Take items from the beginning of the line, up to rows of an entry; the caller holds the lock."""
        taken: list[Item] = []
        while len(taken) < most and self._line and isinstance(chunk := self._line[0], list):
            room = most - len(taken)
            taken += chunk[:room]
            if len(chunk) > room:
                self._line[0] = chunk[room:]
            else:
                self._line.popleft()
        return taken

    def _finish(self, batch: OpenBatch) -> None:
        """Hand on a complete batch; with strict order, only after those before it."""
        if not self.strict:
            self._ready(batch.finish(self._skipped_positions))
            return
        with self._finishing:
            while self._sequence and self._sequence[0].complete:
                # Handed on under the lock: two threads could else exchange two batches.
                self._ready(self._sequence.popleft().finish(self._skipped_positions))

    def rest(self) -> Produced | None:
        """Return the batch that was not filled, once all elements are placed."""
        batch = self._open
        if batch is None or batch.claimed == self.size:
            return None
        return batch.finish(None)
