"""Filling batches from many threads: each thread writes its elements straight into their rows of a slot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pecan_ray.engines.contract import Produced, Slot, Slots, is_columnar
from pecan_ray.engines.python.items import Item, Loose, Part, merge
from pecan_ray.engines.python.stack import check_agrees
from pecan_ray.errors import BatchShapeError

ALIGNMENT = 64


def lay_out(sizes: list[int]) -> tuple[list[int], int]:
    """Return aligned offsets for columns of these sizes in bytes, and the total size."""
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, at


class OpenBatch:
    """A batch whose rows are being written; its layout is that of its first element."""

    def __init__(self, item: Item, size: int, op: str, slots: Slots) -> None:
        self.size, self.op, self.claimed = size, op, 0
        self.parts: list[Part] = []
        self.first = item.where()
        self._epoch = item.lease.epoch
        self._done = 0
        self._lock = threading.Lock()
        plain = {name: np.asarray(value) for name, value in item.value.items() if is_columnar(value)}
        offsets, total = lay_out([size * array.nbytes for array in plain.values()])
        self.slot: Slot | None = slots.acquire(total) if total else None
        memory = np.frombuffer(self.slot.buffer, np.uint8) if self.slot else np.empty(0, np.uint8)
        self._columns: dict[str, np.ndarray[Any, Any]] = {}
        for name in item.value:
            self._columns[name] = np.empty(size, object)
        for offset, (name, array) in zip(offsets, plain.items(), strict=True):
            piece = memory[offset : offset + size * array.nbytes]
            self._columns[name] = piece.view(array.dtype).reshape(size, *array.shape)

    def write(self, row: int, item: Item) -> bool:
        """Write an element into its row; True if the batch is complete with it."""
        if item.value.keys() != self._columns.keys():
            raise BatchShapeError(
                f"{self.op}: {item.where()} has the columns {sorted(item.value)}, but {self.first} has "
                f"{sorted(self._columns)}. Every element of a batch needs the same columns.",
                op=self.op,
                file=item.lease.split.path,
                element=item.element,
            )
        for name, value in item.value.items():
            column = self._columns[name]
            if column.dtype != object:
                array = np.asarray(value)
                check_agrees(name, array, column.shape[1:], column.dtype, item, self.first, self.op)
                column[row] = array
            else:
                column[row] = value
        with self._lock:
            self._done += 1
            self.parts.extend(item.parts)
            return self._done == self.size

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
    """Gives rows to elements: in the order of completion, or (strict) in the order of the source."""

    def __init__(
        self, size: int, op: str, slots: Slots, loose: Loose, strict: bool, ready: Callable[[Produced], None]
    ) -> None:
        self._size, self._op, self._slots, self._loose = size, op, slots, loose
        self._strict, self._ready = strict, ready
        self._open: OpenBatch | None = None
        self._claiming = threading.Lock()
        self._waiting: dict[int, list[Item]] = {}
        self._next = 0

    def place(self, number: int, items: list[Item]) -> None:
        """Write the outputs of chunk `number` into batches."""
        with self._claiming:
            if self._strict:
                self._waiting[number] = items
                items = []
                while self._next in self._waiting:
                    items += self._waiting.pop(self._next)
                    self._next += 1
            claims = [(*self._claim(item), item) for item in items]
        for batch, row, item in claims:
            if batch.write(row, item):
                self._ready(batch.finish(self._loose))

    def _claim(self, item: Item) -> tuple[OpenBatch, int]:
        if self._open is None or self._open.claimed == self._size:
            self._open = OpenBatch(item, self._size, self._op, self._slots)
        row = self._open.claimed
        self._open.claimed += 1
        return self._open, row

    def rest(self) -> Produced | None:
        """Return the batch that was not filled, once all elements are placed."""
        batch = self._open
        if batch is None or batch.claimed == self._size:
            return None
        return batch.finish(self._loose, partial=True)
