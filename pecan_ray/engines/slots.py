"""How columns lie in a slot, and slots in ordinary memory for runs inside one process."""

from __future__ import annotations

import functools
from collections.abc import Mapping
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
        at += _aligned(size)
    return offsets, at


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def into_slot(columns: Mapping[str, Any], slots: Slots) -> tuple[dict[str, Any], Slot | None, Layout | None]:
    """Copy the arrays of a batch into a slot.

    Returns the columns with views of it, the slot if one was needed, and how they lie in it.
    """
    layout = layout_of(tuple((name, *_kind(column)) for name, column in columns.items()))
    if not layout.nbytes:
        return dict(columns), None, None
    slot = slots.acquire(layout.nbytes)
    memory = slot.buffer
    placed: dict[str, Any] = {}
    for name, column in columns.items():
        place = layout.columns[name]
        placed[name] = column if place is None else place.view(memory)
        if place is not None:
            placed[name][...] = column
    return placed, slot, layout


def _kind(column: Any) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
    """Return dtype and shape of a column that lies in a slot; no dtype for others."""
    if isinstance(column, np.ndarray) and is_plain(column.dtype) and column.nbytes:
        return column.dtype, column.shape
    return None, ()


@functools.lru_cache(maxsize=256)
def layout_of(columns: tuple[tuple[str, np.dtype[Any] | None, tuple[int, ...]], ...]) -> Layout:
    """Return the layout of columns given by name, dtype (None: not in the slot) and shape."""
    places: dict[str, ColumnPlace | None] = {}
    end = 0
    for name, dtype, shape in columns:
        place = places[name] = None if dtype is None else ColumnPlace(end, dtype, shape)
        end += 0 if place is None else _aligned(place.nbytes)
    return Layout(places, end)


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
