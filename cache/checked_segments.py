"""Entries that this process has checked already, in the pages that it checked: as long as these stay, they are whole.

A page of a file that a process has looked at stays in its page table until the system takes the page away, and it is
the same page for all who write to the file or map it.  So an entry whose pages have all been there since its checksum
was looked at, in a file that nobody has written to since, needs no other look.  What the system has had to read again
is checked again.  Files that lie in memory are never read again: there it is enough that nobody has written to them.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field

import numpy as np

from pecan_ray.cache.segments import LEAST_MAPPED, MADV_POPULATE_READ, EntryChecksum

PAGE_TABLE = "/proc/self/pagemap"
"""Of Linux: 8 bytes for each page of this process, the highest bit of which says that the page is there."""
MOST_SEGMENTS = 64
"""Each is a map and an open file."""


@dataclass
class _HeldSegment:
    """A segment as it was when it was mapped."""

    stamp: tuple[int, int, int]
    memory: mmap.mmap
    address: int
    checked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By where an entry begins: its bytes and its checksum."""

    @property
    def nbytes(self) -> int:
        """Of the entries that were checked."""
        return sum(nbytes for nbytes, _ in self.checked.values())

    def stays(self, start: int, nbytes: int) -> bool:
        """Tell whether all pages of an entry are in this process's page table."""
        first = (self.address + start) // mmap.PAGESIZE
        pages = (self.address + start + nbytes - 1) // mmap.PAGESIZE - first + 1
        # Opened each time: a process that was forked would else read of its parent's pages.
        fd = os.open(PAGE_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            told = np.frombuffer(os.pread(fd, pages * 8, first * 8), np.int64)
        finally:
            os.close(fd)
        return len(told) == pages and int(told.max()) < 0

    def bring_in(self, start: int, nbytes: int) -> bool:
        """Let the system bring in all pages of an entry, and tell whether they are there."""
        before = start % mmap.PAGESIZE
        self.memory.madvise(MADV_POPULATE_READ, start - before, before + nbytes)
        return self.stays(start, nbytes)


class CheckedSegments:
    """What was checked of some segments, and the maps in which it stays; not safe for threads: one at a time.

    The first entries that come are those that stay: who goes round and round finds some of them each time.
    """

    def __init__(self, most_bytes: int, *, in_memory: bool = False) -> None:
        """`most_bytes`: of the entries that are held in maps; the pages are the system's, which may take them away.

        `in_memory`: that is where the files lie.
        """
        self._most_bytes, self._in_memory = most_bytes, in_memory
        self._held: dict[str, _HeldSegment] = {}

    def entry(self, path: str, start: int, nbytes: int, checksum: int) -> memoryview | None:
        """Return the bytes of a whole entry, which may only be read; None where that cannot be told here."""
        try:
            segment = self._segment(path, start, nbytes)
            if segment is None:
                return None
            data = memoryview(segment.memory)[start : start + nbytes]
            if self._knows(segment, start, nbytes, checksum):
                return data
            if not self._has_room(segment, start, nbytes) or not segment.bring_in(start, nbytes):
                return None
        except OSError:  # the file is gone, or this system tells nothing of its pages
            return None
        if EntryChecksum.of(data) != checksum:
            return None
        segment.checked[start] = nbytes, checksum
        return data

    def whole(self, path: str, start: int, data: bytes | memoryview, checksum: int) -> bool:
        """Tell whether the bytes of an entry that were read, or mapped, just now are those that were written."""
        nbytes = len(data)
        if not self._in_memory:
            # Pages that have stayed until now are those of any other map.
            return self.entry(path, start, nbytes, checksum) is not None or EntryChecksum.of(data) == checksum
        try:
            segment = self._segment(path, start, nbytes)
        except OSError:
            segment = None
        if segment is not None and self._knows(segment, start, nbytes, checksum):
            return True
        found = EntryChecksum.of(data) == checksum
        if found and segment is not None and self._has_room(segment, start, nbytes):
            segment.checked[start] = nbytes, checksum
        return found

    @property
    def nbytes(self) -> int:
        """Of all entries that are held."""
        return sum(segment.nbytes for segment in self._held.values())

    def sweep(self) -> None:
        """Let go of segments that were removed, or written to: what is removed takes room as long as it is mapped."""
        self._held = {path: held for path, held in self._held.items() if _stamp_of(path) == held.stamp}

    def close(self) -> None:
        """Let go of everything; bytes that were given stay where they are as long as somebody has them."""
        self._held.clear()

    def _knows(self, segment: _HeldSegment, start: int, nbytes: int, checksum: int) -> bool:
        same = segment.checked.get(start) == (nbytes, checksum)
        return same and (self._in_memory or segment.stays(start, nbytes))

    def _has_room(self, segment: _HeldSegment, start: int, nbytes: int) -> bool:
        segment.checked.pop(start, None)
        return self.nbytes + nbytes <= self._most_bytes

    def _segment(self, path: str, start: int, nbytes: int) -> _HeldSegment | None:
        """Return the segment of an entry as it is now; None for one that was just written to, and small entries."""
        if nbytes < LEAST_MAPPED or self._most_bytes < nbytes:
            return None
        known, stamp = self._held.get(path), _stamp_of(path)
        if known is not None and known.stamp == stamp:
            return known if start + nbytes <= len(known.memory) else None
        self._held.pop(path, None)
        if stamp is None or len(self._held) >= MOST_SEGMENTS or not _settled(path, stamp):
            return None
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if _stamp(found) != stamp:
                return None
            if found.st_size < start + nbytes:
                return None
            memory = mmap.mmap(fd, found.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        held = self._held[path] = _HeldSegment(stamp, memory, address)
        return held


def _settled(path: str, stamp: tuple[int, int, int]) -> bool:
    """Tell whether another change of a file would have another time: files' clocks tick every few milliseconds."""
    folder = os.path.dirname(path)
    os.utime(folder)  # so that the clock tells by which the file is stamped
    return os.stat(folder).st_ctime_ns > stamp[2]


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return None


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    """Return what changes with every change of a file: the time of writing could be set back, this one cannot."""
    return found.st_dev, found.st_ino, found.st_ctime_ns
