"""Segments of a store: files that only grow, and the checksums of what lies in them.

Decisions: docs/decisions/autocache.md.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import secrets
import stat
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np

# Bytes, so that arrays lie aligned in a mapped entry.
ALIGNMENT = 64
LEAST_MAPPED = 64 << 10
"""Bytes of an entry that is mapped rather than read."""
MADV_POPULATE_READ = 22
"""Of Linux 5.14 and later; Python has no name for it."""
MOST_PARTS = 512
"""Written in one call; systems allow 1024."""
_NAME = re.compile(r"[0-9a-f]{16}\.segment")


def new_segment_name() -> str:
    """Return the name of a segment that there is not yet."""
    return f"{secrets.token_hex(8)}.segment"


def is_segment_name(name: object) -> bool:
    """Tell whether a file of that name could be a segment: no other one is read, or removed, whatever an index says."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def open_segment(path: Path | str) -> int:
    """Open a segment for reading, and return its descriptor; raises OSError for what is no file: a pipe, a link."""
    # A pipe is waited for without O_NONBLOCK, and a device may never end.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return fd


class EntryChecksum:
    """The checksum of an entry, whose bytes are added in their order: their CRC32C."""

    def __init__(self) -> None:
        self.value = 0
        """Of what was added so far."""

    def add(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        # The library takes only bytes, and arrays of NumPy, where they lie.
        self.value = int(google_crc32c.extend(self.value, np.frombuffer(data, np.uint8)))

    @classmethod
    def of(cls, data: bytes | memoryview) -> int:
        """Return the checksum of an entry."""
        checksum = cls()
        checksum.add(data)
        return checksum.value

    @staticmethod
    def under(key: str, checksum: int) -> int:
        """Return the checksum of an entry under a key, out of that of its bytes, or the other way round."""
        return checksum ^ int(google_crc32c.value(key.encode(errors="surrogatepass")))


def read_entry(path: Path | str, start: int, nbytes: int) -> bytes | memoryview:
    """Return bytes of a segment, fewer where it ends before them; what is written into them stays with the caller."""
    fd = open_segment(path)
    try:
        # Pages behind a file's end would kill who looks at them.
        nbytes = max(0, min(nbytes, os.fstat(fd).st_size - start))
        mapped = _mapped(fd, start, nbytes)
        if mapped is not None:
            return mapped
        data = os.pread(fd, nbytes, start)
        while len(data) < nbytes and (more := os.pread(fd, nbytes - len(data), start + len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def _mapped(fd: int, start: int, nbytes: int) -> memoryview | None:
    """Return bytes of a file where the system keeps them; None where they are better read.

    Pages that are written into become the process's own.  The system is asked to bring in all of them now: what it
    cannot bring would kill the process when it was looked at.
    """
    if nbytes < LEAST_MAPPED:
        return None
    before = start % mmap.ALLOCATIONGRANULARITY
    try:
        memory = mmap.mmap(fd, before + nbytes, access=mmap.ACCESS_COPY, offset=start - before)
        memory.madvise(MADV_POPULATE_READ)
    except (OSError, ValueError):  # an older system, a bad disk, or a file that was cut off: reading tells which
        return None
    return memoryview(memory)[before:]


class SegmentWriter:
    """A segment that this process appends to; its lock tells others that it lives."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.end = name, 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(folder / name, flags, 0o600)
        self.held = False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True

    def append(self, parts: Sequence[bytes | memoryview]) -> tuple[int, int]:
        """Write an entry behind the last one; return where it begins and its checksum.  What fails leaves no bytes."""
        start, checksum = -(-self.end // ALIGNMENT) * ALIGNMENT, EntryChecksum()
        left = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
        for part in left:
            # Of the memory, not of the file: what the disk changes on the way must not pass.
            checksum.add(part)
        at = start
        try:
            while left:
                written = os.pwritev(self._fd, left[:MOST_PARTS], at)
                at += written
                left = _behind(left, written)
        except OSError:
            # If the disk is full, it gets back what was written in part.
            with contextlib.suppress(OSError):  # the first error is told
                os.ftruncate(self._fd, self.end)
            raise
        self.end = at
        return start, checksum.value

    def is_removed(self) -> bool:
        """Tell whether the file has been removed, as one that was worth least."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)


def _behind(parts: list[memoryview], written: int) -> list[memoryview]:
    """Return what is left of parts of which so many bytes were written."""
    for number, part in enumerate(parts):
        if written < len(part):
            return [part[written:], *parts[number + 1 :]]
        written -= len(part)
    return []
