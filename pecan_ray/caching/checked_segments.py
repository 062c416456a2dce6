"""Entries that this process has checked already, in the pages that it checked: as long as these stay, they are whole.

A page of a file that a process has looked at stays in its page table until the system takes the page away, and it is
the same page for all who write to the file or map it.  So an entry whose pages have all been there since its checksum
was looked at, in a file that nobody has written to since, needs no other look.  What the system has had to read again
is checked again.  Files that lie in memory are never read again: there it is enough that nobody has written to them.
"""

from __future__ import annotations

import mmap
import os
import resource
from bisect import bisect_left, insort
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pecan_ray.caching.segments import LEAST_MAPPED, MADV_POPULATE_READ, EntryChecksum, open_segment

PAGE_TABLE = "/proc/self/pagemap"
"""Of Linux: 8 bytes for each page of this process, the highest bit of which says that the page is there."""
# docs/decisions/autocache.md#83-entries-are-checked-once: at most 1 GiB in 64 segments, and maps of twice
# that.
MOST_SEGMENTS = 64
"""Each is a map and an open file."""
MAPPED_TIMES = 2
"""Maps are so many times as large together as what may be held in them, at most; one of them is always taken."""
AROUND_BYTES = 2 << 20
"""So far from a page that is asked for the system may bring in others: 64 KiB of small ones, or a large one."""
SWEPT_S = 1.0
"""Seconds between looks for segments that are to be let go of, if anything is read: so long what was removed may take
room."""


@dataclass
class _HeldSegment:
    """A segment as it was when it was mapped."""

    file_version: tuple[int, int, int]
    memory: mmap.mmap
    address: int
    checked: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By where an entry begins: its bytes and its checksum."""
    starts: list[int] = field(default_factory=list)
    """The same in their order."""
    nbytes: int = 0
    """Of the entries that were checked."""

    @classmethod
    def of(cls, file_version: tuple[int, int, int], memory: mmap.mmap) -> _HeldSegment:
        """Return one of which nothing was checked yet."""
        return cls(file_version, memory, np.frombuffer(memory, np.uint8).ctypes.data)

    def is_of(self, file_version: tuple[int, int, int], nbytes: int) -> bool:
        """Tell whether it maps at least so many bytes of a file that has not been changed since."""
        return self.file_version == file_version and nbytes <= len(self.memory)

    def note(self, start: int, nbytes: int, checksum: int) -> None:
        """Note that an entry, which is not known yet, was checked."""
        self.checked[start] = nbytes, checksum
        insort(self.starts, start)
        self.nbytes += nbytes

    def forget(self, start: int) -> None:
        """Take an entry for one that was not checked."""
        known = self.checked.pop(start, None)
        if known is not None:
            del self.starts[bisect_left(self.starts, start)]
            self.nbytes -= known[0]

    def pages_in_memory(self, start: int, stop: int) -> NDArray[Any]:
        """Tell of each page in which some bytes lie whether it is in this process's page table."""
        first = (self.address + start) // mmap.PAGESIZE
        pages = (self.address + stop - 1) // mmap.PAGESIZE - first + 1
        # Opened each time: a process that was forked would else read of its parent's pages.
        fd = os.open(PAGE_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            told = np.frombuffer(os.pread(fd, pages * 8, first * 8), np.int64)
        finally:
            os.close(fd)
        if len(told) != pages:
            raise OSError("the page table ends before these pages")
        # The highest bit, which says that a page is there, is the sign of the number.
        return told < 0

    def is_in_memory(self, start: int, nbytes: int) -> bool:
        """Tell whether all pages of an entry are in this process's page table."""
        return bool(self.pages_in_memory(start, start + nbytes).all())

    def populate_range(self, start: int, nbytes: int) -> bool:
        """Let the system bring in all pages of an entry, and tell whether they are there."""
        before = start % mmap.PAGESIZE
        self.memory.madvise(MADV_POPULATE_READ, start - before, before + nbytes)
        return self.is_in_memory(start, nbytes)

    def forget_around(self, start: int, nbytes: int) -> None:
        """Forget the entries of which pages are away now that may come along with those of this one, unlooked at."""
        low, high = max(0, start - AROUND_BYTES), min(len(self.memory), start + nbytes + AROUND_BYTES)
        there, page = self.pages_in_memory(low, high), low // mmap.PAGESIZE
        # Entries do not overlap: only the last one that begins before may reach into it.
        for other in self.starts[max(0, bisect_left(self.starts, low) - 1) : bisect_left(self.starts, high)]:
            last = (other + self.checked[other][0] - 1) // mmap.PAGESIZE
            if not there[max(0, other // mmap.PAGESIZE - page) : max(0, last + 1 - page)].all():
                self.forget(other)


class CheckedSegments:
    """What was checked of some segments, and the maps in which it stays; not safe for threads: one at a time.

    The first entries that come are those that stay: who goes round and round finds some of them each time.
    """

    def __init__(self, most_bytes: int, *, in_memory: bool = False, clock: Callable[[], float] = float) -> None:
        """`most_bytes`: of the entries that are held in maps; the pages are the system's, which may take them away.

        `in_memory`: that is where the files lie.  `clock`: of seconds; without one, nothing is due but once.
        """
        self._most_bytes, self._in_memory, self._clock = most_bytes, in_memory, clock
        self._held: dict[str, _HeldSegment] = {}
        self._supported: bool | None = None
        """Whether this system tells of its pages; None: it was not asked yet."""
        self._last_sweep = float("-inf")
        self.rejected = False
        """Whether there was no room for something since the last sweep."""

    def entry(self, path: str, start: int, nbytes: int, checksum: int) -> memoryview | None:
        """Return the bytes of a whole entry, which may only be read; None where that cannot be told here."""
        try:
            segment = self._segment(path, start, nbytes)
            if segment is None:
                return None
            data = memoryview(segment.memory)[start : start + nbytes]
            if self._is_checked(segment, start, nbytes, checksum):
                return data
            if not self._has_room(segment, start, nbytes):
                return None
            if not self._in_memory:
                # Decision 83: the system brings in pages around those that are asked for, which nobody has checked.
                segment.forget_around(start, nbytes)
            if not segment.populate_range(start, nbytes):
                return None
        except (OSError, ValueError):  # the file is gone or was cut off, or this system tells nothing of its pages
            return None
        # Of the mapped pages themselves: these are checked, and no copy that was read beside them.
        if EntryChecksum.of(data) != checksum:
            return None
        segment.note(start, nbytes, checksum)
        return data

    def whole(self, path: str, start: int, data: bytes | memoryview, checksum: int) -> bool:
        """Tell whether the bytes of an entry that were read, or mapped, just now are those that were written."""
        nbytes = len(data)
        if not self._in_memory:
            # Pages that have stayed until now are those of any other map.
            return self.entry(path, start, nbytes, checksum) is not None or EntryChecksum.of(data) == checksum
        try:
            segment = self._segment(path, start, nbytes)
        except (OSError, ValueError):
            segment = None
        if segment is not None and self._is_checked(segment, start, nbytes, checksum):
            return True
        found = EntryChecksum.of(data) == checksum
        if found and segment is not None and self._has_room(segment, start, nbytes):
            segment.note(start, nbytes, checksum)
        return found

    @property
    def nbytes(self) -> int:
        """Of all entries that are held."""
        return sum(segment.nbytes for segment in self._held.values())

    @property
    def mapped_bytes(self) -> int:
        """Of all maps."""
        return sum(len(segment.memory) for segment in self._held.values())

    def due(self) -> bool:
        """Tell whether it is time to sweep."""
        return not 0 <= self._clock() - self._last_sweep < SWEPT_S  # some virtual machines' clocks jump

    def sweep(self, starts_in: Callable[[str], Container[int]] | None = None) -> None:
        """Let go of segments that were removed, or written to: what is removed takes room as long as it is mapped.

        `starts_in`: where entries begin in a segment; others are let go of if there was no room for something.
        """
        self._last_sweep = self._clock()
        # Only if room is wanted, because each segment costs a query of the index.
        if starts_in is not None and self.rejected:
            self.rejected = False
            for path, held in self._held.items():
                listed = starts_in(path)
                for start in [one for one in held.starts if one not in listed]:
                    held.forget(start)
        self._held = {
            path: held for path, held in self._held.items() if held.checked and _path_version(path) == held.file_version
        }

    def forget(self, path: str, start: int) -> None:
        """Let go of an entry, if it is held."""
        if (held := self._held.get(path)) is not None:
            held.forget(start)

    def close(self) -> None:
        """Let go of everything; bytes that were given stay where they are as long as somebody has them."""
        self._held.clear()

    def _is_checked(self, segment: _HeldSegment, start: int, nbytes: int, checksum: int) -> bool:
        same = segment.checked.get(start) == (nbytes, checksum)
        return same and (self._in_memory or segment.is_in_memory(start, nbytes))

    def _has_room(self, segment: _HeldSegment, start: int, nbytes: int) -> bool:
        # First, so that an entry that is checked again does not count twice.
        segment.forget(start)
        return self._has_space(nbytes)

    def _has_space(self, nbytes: int) -> bool:
        fits = self.nbytes + nbytes <= self._most_bytes
        self.rejected |= not fits
        return fits

    def _segment(self, path: str, start: int, nbytes: int) -> _HeldSegment | None:
        """Return the segment of an entry as it is now; None for one that was just written to, and small entries."""
        if nbytes < LEAST_MAPPED or self._most_bytes < nbytes or not self._can_hold():
            return None
        known, now = self._held.get(path), _stat_of(path)
        if now is None:
            self._held.pop(path, None)
            return None
        if known is not None and known.is_of(_file_version(now), start + nbytes):
            return known
        self._held.pop(path, None)
        if now.st_size < start + nbytes or not self._has_space(nbytes) or not self._may_map(now.st_size):
            return None
        # Decision 83: two changes within one tick of the file system's clock look the same.
        if not _settled(path, _file_version(now)):
            return None
        memory = _mapped(path, now)
        if memory is None:
            return None
        held = self._held[path] = _HeldSegment.of(_file_version(now), memory)
        return held

    def _may_map(self, nbytes: int) -> bool:
        """Tell whether there is room for one more segment of so many bytes."""
        # Whole segments are mapped, of which a removed one takes its room until it is let go of.
        full = self._held and self.mapped_bytes + nbytes > MAPPED_TIMES * self._most_bytes
        if full or len(self._held) >= MOST_SEGMENTS:
            self.rejected = True
            return False
        return True

    def _can_hold(self) -> bool:
        """Tell whether this system tells of its pages, and maps may be as large as they like; asked once."""
        if self._supported is None:
            self._supported = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY and _has_page_status()
        return self._supported


def _has_page_status() -> bool:
    """Tell whether a page that was brought in is said to be there, and one that was not is not."""
    probe = _HeldSegment.of((0, 0, 0), mmap.mmap(-1, mmap.PAGESIZE))
    try:
        return not probe.is_in_memory(0, mmap.PAGESIZE) and probe.populate_range(0, mmap.PAGESIZE)
    except OSError:
        return False


def _settled(path: str, file_version: tuple[int, int, int]) -> bool:
    """Tell whether another change of a file would have another time: files' clocks tick every few milliseconds."""
    folder = os.path.dirname(path)
    os.utime(folder)  # so that the clock tells by which the file is stamped
    return os.stat(folder).st_ctime_ns > file_version[2]


def _path_version(path: str) -> tuple[int, int, int] | None:
    found = _stat_of(path)
    return None if found is None else _file_version(found)


def _stat_of(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _file_version(found: os.stat_result) -> tuple[int, int, int]:
    """Return what changes with every change of a file: the time of writing could be set back, this one cannot."""
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _mapped(path: str, known: os.stat_result) -> mmap.mmap | None:
    """Return a segment's bytes; None where it is another file by now than the one that is known."""
    fd = open_segment(path)
    try:
        if _file_version(os.fstat(fd)) != _file_version(known):
            return None
        return mmap.mmap(fd, known.st_size, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)
