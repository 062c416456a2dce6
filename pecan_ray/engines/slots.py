"""Slots in ordinary memory, for runs inside one process."""

from __future__ import annotations


class HeapSlot:
    """A fresh piece of memory, given back to Python when nobody refers to it."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = memoryview(bytearray(nbytes))

    def release(self) -> None:
        """Do nothing: the garbage collector does it."""


class HeapSlots:
    """Hands out fresh memory without a bound."""

    def acquire(self, nbytes: int) -> HeapSlot:
        """Return a new slot of `nbytes`."""
        return HeapSlot(nbytes)
