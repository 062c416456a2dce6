"""Copies out of workers' slots: nothing is overwritten, given up or unmapped while a device may read it."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pecan_ray.integrations.pinned_slots import PinnedSlots
from pecan_ray.transport.ring import RingReader, RingSlot, RingSlots, mapped_slot
from tests.ray.waiting import until

BYTES = 8192


def address_of(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass(eq=False)
class DelayedCopy:
    """A copy by DMA: memory is read when the test says so, and must hold then what it held at the beginning."""

    reads: list[tuple[int, bytes]] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def finish(self) -> None:
        for address, expected in self.reads:
            assert ctypes.string_at(address, len(expected)) == expected, "a slot was reused before its copy was done"
        self.done.set()


class RecordedDevice:
    """`DeviceCalls` of a device that delays copies until it is told, and refuses what CUDA refuses."""

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal, self.fails = refusal, False
        self.registered: dict[int, int] = {}
        self.asked: list[int] = []
        self.copies: list[DelayedCopy] = []
        self.broken: list[str] = []

    def register(self, address: int, nbytes: int) -> str | None:
        self.asked.append(address)
        if any(address < at + size and at < address + nbytes for at, size in self.registered.items()):
            return "already registered"
        if self.refusal is None:
            self.registered[address] = nbytes
        return self.refusal

    def unregister(self, address: int) -> None:
        nbytes = self.registered.pop(address)
        reads = [at for copy in self.copies if not copy.done.is_set() for at, _ in copy.reads]
        if any(address <= at < address + nbytes for at in reads):
            self.broken.append("pages were unlocked under a copy")

    def copy(self, tensors: Any, is_registered: Callable[[int], bool]) -> Any:
        if self.fails:
            raise MemoryError("the device is full")
        self.copies.append(copy := DelayedCopy())
        for array in tensors.values():
            at, data = address_of(array), array.tobytes()
            if is_registered(at):
                assert any(begin <= at and at + len(data) <= begin + size for begin, size in self.registered.items())
                copy.reads.append((at, data))
        if not copy.reads:
            copy.done.set()  # out of pinned copies, which belong to the runtime
        return {name: array.copy() for name, array in tensors.items()}, copy

    def wait(self, event: DelayedCopy | None) -> None:
        for copy in self.copies if event is None else [event]:
            assert copy.done.wait(60)

    def hand_over(self, tensors: Any, event: Any) -> None:
        raise AssertionError("tensors are handed to a stream of torch, which is not here")


class OneWorker:
    """A worker's slots and their reader, both in this process."""

    def __init__(self) -> None:
        self.ring, self.reader = RingSlots(1 << 20), RingReader()

    def batch(self, fill: int, nbytes: int = BYTES) -> tuple[RingSlot, dict[str, Any]]:
        """Write a batch into a slot, and read it."""
        slot = self.ring.acquire(nbytes)
        slot.buffer[:] = bytes([fill]) * slot.size
        memory = self.reader.open(slot.address())
        assert memory is not None
        self.reader.taken(slot.address())
        return slot, {"x": np.ndarray((nbytes // 8, 4), np.uint8, memory, 64), "name": "a text"}

    def hears(self) -> None:
        """Wait until the worker has heard of all that was released before: its pipe keeps the order."""
        slot, columns = self.batch(0, 64)
        del columns
        until(lambda: slot.state == "free", "the pipe is not read")

    def copied(self, slots: PinnedSlots, fill: int, nbytes: int = BYTES) -> RingSlot:
        """Copy a batch, of which nobody else keeps anything."""
        slot, columns = self.batch(fill, nbytes)
        moved, _ = slots.copy(columns, {"x": columns["x"]})
        assert (moved["x"] == fill).all()
        return slot


@pytest.fixture
def worker() -> Iterator[OneWorker]:
    worker = OneWorker()
    yield worker
    worker.ring.close()


def free_again(slot: RingSlot) -> None:
    until(lambda: slot.state == "free", "a slot is not given back")


def registered(worker: OneWorker, device: RecordedDevice, slots: PinnedSlots) -> RingSlot:
    slot = worker.copied(slots, 1)
    free_again(slot)
    assert slot.size in device.registered.values()
    return slot


def test_a_slot_is_registered_once_and_given_back_when_its_copy_is_done_and_not_before(worker: OneWorker) -> None:
    slots = PinnedSlots(device := RecordedDevice())
    first = registered(worker, device, slots)
    assert not any(copy.reads for copy in device.copies), "its first batch was pinned"
    for fill in (2, 3):
        assert worker.copied(slots, fill) is first
        worker.hears()
        assert first.state == "taken", "its copy is not done"
        assert worker.batch(9)[0] is not first
        assert device.copies[-1].reads
        device.copies[-1].finish()
        free_again(first)
    device.fails = True
    with pytest.raises(MemoryError):
        worker.copied(slots, 4)
    free_again(first)
    device.fails = False
    assert worker.copied(slots, 5) is first
    threading.Timer(0.05, device.copies[-1].finish).start()
    slots.close()
    assert len(device.asked) == 1
    assert device.copies[-1].done.is_set() and device.registered == {} and device.broken == []
    assert "pecan-dma" not in [thread.name for thread in threading.enumerate()]


def test_where_registration_is_refused_batches_are_pinned_and_the_job_is_told_once(worker: OneWorker) -> None:
    slots, notes = PinnedSlots(device := RecordedDevice("error 2: out of memory")), list[str]()
    slots.note = notes.append
    for fill in (1, 2, 3):
        free_again(worker.copied(slots, fill))
    slots.close()
    assert len(device.asked) == len(notes) == 1 and "error 2: out of memory" in notes[0] and "ulimit -l" in notes[0]
    assert not any(copy.reads for copy in device.copies)


def test_a_slot_that_lies_where_one_was_given_up_is_registered_anew(worker: OneWorker) -> None:
    slots = PinnedSlots(device := RecordedDevice())
    given_up = registered(worker, device, slots)
    for nbytes in (20 * BYTES, 2 * BYTES):  # sizes that others do not fit: the worker gives up what is free
        other = worker.copied(slots, 4, nbytes)
        free_again(other)
        assert other.number != given_up.number and other.offset == given_up.offset
        assert list(device.registered.values()) == [other.size], "the device would read pages that were given up"
    slots.close()
    assert device.broken == []


def test_the_memory_of_a_worker_that_is_gone_is_unregistered_before_it_is_unmapped(worker: OneWorker) -> None:
    slots = PinnedSlots(device := RecordedDevice())
    pair = [worker.batch(fill) for fill in (1, 2)]
    for round in range(2):  # pinned first, and then from where they lie
        for _, columns in pair:
            slots.copy(columns, {"x": columns["x"], "elsewhere": np.zeros(2)})
        until(lambda: len(device.registered) == 2, "a slot is not registered")
        assert [len(copy.reads) for copy in device.copies[2 * round :]] == [round, round]
    found = mapped_slot(pair[0][1]["x"][3:])
    assert found is not None and found.number == pair[0][0].number and mapped_slot(np.zeros(3)) is None
    file = weakref.ref(found.file)
    del found, columns, pair
    worker.reader.forget(worker.ring.token)
    device.copies[2].finish()
    until(lambda: len(device.registered) == 1, "the memory of a worker that is gone stays locked")
    assert file() is not None, "a copy is under way"
    device.copies[3].finish()
    until(lambda: file() is None, "the memory of a worker that is gone stays mapped")
    slots.close()
    assert device.broken == [] and device.registered == {}
