"""How columns lie in a slot, and slots in ordinary memory for runs inside one process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import numpy as np

from pecan_ray.engines.contract import Slot, Slots, is_plain
from pecan_ray.engines.layout import ColumnPlace, Layout
from pecan_ray.engines.stages import Recognized, ThreadStage

# Decision 55: processors copy a tenth as fast between memory that lies unfavourably within its pages.
ALIGNMENT = 64


def waiting_for_room(slots: Slots) -> dict[CodeType, Recognized]:
    """Return the function by which a stack shows that a batch waits for memory, that is for others to be taken."""
    acquire: Any = type(slots).acquire
    return {acquire.__code__: lambda _: ThreadStage("blocked")}


def lay_out(sizes: list[int]) -> tuple[list[int], int]:
    """Return aligned offsets for columns of these sizes in bytes, and the total size."""
    offsets, at = [], 0
    for size in sizes:
        offsets.append(at)
        at += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, at


def into_slot(columns: Mapping[str, Any], slots: Slots) -> tuple[dict[str, Any], Slot | None]:
    """Copy the arrays of a batch into a slot; return the columns with views of it, and the slot if one was needed."""
    placed = dict(columns)
    arrays = {
        name: column
        for name, column in columns.items()
        if isinstance(column, np.ndarray) and is_plain(column.dtype) and column.nbytes
    }
    if not arrays:
        return placed, None
    offsets, total = lay_out([array.nbytes for array in arrays.values()])
    slot = slots.acquire(total)
    memory = np.frombuffer(slot.buffer, np.uint8)
    for offset, (name, array) in zip(offsets, arrays.items(), strict=True):
        place = memory[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
        place[...] = array
        placed[name] = place
    return placed, slot


@functools.lru_cache(maxsize=256)
def layout_of(columns: tuple[tuple[str, np.dtype[Any] | None, tuple[int, ...]], ...]) -> Layout:
    """Return the layout of columns given by name, dtype (None: not in the slot) and shape."""
    found = {name: None if dtype is None else ColumnPlace(0, dtype, shape) for name, dtype, shape in columns}
    inside = {name: place for name, place in found.items() if place is not None}
    offsets, total = lay_out([place.nbytes for place in inside.values()])
    placed = {name: replace(place, offset=at) for (name, place), at in zip(inside.items(), offsets, strict=True)}
    return Layout({**found, **placed}, total)


class HeapSlot:
    """A fresh piece of memory, given back to Python when nobody refers to it."""

    def __init__(self, nbytes: int) -> None:
        # Some processors copy ten times more slowly to where is a few bytes ahead of the source, in its page.
        memory = bytearray(nbytes + ALIGNMENT)
        before = -np.frombuffer(memory, np.uint8).ctypes.data % ALIGNMENT
        self.buffer = memoryview(memory)[before : before + nbytes]

    def release(self) -> None:
        """Do nothing: the garbage collector does it."""


class HeapSlots:
    """Hands out fresh memory without a bound."""

    def acquire(self, nbytes: int) -> HeapSlot:
        """Return a new slot of `nbytes`."""
        return HeapSlot(nbytes)
