"""Filling batches from many threads: each thread writes its elements straight into their rows of a slot."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pecan_ray.engines.contract import Produced, Slot, Slots, is_columnar
from pecan_ray.engines.python.items import Item, Loose, Part, merge
from pecan_ray.engines.python.stack import check_columns, check_is_object, checked_array, numbers_of_one_type
from pecan_ray.engines.slots import lay_out


class OpenBatch:
    """A batch whose rows are being written; its layout is that of its first element."""

    def __init__(self, item: Item, size: int, op: str, slots: Slots) -> None:
        self.size, self.op, self.claimed = size, op, 0
        self.parts: list[Part] = []
        self.first = item.where()
        self.complete = False
        self._example = item.value
        self._epoch = item.lease.epoch
        self._done = 0
        self._lock = threading.Lock()
        plain = {name: np.asarray(value) for name, value in item.value.items() if is_columnar(value)}
        offsets, total = lay_out([size * array.nbytes for array in plain.values()])
        self.slot: Slot | None = slots.acquire(total) if total else None
        memory = np.frombuffer(self.slot.buffer, np.uint8) if self.slot else np.empty(0, np.uint8)
        places = dict(zip(plain, offsets, strict=True))
        self._columns: dict[str, np.ndarray[Any, Any]] = {}
        for name in item.value:
            if name not in plain:
                self._columns[name] = np.empty(size, object)
                continue
            array = plain[name]
            piece = memory[places[name] : places[name] + size * array.nbytes]
            self._columns[name] = piece.view(array.dtype).reshape(size, *array.shape)

    def write(self, first: int, items: list[Item]) -> bool:
        """Write elements into rows from `first` on; True if the batch is complete with them."""
        for item in items:
            check_columns(item, self._columns.keys(), self.first, self.op)
        for name, column in self._columns.items():
            rows = slice(first, first + len(items))
            numbers = numbers_of_one_type(items, name, column) if len(items) > 1 else None
            if numbers is not None:
                column[rows] = numbers
            else:
                self._write_each(name, column[rows], items)
        with self._lock:
            self._done += len(items)
            for item in items:
                self.parts.extend(item.parts)
            self.complete = self._done == self.size
            return self.complete

    def _write_each(self, name: str, rows: np.ndarray[Any, Any], items: list[Item]) -> None:
        """Write one column, element by element."""
        for row, item in enumerate(items):
            value = item.value[name]
            if rows.dtype == object:
                check_is_object(name, value, self._example[name], item, self.first, self.op)
                rows[row] = value
            else:
                rows[row] = checked_array(name, value, rows.shape[1:], rows.dtype, item, self.first, self.op)

    def finish(self, loose: Loose, partial: bool = False) -> Produced:
        """Return the batch, cut to the rows that were written."""
        parts, bad = loose.take()
        rows = self._done
        return Produced(
            {name: column[:rows] for name, column in self._columns.items()},
            merge(self.parts + parts),
            rows,
            self._epoch,
            partial=partial,
            slot=self.slot,
            bad=bad,
        )


class Filler:
    """Gives rows to elements: in the order of completion, or (strict) in the order of the source.

    Elements wait in one line for their rows.  A thread opens the next batch, which may have to wait for memory, only
    when it owes no row to another one: the memory comes from batches that are finished.
    """

    def __init__(
        self, size: int, op: str, slots: Slots, loose: Loose, strict: bool, ready: Callable[[Produced], None]
    ) -> None:
        self._size, self._op, self._slots, self._loose = size, op, slots, loose
        self._strict, self._ready = strict, ready
        self._open: OpenBatch | None = None
        self._claiming = threading.Lock()
        self._line: deque[Item] = deque()
        self._early: dict[int, list[Item]] = {}
        self._next = 0
        self._finishing = threading.Lock()
        self._sequence: deque[OpenBatch] = deque()

    def place(self, number: int, items: list[Item]) -> int:
        """Write the outputs of chunk `number`, and of others in line, into batches.

        Returns how many chunks have come into line: with strict order none while an earlier one is missing.
        """
        with self._claiming:
            chunks = self._line_up(number, items)
        while claim := self._claim():
            batch, first, claimed = claim
            if batch.write(first, claimed):
                self._finish(batch)
        return chunks

    def _line_up(self, number: int, items: list[Item]) -> int:
        if not self._strict:
            self._line.extend(items)
            return 1
        self._early[number] = items
        before = self._next
        while self._next in self._early:
            self._line.extend(self._early.pop(self._next))
            self._next += 1
        return self._next - before

    def _claim(self) -> tuple[OpenBatch, int, list[Item]] | None:
        """Take as many elements from the line as the open batch has room for."""
        with self._claiming:
            if not self._line:
                return None
            batch = self._open
            if batch is None or batch.claimed == self._size:
                batch = self._open = OpenBatch(self._line[0], self._size, self._op, self._slots)
                if self._strict:
                    self._sequence.append(batch)
            first = batch.claimed
            batch.claimed = min(self._size, first + len(self._line))
            return batch, first, [self._line.popleft() for _ in range(first, batch.claimed)]

    def _finish(self, batch: OpenBatch) -> None:
        """Hand on a complete batch; with strict order, only after those before it."""
        if not self._strict:
            self._ready(batch.finish(self._loose))
            return
        with self._finishing:
            while self._sequence and self._sequence[0].complete:
                self._ready(self._sequence.popleft().finish(self._loose))

    def rest(self) -> Produced | None:
        """Return the batch that was not filled, once all elements are placed."""
        batch = self._open
        if batch is None or batch.claimed == self._size:
            return None
        return batch.finish(self._loose, partial=True)
