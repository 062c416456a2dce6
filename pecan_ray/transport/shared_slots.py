"""Slots that one process lends to many: each maps them read-only and says when its last view is gone.

A batch that a worker has written into its ring stays there: the lender opens that memory file once more, for reading,
and lends what is its own, so that readers need not care who comes and goes.  Columns that are no arrays of numbers are
told with it, if they are small.  What did not come in a slot is copied into one of the lender's.  A slot is free again
when the lender and all readers have let go of it.  What has to wait long for a reader can be moved to a file on disk,
which readers map in the same way.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from pecan_ray.by_value import dumps
from pecan_ray.engines.contract import SpansByKey
from pecan_ray.engines.layout import ColumnPlace, Layout
from pecan_ray.engines.nested_columns import restore_arrays
from pecan_ray.transport.messages import Message
from pecan_ray.transport.ring import ALIGNMENT, LastView, MemoryFile, ReleasePipe, RingSlots, SlotAddress, last_view

MOST_TOLD_BYTES = 16 << 10
"""Columns that do not lie in a worker's slot are told of with the batch, to each reader, if they take no more."""


@dataclass(frozen=True)
class BatchDescriptor:
    """What readers are told of a batch."""

    number: int
    """The number by which they say that they have let go of it."""
    worker: str
    epoch: int
    rows: int
    spans: SpansByKey
    layout: Layout
    """Of the columns; those without a place are pickled together."""
    pickled: tuple[int, int] | bytes
    """These, or where in the memory they begin, and their bytes."""
    address: SlotAddress | None
    """None: the columns come by Ray's object store."""


class BatchHandle:
    """A batch that may be lent; its memory stays as long as this does."""

    def __init__(self, batch: BatchDescriptor, columns: dict[str, Any], nbytes: int, file: object = None) -> None:
        self.batch, self.columns, self.nbytes, self._file = batch, columns, nbytes, file


class _OpenedFile:
    """A worker's memory file, open here for reading, as long as anything in it is lent."""

    def __init__(self, file: MemoryFile) -> None:
        self._path, self._token = f"/proc/{file.pid}/fd/{file.fd}", file.token
        # The process's number, or the descriptor's, may be another one's by now.
        if not self.is_alive():
            raise ProcessLookupError(f"{self._path} is not a memory file of {file.token}")
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        # No pipe: readers let go to the lender, and not to the worker.
        self.address = replace(file, pid=os.getpid(), fd=fd, pipe_fd=-1)
        weakref.finalize(self, os.close, fd)

    def is_alive(self) -> bool:
        """Tell whether its writer does."""
        try:
            return self._token in os.readlink(self._path)
        except OSError:
            return False


def _place(column: Any) -> ColumnPlace | None:
    return column if isinstance(column, ColumnPlace) else None


class SlotOwner:
    """The lender's side, used by one thread."""

    def __init__(self, limit_bytes: int, disk_bytes: int = 0, folder: Path | None = None) -> None:
        """`folder`: for what is moved to disk."""
        self._own = RingSlots(limit_bytes)
        self._disk = None if folder is None else RingSlots(disk_bytes, folder)
        self._files: dict[tuple[str, int], _OpenedFile] = {}
        self._numbers = 0

    def make_batch_handle(self, message: Message, columns: dict[str, Any], worker: str) -> BatchHandle:
        """Return a batch as it can be lent; it came with a message."""
        self._numbers += 1
        # Decision 204: what its worker has left to be done was done here, and its slot holds the batch before that.
        if message.address is None or message.unfinished is not None:
            return self._make_copy(message, columns, worker)
        if (file := self._opened(message.address.file)) is None:
            return self._make_copy(message, columns, worker)
        layout = message.layout
        if layout is None:
            layout = Layout({name: _place(column) for name, column in message.columns.items()}, 0)
        outside = layout.outside(message.columns)
        told = dumps(outside) if outside else b""
        if len(told) > MOST_TOLD_BYTES:
            return self._make_copy(message, columns, worker)
        address = replace(message.address, file=file.address)
        return BatchHandle(self._batch(message, worker, layout, told, address), columns, address.size, file)

    def _batch(
        self, message: Message, worker: str, layout: Layout, pickled: tuple[int, int] | bytes, address: SlotAddress
    ) -> BatchDescriptor:
        return BatchDescriptor(
            self._numbers, worker, message.epoch, message.rows, message.spans, layout, pickled, address
        )

    def _opened(self, file: MemoryFile) -> _OpenedFile | None:
        key = file.token, file.number
        try:
            return self._files.get(key) or self._files.setdefault(key, _OpenedFile(file))
        except OSError:  # its writer has ended: what it wrote is still mapped, and can be copied
            return None

    def _make_copy(self, message: Message, columns: dict[str, Any], worker: str) -> BatchHandle:
        """Copy a batch into a slot: arrays as they are, other columns pickled behind them."""
        places: dict[str, ColumnPlace | None] = {}
        end, others = 0, {}
        for name, column in columns.items():
            if type(column) is not np.ndarray or column.dtype.hasobject:
                places[name], others[name] = None, column
                continue
            places[name] = ColumnPlace(end, column.dtype, column.shape)
            end += -(-column.nbytes // ALIGNMENT) * ALIGNMENT
        pickled = dumps(others) if others else b""
        slot = self._own.acquire(end + len(pickled))
        # Not in flight: the group's window bounds what is lent, and this ring must not.
        self._own.taken(slot.number)
        memory: Any = np.frombuffer(slot.buffer, np.uint8)
        for name, place in places.items():
            if place is not None:
                place.view(memory)[...] = columns[name]
        memory[end : end + len(pickled)] = np.frombuffer(pickled, np.uint8)
        where = (end, len(pickled)) if others else b""
        batch_handle = BatchHandle(
            self._batch(message, worker, Layout(places, end), where, slot.address()), columns, slot.size
        )
        # Not at the interpreter's end, where the memory goes with the process.
        weakref.finalize(batch_handle, slot.release).atexit = False
        return batch_handle

    def to_disk(self, batch_handle: BatchHandle) -> BatchHandle:
        """Return a loan of the same batch that lies on disk; raises OSError where that is full, or fails."""
        source = batch_handle.batch.address
        assert source is not None and self._disk is not None
        slot = self._disk.acquire(source.size)
        self._disk.taken(slot.number)
        memory = slot.buffer
        memory[: source.size] = os.pread(source.file.fd, source.size, source.offset)
        self._numbers += 1
        # A number of its own: readers may still hold the batch in memory, and let go of that one.
        batch = replace(batch_handle.batch, number=self._numbers, address=slot.address())
        views = restore_arrays(batch.layout.views(np.frombuffer(memory, np.uint8), _others(batch.pickled, memory)))
        moved = BatchHandle(batch, views, slot.size)
        weakref.finalize(moved, slot.release).atexit = False
        return moved

    def forget_ended(self) -> tuple[str, ...]:
        """Let go of the files of workers that have ended; return by which names readers know them."""
        ended = [key for key, file in self._files.items() if not file.is_alive()]
        for key in ended:
            del self._files[key]
        return tuple({token for token, _ in ended})

    def close(self) -> None:
        """Close what is the lender's own; batches that readers have mapped stay valid."""
        self._files.clear()
        self._own.close()
        if self._disk is not None:
            self._disk.close()


def _others(pickled: tuple[int, int] | bytes, memory: Any) -> dict[str, Any]:
    """Return the columns of a batch that have no place in its memory."""
    if not isinstance(pickled, bytes):
        begin, nbytes = pickled
        pickled = memory[begin : begin + nbytes]
    return cloudpickle.loads(pickled) if len(pickled) else {}


_held: list[LastView] = []
"""Of the batches that this process holds, also of a borrower that is gone: the pipe, which they keep open, tells the
lender that they are held."""


_holding = threading.Lock()
"""Guards them: several readers of a process may run in threads of their own."""


def _hold(*views: LastView) -> None:
    """Add some, and drop those that have told already."""
    with _holding:
        _held[:] = [*(view for view in _held if view() is not None), *views]


class SlotBorrower:
    """A reader's side: maps files once, read-only, and tells the lender when the views of a batch are gone."""

    def __init__(self, pid: int, release_fd: int) -> None:
        """`release_fd`: of the lender's pipe; raises OSError where the lender is gone."""
        self._pipe = ReleasePipe(f"/proc/{pid}/fd/{release_fd}")
        self._maps: dict[tuple[str, int], mmap.mmap] = {}

    def open(self, batch: BatchDescriptor) -> dict[str, Any]:
        """Return a batch's columns: read-only views, and copies of those that are no arrays of numbers.

        Raises OSError where the lender is gone.
        """
        assert batch.address is not None
        address = batch.address
        shared = self._maps.get((address.token, address.file.number)) or self._mapped(address.file)
        memory: Any = np.frombuffer(shared, np.uint8, address.size, address.offset)
        _hold(last_view(memory, self._pipe, batch.number))
        return restore_arrays(batch.layout.views(memory, _others(batch.pickled, memory)))

    def _mapped(self, file: MemoryFile) -> mmap.mmap:
        path = f"/proc/{file.pid}/fd/{file.fd}"
        if file.token not in os.readlink(path):
            raise ProcessLookupError(f"{path} is not a memory file of {file.token}")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            shared = self._maps[file.token, file.number] = mmap.mmap(fd, file.size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        return shared

    def forget(self, tokens: Iterable[str]) -> None:
        """Drop the mappings of workers that have ended; views of them stay valid."""
        gone = set(tokens)
        self._maps = {key: shared for key, shared in self._maps.items() if key[0] not in gone}

    def close(self) -> None:
        """Drop all mappings; views stay valid, and the last one of each batch is still told of."""
        self._maps.clear()
        _hold()
