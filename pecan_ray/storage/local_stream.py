"""Local files that are read piece by piece."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from pecan_ray.errors import SourceError
from pecan_ray.storage.local_errors import with_retries
from pecan_ray.storage.ranges import replaced

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

READ_BYTES = 1 << 16
"""At least so much is asked for where a file is read to its end, to see that it is one."""


def open_local(path: str, version: str = "", *, buffering: int = 1 << 20) -> BinaryIO:
    """Open a file; raise SourceReplacedError at once, or as soon as it is read, if it has another version."""
    file = _OneVersion(path, version)
    return cast(BinaryIO, io.BufferedReader(file, buffering) if buffering else file)


class _OneVersion(io.RawIOBase):
    """Reads a file as long as nobody writes to it; the second half of another version would be no part of the first.

    After an error that passes it is opened again: what was open on a mount is stale behind an outage.
    """

    def __init__(self, path: str, version: str) -> None:
        super().__init__()
        self._path, self._version = path, version
        self._fd = -1
        """-1: to be opened."""
        self._at = 0
        try:
            found = self._with_retries(lambda: os.fstat(self._fd))
            self._version = version or version_of(found)
            self._check(found)
        except BaseException:
            self.close()
            raise

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = 0
        if whence != os.SEEK_SET:
            base = self._at if whence == os.SEEK_CUR else self._with_retries(lambda: os.fstat(self._fd)).st_size
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        # Decision 27: the status behind each read, so that a file which is replaced meanwhile is noticed.
        # At a place of our own: a file that is opened again after an error would begin at its start.
        count, found = self._with_retries(lambda: (os.preadv(self._fd, [view], self._at), os.fstat(self._fd)))
        self._advance(count, len(view), found)
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        data, found = self._with_retries(lambda: (os.pread(self._fd, size, self._at), os.fstat(self._fd)))
        self._advance(len(data), size, found)
        return data

    def readall(self) -> bytes:
        size = self._with_retries(lambda: os.fstat(self._fd)).st_size
        pieces = []
        while piece := self.read(max(READ_BYTES, size - self._at)):
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._let_go()
        super().close()

    def _with_retries(self, call: Callable[[], T]) -> T:
        def attempt() -> T:
            # Otherwise a read behind the closing would open the file again, and nobody would close it.
            if self.closed:
                raise ValueError(f"{self._path} is read behind its closing.")
            try:
                if self._fd < 0:
                    self._fd = open_file(self._path)
                return call()
            except OSError:
                self._let_go()
                raise

        return with_retries(self._path, attempt)

    def _let_go(self) -> None:
        # Forgotten before it is closed: afterwards the number may be another file's.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _advance(self, count: int, asked: int, found: os.stat_result) -> None:
        self._check(found)
        if not count and asked and self._at < found.st_size:
            raise shorter(self._path, self._at, found.st_size)
        self._at += count

    def _check(self, found: os.stat_result) -> None:
        """Raise SourceReplacedError if the file has been written to."""
        if version_of(found) != self._version:
            raise replaced(self._path, self._at)


def open_file(path: str) -> int:
    """Open a file; what has become a pipe since it was listed is refused, where opening it would wait for a writer."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(fd).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise no_file(path, mode)
    except BaseException:
        os.close(fd)
        raise
    return fd


def no_file(path: str, mode: int) -> SourceError:
    """Return the error for a path that is no file, given its mode."""
    return SourceError(f"{path} is {_kind(mode)}, not a file: it cannot be read again and again.", path=path)


def shorter(path: str, at: int, size: int) -> SourceError:
    """Return the error for a file that ends before its size."""
    return SourceError(
        f"{path} ends at byte {at}, and says to have {size}: it is made while it is read (as in /sys), or its file "
        "system has not all of it. Read a copy of it.",
        path=path,
        offset=at,
    )


def version_of(status: os.stat_result) -> str:
    """Return the version of a file: when it was written to, and its size."""
    # Decision 109: no inode and no ctime, because nodes may have copies on disks of their own.
    return f"{status.st_mtime_ns}.{status.st_size}"


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a folder" if stat.S_ISDIR(mode) else "a device"
