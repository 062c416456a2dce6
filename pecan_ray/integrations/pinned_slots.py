"""Copies to a GPU straight out of the workers' slots: which slots the GPU may read, and how long they stay untouched.

A slot is registered with CUDA once, on a thread of its own; until then, and where CUDA refuses, a batch is pinned by a
copy, as batches are that lie elsewhere.  From a registered slot the GPU reads by DMA while the program goes on.  The
worker gets a slot back when the last view of it is gone, so a batch is held here until its copy is done.

Decision 186.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

import numpy as np

from pecan_ray.plan.splits import Element
from pecan_ray.transport.ring import MappedSlot, mapped_slot

logger = logging.getLogger("pecan_ray.client")

Tensors: TypeAlias = dict[str, Any]


class DeviceCalls(Protocol):
    """What copies to one device need of its runtime."""

    def register(self, address: int, nbytes: int) -> str | None:
        """Lock pages of this process for DMA; return None, or why that is refused."""
        ...

    def unregister(self, address: int) -> None:
        """Unlock pages that were registered from this address on."""
        ...

    def copy(self, tensors: Tensors, is_registered: Callable[[int], bool]) -> tuple[Tensors, Any]:
        """Begin to copy tensors to the device; return them there, and the event behind their copies.

        Args:
            tensors: On the CPU.
            is_registered: Tells of an address whether the device may read there; other tensors are pinned first.

        Raises:
            Exception: Whatever the runtime raises.  No copy is under way then.
        """
        ...

    def wait(self, event: Any | None) -> None:
        """Wait until the copies before an event are done; None: all copies."""
        ...

    def hand_over(self, tensors: Tensors, event: Any) -> None:
        """Let what the calling thread computes next wait for the copies, and keep the tensors' memory for it."""
        ...


@dataclass(eq=False)
class RegisteredSlot:
    """A slot that the device may read."""

    slot: MappedSlot
    """Keeps the memory mapped."""
    copies: set[HeldBatch] = field(default_factory=set)
    """Out of the slot, not known to be done."""
    is_registered: bool = True

    def holds(self, address: int) -> bool:
        """Tell whether an address lies in the slot."""
        return self.slot.address <= address < self.slot.address + self.slot.size


@dataclass(eq=False)
class HeldBatch:
    """A batch whose slot stays untouched: until its copy is done, or until the slot is registered."""

    columns: Element
    source: RegisteredSlot | MappedSlot
    event: Any = None
    """Behind the copy."""


class PinnedSlots:
    """Copies batches to a device, and remembers which slots it may read.  Any thread may call it."""

    def __init__(self, calls: DeviceCalls) -> None:
        self.note: Callable[[str], None] = logger.info
        """Takes a text for the job's report."""
        self._calls = calls
        self._lock = threading.Lock()
        """Guards which slots are registered, and their copies."""
        self._registered: dict[int, RegisteredSlot] = {}
        """By address; the thread alone changes it."""
        self._is_refused = False
        self._held: SimpleQueue[HeldBatch | None] = SimpleQueue()
        # Decision 186: a call that CUDA refuses leaves its error to the next kernel that its thread starts.
        # This thread starts none.
        self._thread = threading.Thread(target=self._work, name="pecan-dma", daemon=True)
        self._thread.start()

    def copy(self, columns: Element, tensors: Tensors) -> tuple[Tensors, Any]:
        """Begin to copy a batch to the device.

        Args:
            columns: The batch as it came.
            tensors: The batch as it is copied; tensors may share the memory of the columns.

        Returns:
            The tensors on the device, and the event behind their copies.
        """
        slot = next((found for array in _arrays(columns) if (found := mapped_slot(array))), None)
        source = None if slot is None else self._find(slot)
        if source is None:
            copied = self._calls.copy(tensors, lambda address: False)
            if slot is not None and not self._is_refused:
                self._held.put(HeldBatch(columns, slot))
            return copied
        # Held before the copy begins: a signal's handler may raise at any place behind it.
        held = HeldBatch(columns, source)
        with self._lock:
            source.copies.add(held)
            is_registered = source.is_registered
        try:
            moved, held.event = self._calls.copy(tensors, lambda address: is_registered and source.holds(address))
        except BaseException:
            source.copies.discard(held)
            raise
        self._held.put(held)
        return moved, held.event

    def end(self) -> None:
        """Let the thread end behind the copies that are under way; callable from a finalizer."""
        self._held.put(None)

    def close(self) -> None:
        """Wait for the copies that are under way, and unregister all slots."""
        self.end()
        self._thread.join()

    def _find(self, slot: MappedSlot) -> RegisteredSlot | None:
        found = self._registered.get(slot.address)
        if found is None or found.slot.number != slot.number or found.slot.file is not slot.file:
            return None
        return found

    def _work(self) -> None:
        # CUDA's errors stay: one that ends this thread, with all batches held, is raised by the loop's next call, too.
        while (held := self._held.get()) is not None:
            if isinstance(held.source, RegisteredSlot):
                self._calls.wait(held.event)
                held.source.copies.discard(held)
            else:
                self._register(held.source)
            del held  # while this waits the worker may have the slot
            self._unregister(lambda one: one.slot.file.is_dropped and not one.copies)
        self._calls.wait(None)
        self._unregister(lambda one: True)

    def _register(self, slot: MappedSlot) -> None:
        if self._is_refused or slot.file.is_dropped or self._find(slot) is not None:
            return
        # The worker has given up the slots that lay here: the device would read the pages that they had.
        self._unregister(lambda one: one.slot.overlaps(slot))
        refusal = self._calls.register(slot.address, slot.size)
        if refusal is None:
            self._registered[slot.address] = RegisteredSlot(slot)
            return
        self._is_refused = True
        self.note(
            f"batches are pinned by a copy: CUDA refuses to register the memory that workers write into ({refusal}). "
            "If it is the limit of locked memory, raise it: `ulimit -l unlimited`, in Docker `--ulimit memlock=-1`"
        )

    def _unregister(self, is_over: Callable[[RegisteredSlot], bool]) -> None:
        with self._lock:
            over = [one for one in self._registered.values() if is_over(one)]
            for one in over:
                one.is_registered = False
                del self._registered[one.slot.address]
        for one in over:
            self._calls.unregister(one.slot.address)


def _arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Return the arrays of a batch's columns."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _arrays(one)
    elif isinstance(value, tuple):
        for one in value:
            yield from _arrays(one)
