"""Shared memory that a worker writes batches into and a trainer on the same node maps: no copy, no name.

Slots are cut out of anonymous memory files (memfd), many out of one file, and the more files there are the larger new
ones are: a process may have 1,024 files open, or 256. The reader opens them through ``/proc/<pid>/fd``, so there is no
name to unlink and no crash can leak one. The reader says through a pipe of the writer, opened the same way, when the
trainer has *taken* a batch and when it has *released* it, that is when the last view of it was garbage-collected.

Decisions: docs/decisions/transport.md.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import operator
import os
import resource
import secrets
import struct
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pecan_ray.errors import ClusterError

PAGE = mmap.PAGESIZE
FILE_BYTES = 32 << 20
"""Size of the first memory files, unless a single slot is larger: pages that nobody has written take no memory."""
FILES_OF_A_SIZE = 2
"""After so many files the next ones are twice as large: 256 GiB take 26."""
MOST_DOUBLINGS = 15
"""The largest files have a TiB."""
LEAST_IN_FLIGHT = 2
"""Slots that may always be in flight, so that one huge batch cannot stop a worker."""
MOST_IN_FLIGHT = 2048
"""Slots, however small they are: each has records of its own at its writer and at its readers."""
RECORD = struct.Struct("=Iq")
# What a reader tells a writer about a slot.
TAKEN, RELEASED = 1, 2
# Decision 55: processors copy a tenth as fast between memory that lies unfavourably within its pages.
ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryFile:
    """Where another process finds a file with slots, and the pipe that is read by its writer."""

    pid: int
    token: str
    """Random name of the writer's memory files, so that a reused process id is not mistaken for its writer."""
    number: int
    fd: int
    pipe_fd: int
    size: int


@dataclass(frozen=True)
class SlotAddress:
    """Where another process finds a slot."""

    file: MemoryFile
    slot: int
    offset: int
    size: int

    @property
    def token(self) -> str:
        """The name of the slot's writer."""
        return self.file.token


class _CutFile:
    """A memory file, or one on disk, mapped by the writer, out of which slots are cut one after the other."""

    def __init__(self, token: str, number: int, size: int, pipe_fd: int, folder: Path | None) -> None:
        # Readers know the file by this name, which they find behind the link in /proc.
        fd = os.memfd_create(token, os.MFD_CLOEXEC) if folder is None else _open_temp_file(folder / f"{token}-{number}")
        try:
            os.ftruncate(fd, size)
            self.map = mmap.mmap(fd, size)  # which takes a descriptor of its own
        except BaseException:
            os.close(fd)
            raise
        self.address = MemoryFile(os.getpid(), token, number, fd, pipe_fd, size)
        self._end = self._slots = 0
        self._on_disk = folder is not None

    def has_room(self, size: int) -> bool:
        """Tell whether a slot of this size can be cut."""
        return self._end + size <= self.address.size

    def cut(self, size: int) -> int:
        """Return where a new slot begins; raises OSError where a disk has no room."""
        offset = self._end
        if self._on_disk:
            os.posix_fallocate(self.address.fd, offset, size)  # writing into a map kills where the disk is full
        self._end += size
        self._slots += 1
        return offset

    def free(self, offset: int, size: int) -> None:
        """Return a slot's memory to the system; behind the last one the file can be cut anew."""
        self.map.madvise(mmap.MADV_REMOVE, offset, size)
        self._slots -= 1
        if not self._slots:
            self._end = 0

    def close(self) -> None:
        """Close the file; the memory goes when the reader's mapping goes too."""
        os.close(self.address.fd)


def _open_temp_file(path: Path) -> int:
    """Return the descriptor of a new file that goes with its last user; its link in /proc still has the name."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.unlink(path)
    return fd


class RingSlot:
    """A piece of a memory file."""

    def __init__(self, ring: RingSlots, number: int, file: _CutFile, size: int) -> None:
        self.number, self.file, self.size = number, file, size
        self.offset = file.cut(size)
        self.state: Literal["free", "in flight", "taken"] = "free"
        self._ring = ring
        self._address = SlotAddress(file.address, number, self.offset, size)

    @property
    def buffer(self) -> memoryview:
        """The writable bytes."""
        return memoryview(self.file.map)[self.offset : self.offset + self.size]

    def release(self) -> None:
        """Give the slot back: nobody will read what was written."""
        self._ring.freed(self.number)

    def forgotten(self) -> None:
        """Give the slot back from wherever an object is dropped: no lock is taken."""
        # The collector may run this in a thread that holds the ring's lock: the pipe needs none.
        self._ring.on_release(self.number)

    def address(self) -> SlotAddress:
        """Return what a reader needs to map the slot."""
        return self._address


class RingSlots:
    """A worker's slots, reused: pages that were written once are not faulted in again.

    `acquire` blocks while more than `limit_bytes`, or `MOST_IN_FLIGHT` slots, are in flight: written or being written,
    and not yet taken by the trainer.  What the trainer has taken and still holds is the trainer's memory and does not
    count.
    """

    def __init__(self, limit_bytes: int, folder: Path | None = None) -> None:
        """`folder`: for files on disk instead of in memory; then `acquire` raises OSError where that has no room."""
        self.token = f"pecan-{secrets.token_hex(8)}"
        self._limit, self._folder = limit_bytes, folder
        self._files: dict[int, _CutFile] = {}
        self._slots: dict[int, RingSlot] = {}
        self._free: dict[int, list[RingSlot]] = {}
        """Free slots by size."""
        self._free_bytes = self._free_count = 0
        self._slots_in_flight = self._bytes_in_flight = 0
        self._created = 0
        self._changed = threading.Condition()
        """Guards all above and `_closed`, and is told of slots that become free."""
        self._closed = False
        self._read_fd, self.pipe_fd = os.pipe()
        threading.Thread(target=self._listen, name="pecan-ring", daemon=True).start()

    def acquire(self, nbytes: int) -> RingSlot:
        """Return a free slot of at least `nbytes`, waiting while too much is in flight."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_space(nbytes))
            if self._closed:
                raise ClusterError("the worker's memory for batches was closed while it was working")
            slot = self._free_slot(nbytes)
            if slot is None:
                # Decision 2: pages of a size that nobody asks for any more go back to the system.
                self._trim()
                slot = self._cut(-(-max(nbytes, 1) // PAGE) * PAGE)
            self._slots_in_flight += 1
            self._bytes_in_flight += slot.size
            slot.state = "in flight"
            return slot

    def _has_space(self, nbytes: int) -> bool:
        if self._slots_in_flight < LEAST_IN_FLIGHT:
            return True
        return self._slots_in_flight < MOST_IN_FLIGHT and self._bytes_in_flight + nbytes <= self._limit

    def _free_slot(self, nbytes: int) -> RingSlot | None:
        """Take out the smallest free slot that fits; sizes are few, for pages are rounded up and batches alike."""
        # Not a far larger one: a slot counts as in flight with all of its bytes.
        sizes = [size for size in self._free if nbytes <= size <= 4 * max(nbytes, PAGE)]
        if not sizes:
            return None
        return self._leave_free(min(sizes))

    def _leave_free(self, size: int) -> RingSlot:
        slots = self._free[size]
        slot = slots.pop()
        if not slots:
            del self._free[size]
        self._free_bytes -= size
        self._free_count -= 1
        return slot

    def _cut(self, size: int) -> RingSlot:
        """Make a slot, in a file that has room for it or a new one."""
        file = next((file for file in self._files.values() if file.has_room(size)), None)
        if file is None:
            file = self._new_file(size)
        slot = self._slots[self._created] = RingSlot(self, self._created, file, size)
        self._created += 1
        return slot

    def _new_file(self, size: int) -> _CutFile:
        number = len(self._files)
        grown = FILE_BYTES << min(number // FILES_OF_A_SIZE, MOST_DOUBLINGS)
        # A slot that has a file of its own leaves room for one that is a little larger, which may follow it.
        nbytes = grown if size <= grown else -(-(size + size // 2) // PAGE) * PAGE
        try:
            file = self._files[number] = _CutFile(self.token, number, nbytes, self.pipe_fd, self._folder)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            held = sum(slot.state == "taken" for slot in self._slots.values())
            raise ClusterError(
                f"a worker may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open and has them, "
                f"{number} of them with batches, of which the trainer holds {held}. Raise the limit (`ulimit -n`, "
                "before `ray start`), or hold fewer batches."
            ) from error
        return file

    def _trim(self) -> None:
        """Give up free slots of a size that is no longer asked for."""
        while self._free:
            self._free_memory(self._leave_free(next(iter(self._free))))

    def _free_memory(self, slot: RingSlot) -> None:
        del self._slots[slot.number]
        slot.file.free(slot.offset, slot.size)  # an empty file is cut anew: the reader has it mapped already

    def taken(self, number: int) -> None:
        """Note that a slot is in flight no longer, where this process hands it out itself."""
        with self._changed:
            self._set(number, "taken")
            self._changed.notify_all()

    def freed(self, number: int) -> None:
        """Make a slot free."""
        with self._changed:
            self._set(number, "free")
            self._changed.notify_all()

    def on_release(self, number: int) -> None:
        """Make a slot free, in the thread that hears of those that readers release."""
        if not self._closed:
            os.write(self.pipe_fd, RECORD.pack(RELEASED, number))

    def _set(self, number: int, state: Literal["free", "taken"]) -> None:
        slot = self._slots.get(number)
        # Records may be late: the slot may have been given back by others, or have gone with its memory.
        if slot is None or slot.state == state or (state == "taken" and slot.state != "in flight"):
            return
        if slot.state == "in flight":
            self._slots_in_flight -= 1
            self._bytes_in_flight -= slot.size
        slot.state = state
        if state == "free":
            self._free.setdefault(slot.size, []).append(slot)
            self._free_bytes += slot.size
            self._free_count += 1
            # Free slots keep their pages, so there are no more of them than may be in flight.
            if self._free_bytes > self._limit and self._free_count > LEAST_IN_FLIGHT:
                self._free_memory(self._leave_free(slot.size))

    def _listen(self) -> None:
        with os.fdopen(self._read_fd, "rb", buffering=0) as pipe:
            rest = b""
            while data := pipe.read(1 << 16):
                rest += data
                # A read may end within a record.
                whole = len(rest) - len(rest) % RECORD.size
                with self._changed:
                    for kind, number in RECORD.iter_unpack(rest[:whole]):
                        if kind == 0:
                            return
                        self._set(number, "taken" if kind == TAKEN else "free")
                    self._changed.notify_all()
                rest = rest[whole:]

    def close(self) -> None:
        """Wake whoever waits and close all files; batches that a reader has mapped stay valid."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._slots.clear()
            self._changed.notify_all()
        # The listener waits in a read: a record of no kind lets it go.
        os.write(self.pipe_fd, RECORD.pack(0, 0))
        os.close(self.pipe_fd)


class LastView(weakref.ref[Any]):
    """A reference to the block that the views of a slot share, which tells the writer when it is gone.

    That runs no Python: a signal that arrived in a finalizer, such as the SIGTERM or the Ctrl-C that is to end the
    program, would raise where exceptions are ignored, and be lost.
    """

    pipe: ReleasePipe
    say_released: Callable[[], int] = int
    """Nothing to say, before it is known what."""


_say_released: Callable[[Any], None] = operator.methodcaller("say_released")


def last_view(block: object, pipe: ReleasePipe, number: int) -> LastView:
    """Return what tells through a pipe, as long as it is kept itself, that the views of a block are gone."""
    view = LastView(block, _say_released)
    view.pipe, view.say_released = pipe, partial(os.write, pipe.fd, RECORD.pack(RELEASED, number))
    return view


class MappedFile:
    """A writer's memory file in the address space of a reader."""

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.is_dropped = False
        """The reader has let go of it: it is unmapped when the last reference to its memory goes."""


@dataclass(frozen=True, eq=False)
class MappedSlot:
    """Where a slot lies in this process.

    A slot keeps its pages as long as it has its number.  When the writer gives up a slot, its pages go back to the
    system, and another slot with other pages may lie at the same address later.
    """

    number: int
    address: int
    """Of its first byte."""
    size: int
    """Bytes: whole pages."""
    file: MappedFile

    def overlaps(self, other: MappedSlot) -> bool:
        """Tell whether the slots share addresses."""
        return self.address < other.address + other.size and other.address < self.address + self.size


def mapped_slot(array: np.ndarray[Any, Any]) -> MappedSlot | None:
    """Return the slot that an array is a view of; None if it lies elsewhere."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    found = getattr(base.obj, "slot", None) if isinstance(base, memoryview) else None
    return found if isinstance(found, MappedSlot) else None


class RingReader:
    """The trainer's side: maps files once, hands out views, and tells the writer when they are gone."""

    def __init__(self) -> None:
        self._maps: dict[tuple[str, int], MappedFile] = {}
        self._pipes: dict[str, ReleasePipe] = {}
        self._lock = threading.Lock()
        """Guards the maps and the pipes, so that none is made twice."""
        self._views: dict[tuple[str, int], LastView] = {}
        """The last view of each slot, by token and number."""

    def open(self, address: SlotAddress) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Return the bytes of a slot, or None if its writer is gone.

        When the last view of them is garbage-collected the writer gets its slot back.
        """
        with self._lock:
            shared = self._maps.get((address.token, address.file.number))
            if shared is None:
                shared = self._map(address.file)
                if shared is None:
                    return None
            pipe = self._pipes[address.token]
        # An object of its own for each slot, which all views keep alive: the map is that of many slots.
        block: Any = (ctypes.c_uint8 * address.size).from_buffer(shared.memory, address.offset)
        block.slot = MappedSlot(address.slot, ctypes.addressof(block), address.size, shared)
        # Kept, because a weak reference that is gone itself tells nobody.
        self._views[address.token, address.slot] = last_view(block, pipe, address.slot)
        views: Any = np.frombuffer(memoryview(block), np.uint8)
        return np.asarray(views)

    def _map(self, file: MemoryFile) -> MappedFile | None:
        base = f"/proc/{file.pid}/fd"
        try:
            # Decision 2: the system gives process ids out again, and this may be another process by now.
            if file.token not in os.readlink(f"{base}/{file.fd}"):
                return None
            if file.token not in self._pipes:
                self._pipes[file.token] = ReleasePipe(f"{base}/{file.pipe_fd}")
            # Writable, because a batch belongs to its trainer, and torch knows no read-only memory.
            fd = os.open(f"{base}/{file.fd}", os.O_RDWR)
        except (FileNotFoundError, ProcessLookupError):
            return None
        with os.fdopen(fd, "rb+", buffering=0) as opened:
            shared = MappedFile(mmap.mmap(opened.fileno(), file.size))
        self._maps[file.token, file.number] = shared
        return shared

    def taken(self, address: SlotAddress) -> None:
        """Tell the writer that a batch belongs to the trainer now and no longer counts as in flight."""
        pipe = self._pipes.get(address.token)
        if pipe is not None:
            os.write(pipe.fd, RECORD.pack(TAKEN, address.slot))

    def forget(self, token: str) -> None:
        """Drop the mappings of a writer that is gone; views of them stay valid."""
        with self._lock:
            for key in [key for key in self._maps if key[0] == token]:
                self._maps.pop(key).is_dropped = True
            # Of a copy, because `open` adds views without the lock.
            for slot in [slot for slot in self._views.copy() if slot[0] == token]:
                self._views.pop(slot, None)
            self._pipes.pop(token, None)

    def close(self) -> None:
        """Drop all mappings; views stay valid."""
        with self._lock:
            for file in self._maps.values():
                file.is_dropped = True
            self._maps.clear()
            self._views.clear()
            self._pipes.clear()


class ReleasePipe:
    """The way back to a writer, for whole records; closed when the reader and the last batch are done with it."""

    def __init__(self, path: str) -> None:
        # With an end to read from of its own, so that nothing fails where the writer is gone: it needs no record.
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        _pipes.add(self)
        # Not at the end of the interpreter, where batches that are still held say that they are released.
        weakref.finalize(self, os.close, self.fd).atexit = False


_pipes: weakref.WeakSet[ReleasePipe] = weakref.WeakSet()


def _let_go_of_pipes() -> None:
    """In a forked process batches are not ours: what is said about them there goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for pipe in list(_pipes):
        os.dup2(nowhere, pipe.fd, inheritable=False)
    os.close(nowhere)


os.register_at_fork(after_in_child=_let_go_of_pipes)


def ring_supported() -> tuple[bool, str]:
    """Tell whether this machine can share memory files between processes, and why not."""
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        return False, f"memory files need Linux, this is {sys.platform}"
    if not os.access("/proc/self/fd", os.R_OK):
        return False, "/proc is not mounted: mount it in the container to share memory with workers"
    return True, "memory files are available"
