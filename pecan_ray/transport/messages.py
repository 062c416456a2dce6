"""What is said about a finished batch on its way: the worker's side writes it, the trainer's side opens it."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.by_value import dumps
from pecan_ray.engines.contract import BadElement, Produced, SpansByKey, Unfinished
from pecan_ray.engines.layout import ColumnPlace, Layout
from pecan_ray.engines.nested_columns import restore_arrays
from pecan_ray.engines.python.deferral import Finisher
from pecan_ray.job.blocks import RowRange
from pecan_ray.transport.owned_slots import InlineSlot
from pecan_ray.transport.ring import RingReader, RingSlot, SlotAddress

logger = logging.getLogger("pecan_ray.client")

Memory: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Message:
    """A batch under way: either where its columns lie in memory, or the columns themselves."""

    columns: dict[str, Any]
    """A `ColumnPlace` for each column in the slot; other columns by value."""
    spans: SpansByKey
    rows: int
    epoch: int
    address: SlotAddress | None = None
    bad: list[BadElement] = field(default_factory=list)
    layout: Layout | None = None
    """Where the columns lie that are not in `columns`."""
    memory: bytearray | None = None
    """In which they lie, where a small batch travels in its message; None: in the slot at `address`, if there is one.
    """
    without_data: SpansByKey = field(default_factory=dict)
    """Of `spans`, what yields nothing."""
    row_range: RowRange | None = None
    """Which part of the epoch its rows are, where these come in order."""
    unfinished: Unfinished | None = None
    """What is to be done to it where it arrives."""


def placed(produced: Produced) -> tuple[dict[str, Any], Memory]:
    """Return a batch's columns, with a `ColumnPlace` for each that lies in its slot, and its slot's bytes."""
    if produced.slot is None:
        return dict(produced.columns), np.empty(0, np.uint8)
    # By addresses: a column that was made anew since lies outside of the slot, and travels by value.
    memory: Memory = np.frombuffer(produced.slot.buffer, np.uint8)
    base, end = _address(memory), 0
    columns: dict[str, Any] = {}
    for name, column in produced.columns.items():
        columns[name] = column
        # Others do not lie there in one piece, or are addresses of this process's objects.
        if isinstance(column, np.ndarray) and column.flags.c_contiguous and not column.dtype.hasobject:
            offset = _address(column) - base
            if offset >= 0 and offset + column.nbytes <= memory.size:
                columns[name] = ColumnPlace(offset, column.dtype, column.shape)
                end = max(end, offset + column.nbytes)
    return columns, memory[:end]


def describe_batch(
    produced: Produced,
    columns: dict[str, Any],
    address: SlotAddress | None = None,
    layout: Layout | None = None,
    memory: bytearray | None = None,
) -> Message:
    """Return what is said about a batch with these columns."""
    return Message(
        columns,
        produced.spans,
        produced.rows,
        produced.epoch,
        address,
        produced.bad,
        layout,
        memory,
        produced.without_data,
        produced.row_range,
        produced.unfinished,
    )


def encode_ring(produced: Produced) -> Message:
    """Describe a batch that lies in a slot; columns outside of it travel by value."""
    slot, layout = produced.slot, produced.layout
    if not isinstance(slot, (RingSlot, InlineSlot)):
        return encode_store(produced)
    columns = placed(produced)[0] if layout is None else layout.outside(produced.columns)
    if isinstance(slot, InlineSlot):
        return describe_batch(produced, columns, None, layout, slot.memory)
    return describe_batch(produced, columns, slot.address(), layout)


def pickled(messages: object) -> bytes:
    """Pickle messages, or what holds some; raises what pickling raises."""
    try:
        return pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
    # Values of classes that came with the pipeline: they travel with their classes, as Ray sends them.
    except (pickle.PicklingError, AttributeError, TypeError):
        return dumps(messages)


def encode_store(produced: Produced) -> Message:
    """Wrap a batch by value: Ray copies its arrays into the object store."""
    return describe_batch(produced, produced.columns)


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


class BatchReader:
    """Opens messages on the trainer's side."""

    def __init__(self, finisher: Finisher | None = None, note: Callable[[str], None] = logger.info) -> None:
        """`finisher`: does to a batch what its worker has left to the trainer; `note` is told what that is."""
        self._ring, self._finisher, self._note = RingReader(), finisher, note

    def open(self, message: Message) -> dict[str, Any] | None:
        """Return a batch's columns, or None if its writer is gone and it was not mapped yet.

        They are as they have travelled, without a copy.  Columns in shared memory, and those that a stream has brought,
        are writable and belong to the holder until the last view is gone; those from the object store are read-only.
        """
        if message.memory is None and message.address is None:
            return restore_arrays(message.columns)
        memory: Any = self._ring.open(message.address) if message.address is not None else message.memory
        if memory is None:
            return None
        if message.layout is not None:
            return restore_arrays(message.layout.views(memory, message.columns))
        return restore_arrays(views(message.columns, memory))

    def finish(self, message: Message, columns: dict[str, Any]) -> dict[str, Any]:
        """Return a batch's columns behind the operators that its worker has left to the trainer."""
        if message.unfinished is None:
            return columns
        assert self._finisher is not None, "a worker leaves operators to a reader that has no plan"
        return self._finisher.finish(message.unfinished, columns, self._note)

    def taken(self, message: Message) -> None:
        """Note that the trainer has a batch now: the worker may fill other memory."""
        if message.address is not None:
            self._ring.taken(message.address)

    def forget(self, token: str) -> None:
        """Drop what is kept open for a worker that is gone."""
        self._ring.forget(token)

    def close(self) -> None:
        """Drop what is kept open for all workers; batches that are held stay valid."""
        self._ring.close()
        self._note = logger.info  # what it was is a method of the client, which would stay in memory


def views(columns: dict[str, Any], memory: Memory) -> dict[str, Any]:
    """Return columns as views of the memory that they lie in; those by value as they are."""
    return {
        name: column.view(memory) if isinstance(column, ColumnPlace) else column for name, column in columns.items()
    }
