"""A ring's slots for engines, given back when nobody refers to them: a stretch that is left may own any number.

Threads that are still at work on such a stretch may write into its slots.  So no slot is given back while one of them
has it, and whoever was the last one gives it back by forgetting it.
"""

from __future__ import annotations

import contextlib

from pecan_ray.transport.ring import RingSlot, RingSlots


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


class OwnedSlots:
    """Where a worker's engine gets memory for batches."""

    def __init__(self, ring: RingSlots) -> None:
        self._ring = ring

    def acquire(self, nbytes: int) -> OwnedSlot:
        """Return a slot of at least `nbytes` bytes, waiting while too much is in flight."""
        return OwnedSlot(self._ring.acquire(nbytes))
