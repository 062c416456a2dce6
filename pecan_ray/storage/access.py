"""The functions that sources call: they find the storage by the path's scheme.

Clients and threads belong to the process that uses them: nothing here is pickled, and a forked child makes
its own.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, cast

from pecan_ray.errors import CorruptSourceError, SourceNotFoundError
from pecan_ray.storage.backend import MAGIC, Backend, FileInfo
from pecan_ray.storage.gcs import GoogleStorage
from pecan_ray.storage.local import LocalFiles, explain
from pecan_ray.storage.objects import ObjectStore
from pecan_ray.storage.s3 import S3

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Patterns: TypeAlias = str | Sequence[str]

BLOCK_BYTES = 8 << 20
"""Size of one ranged read of a big object."""
TAIL_BYTES = 1 << 18
"""Size of one read behind the end that a stream expects."""
IN_FLIGHT = 4
"""Ranged reads that one stream keeps going at the same time."""
THREADS = 16

_MAKERS: dict[str, Callable[[], Backend]] = {
    "": LocalFiles,
    "s3": lambda: ObjectStore(S3()),
    "gs": lambda: ObjectStore(GoogleStorage()),
}


def is_remote(path: str) -> bool:
    """Say whether a path lies in an object store."""
    return path.startswith(("s3://", "gs://"))


def reset_clients() -> None:
    """Forget this process's clients, so that changed credentials or endpoints are looked up again."""
    _backend_of.cache_clear()


def list_files(patterns: Patterns) -> Iterator[FileInfo]:
    """Yield the files of files, folders and globs, each pattern's in the order of their names, page by page.

    Folders are searched to any depth, leaving out names that begin with ``.`` or ``_``.  A file that two
    patterns name is yielded twice.  Raises SourceNotFoundError for a pattern that names nothing,
    SourcePermissionError where listing is not allowed.
    """
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        count = 0
        for file in _expand(pattern):
            count += 1
            yield file
        if count == 0:
            raise SourceNotFoundError(_nothing(pattern), path=pattern)


def list_folder(folder: str) -> Iterator[FileInfo]:
    """Yield the files below a folder whose name is taken literally, as `list_files` does; maybe none."""
    return _backend(folder).folder(folder)


def subfolders(folder: str) -> list[str]:
    """Return the sorted names of the folders directly below a folder, without those beginning with . or _."""
    return _backend(folder).subfolders(folder)


def file_info(path: str) -> FileInfo:
    """Describe one file, or raise SourceNotFoundError."""
    found = _backend(path).info(path)
    if found is None:
        raise SourceNotFoundError(_nothing(path), path=path)
    return found


def read_range(path: str, start: int, stop: int | None = None) -> bytes:
    """Return bytes `start` to `stop` (None: to the end) of a file; fewer where the file ends before."""
    return _backend(path).read(path, start, stop)


def read_all(path: str, size: int | None = None) -> bytes:
    """Return a whole file; one whose `size` is given and large is read as parallel ranges."""
    if size is None or size <= BLOCK_BYTES or not is_remote(path):
        return read_range(path, 0)
    return b"".join(_in_order([(path, at, min(at + BLOCK_BYTES, size)) for at in range(0, size, BLOCK_BYTES)]))


def read_many(paths: Sequence[str]) -> Iterator[bytes]:
    """Yield the contents of many small files in their order, keeping several reads going where that helps."""
    if any(is_remote(path) for path in paths):
        yield from _in_order([(path, 0, None) for path in paths], THREADS)
    else:
        for path in paths:
            yield read_range(path, 0)


def open_stream(path: str, start: int = 0, expect: int | None = None) -> BinaryIO:
    """Open a file for reading on from byte `start`; objects are fetched ahead in parallel ranges.

    `expect` is the byte up to which the reader will surely read: nothing behind it is fetched ahead,
    although it can be read.  None: the end of the file.
    """
    if not is_remote(path):
        file = open_random(path)
        file.seek(start)
        return file
    size = file_info(path).size
    return io.BufferedReader(_AheadReader(path, start, size if expect is None else min(expect, size), size), 1 << 16)


def open_random(path: str) -> BinaryIO:
    """Open a file for reading at any place; on an object store every read is one ranged request."""
    if is_remote(path):
        return cast(BinaryIO, _RangeReader(path, file_info(path).size))
    try:
        return open(path, "rb", buffering=1 << 20)
    except OSError as error:
        raise explain(error, path) from error


def _expand(pattern: str) -> Iterator[FileInfo]:
    backend = _backend(pattern)
    if MAGIC.search(pattern):
        yield from backend.glob(pattern)
        return
    found = backend.info(pattern)
    if found is not None:
        yield found
    else:
        yield from backend.folder(pattern)


def _nothing(pattern: str) -> str:
    if MAGIC.search(pattern):
        return (
            f"The pattern {pattern} matches no file. Check the folder and spelling; `*` stays within one "
            "folder, `**` crosses folders, and only files match."
        )
    where = "with this key or below this prefix" if is_remote(pattern) else "on this machine with this name or below it"
    return f"{pattern}: there is no file {where}. Check the path, and that all workers see the same storage."


def _backend(path: str) -> Backend:
    scheme, separator, _ = path.partition("://")
    if not separator:
        scheme = ""
    if scheme not in _MAKERS:
        raise SourceNotFoundError(
            f"{path}: there is no storage for {scheme}://. Use a local path, s3:// or gs://.", path=path
        )
    return _backend_of(scheme, os.getpid())


@cache
def _backend_of(scheme: str, pid: int) -> Backend:
    return _MAKERS[scheme]()


@cache
def _pool(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="pecan-storage")


def _exactly(path: str, start: int, stop: int | None) -> bytes:
    """Read a range that must be there: a listing said so."""
    data = read_range(path, start, stop)
    if stop is not None and len(data) < stop - start:
        raise CorruptSourceError(
            f"{path} ends at byte {start + len(data)}, although it was listed as longer: it was replaced "
            "while being read. Start again once nobody writes to it.",
            path=path,
            offset=start + len(data),
        )
    return data


def _in_order(ranges: Sequence[tuple[str, int, int | None]], in_flight: int = IN_FLIGHT) -> Iterator[bytes]:
    """Yield the bytes of ranges in their order, some of them being read at the same time."""
    pool = _pool(os.getpid())
    flying: deque[Future[bytes]] = deque()
    for path, start, stop in ranges:
        flying.append(pool.submit(_exactly, path, start, stop))
        if len(flying) >= in_flight:
            yield flying.popleft().result()
    while flying:
        yield flying.popleft().result()


class _AheadReader(io.RawIOBase):
    """Reads an object from front to back, the next blocks being fetched while one is consumed."""

    def __init__(self, path: str, start: int, expect: int, size: int) -> None:
        super().__init__()
        self._tail, self._size, self._path = max(start, expect), size, path
        edges = [(path, at, min(at + BLOCK_BYTES, expect)) for at in range(start, expect, BLOCK_BYTES)]
        self._blocks = _in_order(edges)
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._block:
            self._block = memoryview(next(self._blocks, b""))
        if not self._block and self._tail < self._size:
            stop = min(self._tail + TAIL_BYTES, self._size)
            self._block = memoryview(_exactly(self._path, self._tail, stop))
            self._tail = stop
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._block))
        target[:count] = self._block[:count]
        self._block = self._block[count:]
        return count


class _RangeReader(io.RawIOBase):
    """Reads an object at any place, one request a read."""

    def __init__(self, path: str, size: int) -> None:
        super().__init__()
        self._path, self._size, self._at = path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        data = _exactly(self._path, self._at, min(self._at + len(target), self._size))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
