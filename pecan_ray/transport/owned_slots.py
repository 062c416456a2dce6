"""A ring's slots for engines, given back when nobody refers to them: a stretch that is left may own any number.

A batch that is small takes no slot of the ring: its bytes travel in its message.

Threads that are still at work on such a stretch may write into its slots.  So no slot is given back while one of them
has it, and whoever was the last one gives it back by forgetting it.
"""

from __future__ import annotations

import contextlib

from pecan_ray.transport.ring import RingSlot, RingSlots

# Decision 236: to copy so much is cheaper than a slot, which takes a look-up, two records and a thread that reads them.
INLINE_BYTES = 4096
"""Batches of so many bytes travel in their messages."""


class OwnedSlot:
    """A slot that belongs to whoever refers to this, until it is handed on."""

    def __init__(self, slot: RingSlot) -> None:
        self._slot: RingSlot | None = slot
        self._memory = slot.buffer

    @property
    def buffer(self) -> memoryview:
        """The writable bytes."""
        return self._memory

    def release(self) -> None:
        """Give the memory back; what was written is lost."""
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()

    def detach_slot(self) -> RingSlot | None:
        """Return the slot, which others give back from now on."""
        slot, self._slot = self._slot, None
        return slot

    def __del__(self) -> None:
        if self._slot is not None:
            with contextlib.suppress(OSError):  # the ring has ended meanwhile
                self._slot.forgotten()


class InlineSlot:
    """Memory of a small batch, whose bytes travel in its message."""

    def __init__(self, nbytes: int) -> None:
        self.memory = bytearray(nbytes)

    @property
    def buffer(self) -> memoryview:
        """The writable bytes."""
        return memoryview(self.memory)

    def release(self) -> None:
        """Do nothing: the garbage collector does it."""


class OwnedSlots:
    """Where a worker's engine gets memory for batches."""

    def __init__(self, ring: RingSlots) -> None:
        self._ring = ring

    def acquire(self, nbytes: int) -> OwnedSlot | InlineSlot:
        """Return a slot of at least `nbytes` bytes, waiting while too much is in flight."""
        # Not bounded here: as batches of strings they are, by the engine's read-ahead, the outbox and the trainer's
        # queue.
        if nbytes <= INLINE_BYTES:
            return InlineSlot(nbytes)
        return OwnedSlot(self._ring.acquire(nbytes))
