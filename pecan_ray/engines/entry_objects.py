"""Entries of `autocache` points as objects: in a bucket, or below a folder that many machines have mounted.

An object holds one entry behind a head that says what it is.  It is written by one request, so it is there as a whole
or not at all, and who writes the same entry at once writes the same elements.  Whatever is asked of the store is
answered within a bound: a store that is down must not hold up who could compute instead.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from dataclasses import asdict, dataclass
from functools import partial
from urllib.parse import quote, unquote

import google_crc32c
import numpy as np

from pecan_ray.errors import CacheError, SourceNotFoundError, SourceReplacedError
from pecan_ray.storage import (
    FileInfo,
    delete_file,
    list_folder,
    read_file_range,
    write_file,
)
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.retry import unless_given_up
from pecan_ray.storage.threads import RequestThreads

# Objects with a larger number are left alone, because a newer version that shares the store has written them.
OBJECT_VERSION = 1
MAGIC = b"PECANENT"
HEAD = struct.Struct("<8sIII")
"""Magic, version, and the length and checksum of the facts in JSON that follow."""
# Bytes: Arrow wants buffers at multiples of 64, and entries are read where they lie behind the head.
ALIGNMENT = 64
ENDING, NAME = ".pecan-entry", "pecan-name.txt"
PIECE_BYTES = 8 << 20
"""An entry is read in pieces of this size, side by side, as all large objects are (`storage.access.BLOCK_BYTES`)."""
READS = 8
"""Requests of a process at a time: two entries of 32 MB, each in four pieces."""
WAIT_S = 4.0
"""A store that has not answered for so long is not waited for.  Chosen: the split is made anew then."""
SLOWEST_BYTES_PER_S = 4e6
"""Large entries are waited for longer, at this speed: no store that is worth asking is slower."""


@dataclass(frozen=True)
class EntryInfo:
    """What the head of an object says of its entry."""

    key: str
    kind: str
    elements: int
    seconds: float
    """Seconds that computing it took."""
    nbytes: int
    checksum: int


@dataclass(frozen=True)
class FoundEntry:
    """An entry as it was read from a store."""

    info: EntryInfo
    data: bytes | memoryview


class EntryObjects:
    """The entries below a URL or folder; threads may use it side by side.

    What cannot be read or written raises a `SourceError`; what is read and is no whole entry a `CacheError`, whose
    field `damaged` or `newer` is true; a store that does not answer in time a `CacheError` without them.
    """

    def __init__(self, root: str, *, wait_s: float | None = None) -> None:
        """`wait_s`: so long the store may take to answer; None: as long as usual."""
        self.root, self.wait_s = root.rstrip("/"), WAIT_S if wait_s is None else wait_s
        self._threads = RequestThreads(READS)

    # --- one entry -----------------------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> FoundEntry | None:
        """Return an entry, or None where there is none."""
        try:
            return self._get(kind, key)
        except SourceNotFoundError:
            return None
        except (SourceReplacedError, CacheError) as error:
            if isinstance(error, CacheError) and not error.fields.get("damaged"):
                raise
        return self._get(kind, key)  # another one may have written it meanwhile: a second look tells

    def put(self, kind: str, key: str, parts: Sequence[bytes | memoryview], *, elements: int, seconds: float) -> None:
        """Write an entry, in place of one that is there; takes as long as it takes."""
        nbytes = sum(memoryview(part).nbytes for part in parts)
        facts = EntryInfo(key, kind, elements, seconds, nbytes, _checksum(parts))
        told = json.dumps(asdict(facts)).encode()
        head = HEAD.pack(MAGIC, OBJECT_VERSION, len(told), _checksum([told])) + told
        write_file(self._path(kind, key), b"".join((head.ljust(_aligned(len(head)), b"\0"), *parts)))

    def drop(self, kind: str, key: str) -> None:
        """Remove an entry, if it is there."""
        delete_file(self._path(kind, key))

    # --- all of them ---------------------------------------------------------------------------------------

    def entries(self, kind: str) -> Iterator[tuple[str, FileInfo]]:
        """Yield the keys of the entries of a kind, page by page, and their objects."""
        folder = self._folder(kind) + "/"
        for file in list_folder(folder):
            name = file.path.removeprefix(folder)
            if name.endswith(ENDING) and "/" not in name:
                yield unquote(name.removesuffix(ENDING)), file

    def name(self, kind: str, text: str) -> None:
        """Write down, for people, what entries of a kind are of."""
        write_file(f"{self._folder(kind)}/{NAME}", text.encode())

    # --- inside --------------------------------------------------------------------------------------------

    def _folder(self, kind: str) -> str:
        return f"{self.root}/{quote(kind, safe='')}"

    def _path(self, kind: str, key: str) -> str:
        return f"{self._folder(kind)}/{quote(key, safe='')}{ENDING}"

    def _get(self, kind: str, key: str) -> FoundEntry:
        path = self._path(kind, key)
        # Alone and first: it tells size and version. The others name that version, so that no two objects are mixed.
        (first,) = self._fetch_all([partial(read_file_range, path, 0, PIECE_BYTES)], self.wait_s)
        facts, start = _entry_info(first.data, path)
        if facts.key != key or first.size != start + facts.nbytes:
            raise _malformed_error(path, "it is not what its head says")
        pieces = [
            partial(read_file_range, path, at, min(at + PIECE_BYTES, first.size), version=first.version)
            for at in range(len(first.data), first.size, PIECE_BYTES)
        ]
        rest = self._fetch_all(pieces, self.wait_s + facts.nbytes / SLOWEST_BYTES_PER_S)
        parts: list[bytes | memoryview] = [memoryview(first.data)[start:], *(piece.data for piece in rest)]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != facts.nbytes or _checksum([data]) != facts.checksum:
            raise _malformed_error(path, "its bytes are not those that were written")
        return FoundEntry(facts, data)

    def _fetch_all(self, calls: Sequence[Callable[[], FileRange]], within_s: float) -> list[FileRange]:
        """Make requests side by side; raises CacheError if they are not answered in time."""
        # Decision 49: threads make the requests and can be left behind, because a mount that hangs cannot be
        # interrupted.
        given_up = threading.Event()
        until = time.monotonic() + within_s

        def fetch(call: Callable[[], FileRange]) -> FileRange:
            with unless_given_up(given_up, patience_s=within_s):
                return call()

        answers: list[Future[FileRange]] = [self._threads.submit(partial(fetch, call)) for call in calls]
        try:
            return [answer.result(max(0.0, until - time.monotonic())) for answer in answers]
        except NotInTimeError:
            raise CacheError(f"{self.root} does not answer within {within_s:.3g} s", path=self.root) from None
        finally:
            given_up.set()
            for answer in answers:
                answer.cancel()


def _entry_info(data: bytes, path: str) -> tuple[EntryInfo, int]:
    """Return what an object's head says, and where its entry begins."""
    if len(data) < HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise _malformed_error(path, "it does not begin as an entry does")
    _, version, length, checksum = HEAD.unpack_from(data)
    if version > OBJECT_VERSION:
        raise CacheError(
            f"{path} has format {version}, and this pecan_ray reads {OBJECT_VERSION}", path=path, newer=True
        )
    told = data[HEAD.size : HEAD.size + length]
    if version != OBJECT_VERSION or len(told) != length or _checksum([told]) != checksum:
        raise _malformed_error(path, "its head is not what was written")
    return EntryInfo(**json.loads(told)), _aligned(HEAD.size + length)


def _malformed_error(path: str, why: str) -> CacheError:
    return CacheError(f"{path} is damaged: {why}", path=path, damaged=True)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _checksum(parts: Sequence[bytes | memoryview]) -> int:
    checksum = 0
    for part in parts:
        # The library takes only bytes, and arrays of NumPy, where they lie.
        checksum = int(google_crc32c.extend(checksum, np.frombuffer(part, np.uint8)))
    return checksum
