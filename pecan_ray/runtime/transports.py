"""How a finished batch gets from a worker to a trainer: by shared memory on one node, by Ray's object store else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pecan_ray.engines.contract import BadElement, Produced, Spans
from pecan_ray.runtime.ring import RingReader, RingSlot, SlotAddress, ring_supported

Transport = Literal["ring", "object_store"]


@dataclass(frozen=True)
class Place:
    """Where a column lies in a slot."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Message:
    """A batch under way: either where its columns lie in shared memory, or the columns themselves."""

    columns: dict[str, Any]
    """A `Place` for each column in the slot; other columns by value."""
    spans: Spans
    rows: int
    epoch: int
    address: SlotAddress | None = None
    bad: list[BadElement] = field(default_factory=list)


def choose_transport(writer_node: str, reader_node: str, sees_process: bool) -> tuple[Transport, str]:
    """Return the fastest way between two nodes, and why it was chosen.

    `sees_process`: whether the reader may open the writer's files; it may not from another container.
    """
    if writer_node != reader_node:
        return "object_store", "worker and trainer are on different nodes"
    supported, reason = ring_supported()
    if not supported:
        return "object_store", f"shared memory is not available: {reason}"
    if not sees_process:
        return "object_store", "the trainer may not open the worker's memory files (another container or user?)"
    return "ring", "worker and trainer share a node"


def encode_ring(produced: Produced) -> Message:
    """Describe a batch that lies in a slot; columns outside of it travel by value."""
    slot = produced.slot
    if not isinstance(slot, RingSlot):
        return encode_store(produced)
    base = _address(np.frombuffer(slot.map, np.uint8))
    columns: dict[str, Any] = {}
    for name, column in produced.columns.items():
        columns[name] = column
        if isinstance(column, np.ndarray) and column.flags.c_contiguous and not column.dtype.hasobject:
            offset = _address(column) - base
            if offset >= 0 and offset + column.nbytes <= slot.size:
                columns[name] = Place(offset, column.dtype, column.shape)
    return Message(columns, produced.spans, produced.rows, produced.epoch, slot.address(), produced.bad)


def encode_store(produced: Produced) -> Message:
    """Wrap a batch by value: Ray copies its arrays into the object store."""
    return Message(produced.columns, produced.spans, produced.rows, produced.epoch, None, produced.bad)


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


class BatchReader:
    """Opens messages on the trainer's side."""

    def __init__(self) -> None:
        self._ring = RingReader()

    def open(self, message: Message) -> dict[str, Any] | None:
        """Return a batch's columns without a copy, or None if its writer is gone and it was not mapped yet.

        Columns in shared memory are writable and belong to the holder until the last view is gone; those from the
        object store are read-only.
        """
        if message.address is None:
            return message.columns
        memory = self._ring.open(message.address)
        if memory is None:
            return None
        return {
            name: _view(memory, column) if isinstance(column, Place) else column
            for name, column in message.columns.items()
        }

    def taken(self, message: Message) -> None:
        """Note that the trainer has a batch now: the worker may fill other memory."""
        if message.address is not None:
            self._ring.taken(message.address)

    def forget(self, token: str) -> None:
        """Drop what is kept open for a worker that is gone."""
        self._ring.forget(token)


def _view(memory: np.ndarray[Any, np.dtype[np.uint8]], place: Place) -> np.ndarray[Any, Any]:
    size = place.dtype.itemsize * int(np.prod(place.shape, dtype=np.int64))
    return memory[place.offset : place.offset + size].view(place.dtype).reshape(place.shape)
