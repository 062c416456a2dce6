"""The files of a store: segments, which one process each appends to."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np

ALIGNMENT = 64


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
        start, checksum = -(-self.end // ALIGNMENT) * ALIGNMENT, 0
        at = start
        try:
            for part in parts:
                checksum = extended(checksum, part)
                left = memoryview(part).cast("B")
                while left:
                    written = os.pwrite(self._fd, left, at)
                    left, at = left[written:], at + written
        except OSError:
            with contextlib.suppress(OSError):  # the first error is told
                os.ftruncate(self._fd, self.end)
            raise
        self.end = at
        return start, checksum

    def gone(self) -> bool:
        """Tell whether the file has been removed, as one that was worth least."""
        return os.fstat(self._fd).st_nlink == 0

    def close(self) -> None:
        """Write no more."""
        os.close(self._fd)


def extended(checksum: int, data: bytes | memoryview) -> int:
    """Return the checksum of what it stands for with more bytes behind."""
    # The library takes only bytes, and arrays of NumPy, where they lie.
    return int(google_crc32c.extend(checksum, np.frombuffer(data, np.uint8)))
