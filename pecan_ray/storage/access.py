"""The functions that sources and caches call: they find the storage by the path's scheme.

Clients and threads belong to the process that uses them: nothing here is pickled, and a forked child makes
its own.
"""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from pecan_ray.errors import SourceError, SourceReplacedError, StorageOutageError
from pecan_ray.storage.block_cache import BlockCache
from pecan_ray.storage.clients import backend, forget_clients, is_remote
from pecan_ray.storage.heads import HEAD_BYTES, Head, Heads
from pecan_ray.storage.hedged_reads import HedgeCount, HedgedReads
from pecan_ray.storage.listing import file_info
from pecan_ray.storage.local_stream import open_local
from pecan_ray.storage.ranges import FileRange, RangeRequest, replaced
from pecan_ray.storage.retry import unless_given_up
from pecan_ray.storage.threads import RequestThreads
from pecan_ray.storage.throttle import throttle

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

BLOCK_BYTES = 8 << 20
"""Size of one ranged read of a big object: a request takes 10 to 100 ms before its first byte, and 8 MiB as long again
at 1 Gbit/s."""
TAIL_BYTES = 1 << 18
"""Size of one read behind the end that a stream expects, where only the rest of a record is missing."""
IN_FLIGHT = 4
"""Ranged reads that one stream keeps going at the same time: 32 MiB, and a quarter of the requests of a process
(`THREADS`)."""
# Requests of a process at a time; a second pool of as many is for the beginnings of files.
THREADS = 16
AHEAD_BYTES = 32 << 20
"""Bound on the beginnings of files that this process holds because they will be read soon."""


def reset_clients() -> None:
    """Forget this process's clients, so that changed credentials or endpoints are looked up again."""
    # First: once the caches are cleared nobody reaches what is fetched ahead, whose retries would go on.
    drop_prefetch()
    forget_clients()
    _heads.cache_clear()
    _hedged.cache_clear()


def read_range(path: str, start: int, stop: int | None = None, *, version: str = "") -> bytes:
    """Return bytes `start` to `stop` (None: to the end) of a file; fewer where the file ends before.

    Raises SourceReplacedError if `version` is given and the file has another one.
    """
    return _read(path, start, stop, version).data


def read_all(path: str, size: int | None = None, *, version: str = "") -> bytes:
    """Return a whole file; one whose `size` is given and large is read as parallel ranges."""
    # Ranges side by side pay where each request waits for an answer from afar.
    if size is None or size <= BLOCK_BYTES or not is_remote(path):
        return read_range(path, 0, version=version)
    # Decision 27: without a version the first answer fixes it for the rest of the object.
    first = _read(path, 0, BLOCK_BYTES, version)
    # Two sizes are two versions, also where a store tells no version.
    if first.size != size:
        raise replaced(path)
    rest = _ranges(path, len(first.data), first.size, first.version or version)
    return b"".join((first.data, *_in_order(rest, _exactly)))


def read_many(paths: Sequence[str], versions: Sequence[str] = ()) -> Generator[bytes, None, None]:
    """Yield the contents of many small files in their order, keeping several reads going where that helps.

    Each comes by one request, which is answered with one version of it: raises SourceReplacedError where `versions` are
    given, and a file has another one.
    """
    return _whole_files(paths, versions, _exactly)


def read_each(paths: Sequence[str], versions: Sequence[str] = ()) -> Generator[bytes | SourceError, None, None]:
    """Yield the contents of many small files as `read_many` does; for one that cannot be read its error comes.

    A storage that does not answer raises StorageOutageError: nothing is known of its files.
    """

    def content(asked: RangeRequest) -> bytes | SourceError:
        try:
            return _exactly(asked)
        except StorageOutageError:
            raise
        except SourceError as error:
            return error

    return _whole_files(paths, versions, content)


def _whole_files(
    paths: Sequence[str], versions: Sequence[str], read: Callable[[RangeRequest], T]
) -> Generator[T, None, None]:
    asked = [
        RangeRequest(path, 0, None, version) for path, version in zip(paths, versions or [""] * len(paths), strict=True)
    ]
    if any(is_remote(path) for path in paths):
        yield from _in_order(asked, read, THREADS)
    else:
        for one in asked:
            yield read(one)


def read_file_range(path: str, start: int, stop: int | None = None, *, version: str = "") -> FileRange:
    """Return what `read_range` does, with the size of the file and the version that the answer is of."""
    return _read(path, start, stop, version)


def write_file(path: str, data: bytes) -> None:
    """Write a file or object whole, in place of one that is there; folders are made.

    It is there with all its bytes or not at all, also where two write it at once.  Failures that pass are waited out;
    raises SourcePermissionError where writing is not allowed.
    """
    backend(path).write(path, data)


def delete_file(path: str) -> None:
    """Remove a file or object, if it is there."""
    backend(path).delete(path)


def open_stream(
    path: str, start: int = 0, expect: int | None = None, *, version: str = "", at_least: int = 0
) -> BinaryIO:
    """Open a file for reading on from byte `start`; objects are fetched ahead in parallel ranges.

    `expect` is the byte up to which the reader will surely read: little behind it is fetched ahead, although it can
    be read.  None: the end of the file.  An object that had `at_least` so many bytes when it was listed, and of which
    the store gives fewer, raises SourceError.  With the `version` that a listing told, another one is refused, and what
    `prefetch` has brought is used; without it all is read of the version that is met first.
    """
    if is_remote(path):
        # 64 KiB: for formats that read some bytes at a time; what is fetched comes in larger pieces below.
        return io.BufferedReader(_PrefetchingReader(path, start, expect, version, at_least), 1 << 16)
    file = open_local(path, version)
    file.seek(start)
    return file


def open_random(path: str, *, size: int | None = None, version: str = "", buffering: int = 1 << 20) -> BinaryIO:
    """Open a file for reading at any place; on an object store every read is one ranged request.

    An object's `size` and `version`, where a listing told them, spare a request for them.  Of a local file `buffering`
    bytes are read at a time.
    """
    if not is_remote(path):
        return open_local(path, version, buffering=buffering)
    blocks = _kept.blocks_here()
    if size is None and blocks is not None:
        # Without a request, if any block of it is on this node.
        size = blocks.size(path, version)
    if size is None or not version:
        info = file_info(path)
        # The size is that of what is there now, and holds for the wanted version only if it is the same.
        RangeRequest(path, 0, None, version).check_version(info.version)
        size, version = info.size, info.version
    return cast(BinaryIO, _RangeReader(path, size, version))


def prefetch(heads: Iterable[Head]) -> None:
    """Begin to fetch the beginnings of objects that will be opened soon, under these versions, in this order.

    A bounded number of bytes is held; what is announced and does not fit is fetched when there is room.
    """
    # Without a version nobody could tell later whether what is held is still what is there.
    wanted = [head for head in heads if head.version and head.nbytes > 0 and is_remote(head.path)]
    if wanted:
        _heads(os.getpid()).notify_of(wanted)


def drop_prefetch() -> None:
    """Drop what was announced and not fetched, and try no request for it again: something else will be read."""
    _heads(os.getpid()).forget()


@dataclass
class _Kept:
    """What this process reads from its node's disk instead of from buckets."""

    blocks: BlockCache | None = None
    pid: int = 0
    cache_limits: tuple[tuple[str, int], ...] = ()
    """What may be kept of datasets, also by the next cache; empty: nobody bounds that."""

    def blocks_here(self) -> BlockCache | None:
        """Return the cache; None in a forked child too, which must not use its parent's index."""
        return self.blocks if self.blocks is not None and self.pid == os.getpid() else None


_kept = _Kept()


def keep_on_node(blocks: BlockCache | None) -> None:
    """Let reads of buckets by this process go through a cache on its node's disk; None: through none."""
    if (before := _kept.blocks_here()) is not None:
        before.close()
    _kept.blocks, _kept.pid = blocks, os.getpid()
    bound_datasets(_kept.cache_limits)


def bound_datasets(cache_limits: tuple[tuple[str, int], ...]) -> None:
    """Bound what this process keeps on its node's disk of each dataset, by its name; empty: nobody bounds that."""
    _kept.cache_limits = cache_limits
    if (blocks := _kept.blocks_here()) is not None:
        blocks.bound(dict(cache_limits) if cache_limits else None)


def blocks_here() -> BlockCache | None:
    """Return the cache that this process's reads of buckets go through; None: through none."""
    return _kept.blocks_here()


def bytes_from_node() -> int:
    """Return how many bytes this process has read again, of its node's disk or memory, instead of from buckets."""
    blocks = _kept.blocks_here()
    return _heads(os.getpid()).found + (0 if blocks is None else blocks.nbytes)


@dataclass
class _Hedging:
    """Whether this process asks for late reads twice."""

    on: bool = True


_hedging = _Hedging()


def hedge_reads(on: bool) -> None:
    """Let this process ask a second time for what an object store is late with, or not."""
    _hedging.on = on


def reads_hedged() -> HedgeCount:
    """Return how many reads this process has asked for twice, and how often that was of use."""
    return _hedged(os.getpid()).count


# By process: a forked child has neither its parent's threads nor a lock that anybody would let go of.
@cache
def _hedged(pid: int) -> HedgedReads:
    return HedgedReads()


@cache
def _threads(pid: int) -> RequestThreads:
    return RequestThreads(THREADS)


@cache
def _heads(pid: int) -> Heads:
    # Threads of their own: a reader's ranges do not wait behind what is read later.
    threads = RequestThreads(THREADS)
    return Heads(
        lambda head: _read(head.path, 0, head.nbytes, head.version),
        threads.start,
        most_bytes=AHEAD_BYTES,
        most_at_once=THREADS,
    )


def _read(path: str, start: int, stop: int | None, version: str = "") -> FileRange:
    # A `Range` header cannot say "nothing": servers take `bytes=5-4` for no range at all, and send
    # everything.
    if stop is not None and stop <= start:
        return FileRange(b"", start)
    if not is_remote(path):
        return backend(path).read(path, start, stop, version)
    # Inside of the throttle: each of two requests is charged
    # (docs/decisions/storage.md#72-late-reads-are-asked-for-twice).
    hedged = partial(_hedged(os.getpid()).read, path) if _hedging.on else None
    ask = partial(throttle.read, partial(backend(path).read, path), hedged=hedged)
    # Decision 52: above the throttle, so that what is found here is not charged.
    blocks = _kept.blocks_here()
    return ask(start, stop, version) if blocks is None else blocks.read(ask, path, start, stop, version)


def _ranges(path: str, start: int, stop: int, version: str) -> list[RangeRequest]:
    """Return what lies between two bytes of a file, cut where others who read it cut it too."""
    cuts = [start, *range((start // BLOCK_BYTES + 1) * BLOCK_BYTES, stop, BLOCK_BYTES), stop]
    return [RangeRequest(path, begin, end, version) for begin, end in pairwise(cuts) if begin < end]


def _exactly(asked: RangeRequest) -> bytes:
    """Read a range that must be there: the store has said so."""
    data = _read(asked.path, asked.start, asked.stop, asked.version).data
    if asked.stop is not None and len(data) < asked.stop - asked.start:
        raise SourceReplacedError(
            f"{asked.path} ends at byte {asked.start + len(data)}, although it was listed as longer: it was replaced "
            "while being read. Start again once nobody writes to it.",
            path=asked.path,
            offset=asked.start + len(data),
        )
    return data


def _in_order(
    ranges: Iterable[RangeRequest], read: Callable[[RangeRequest], T], in_flight: int = IN_FLIGHT
) -> Generator[T, None, None]:
    """Yield what is read of ranges in their order, some of them being read at the same time.

    When it is closed, those that are under way and fail are not tried again.
    """
    threads = _threads(os.getpid())
    flying: deque[Future[T]] = deque()
    given_up = threading.Event()

    def fetch(asked: RangeRequest) -> T:
        with unless_given_up(given_up):
            return read(asked)

    try:
        for asked in ranges:
            flying.append(threads.submit(partial(fetch, asked)))
            if len(flying) >= in_flight:
                yield flying.popleft().result()
        while flying:
            yield flying.popleft().result()
    finally:
        # Otherwise threads would go on with retries that nobody waits for, for as long as an outage lasts.
        given_up.set()
        for left in flying:
            left.cancel()


class _PrefetchingReader(io.RawIOBase):
    """Reads an object from front to back, the next blocks being fetched while one is consumed.

    The first answer tells the object's size, and which version the others must be of: nobody asks for them before.
    """

    def __init__(self, path: str, start: int, expect: int | None, version: str, at_least: int) -> None:
        super().__init__()
        self._path, self._start, self._expect, self._version = path, start, expect, version
        self._at_least = at_least
        self._blocks: Generator[bytes, None, None] | None = None
        self._size = self._tail = 0
        self._at = start
        self._block = memoryview(b"")

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._blocks is None:
            self._block = memoryview(self._open())
        if not self._block:
            assert self._blocks is not None
            self._block = memoryview(next(self._blocks, b""))
        if not self._block and self._tail < self._size:
            stop = min(self._tail + TAIL_BYTES, self._size)
            self._block = memoryview(_exactly(RangeRequest(self._path, self._tail, stop, self._version)))
            self._tail = stop
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(self._block))
        target[:count] = self._block[:count]
        self._block = self._block[count:]
        self._at += count
        return count

    def close(self) -> None:
        if self._blocks is not None and not self.closed:
            # Otherwise requests under way would be tried again for nobody.
            self._blocks.close()
        super().close()

    def _open(self) -> bytes:
        """Return the first bytes, and learn from the answer what there is to read behind them."""
        # Decision 27: no question for the size, which the first ranged answer tells.
        first = self._first()
        self._version = self._version or first.version
        self._size = first.size
        if self._size < self._at_least:
            raise SourceError(
                f"{self._path}: the store's answer ends at byte {self._size}, although the object was listed with "
                f"{self._at_least} bytes or more. Check the store, and what stands between it "
                "and this machine.",
                path=self._path,
                offset=self._size,
            )
        reached = self._start + len(first.data)
        # Side by side up to where the reader surely comes. What lies behind is asked for in small pieces when
        # it is read.
        self._tail = max(reached, self._size if self._expect is None else min(self._expect, self._size))
        self._blocks = _in_order(_ranges(self._path, reached, self._tail, self._version), _exactly)
        return first.data

    def _first(self) -> FileRange:
        # Only under a version, so that nothing old is ever given.
        keeps = self._start == 0 and self._version != ""
        heads = _heads(os.getpid())
        if keeps and (piece := heads.take(self._path, self._version)) is not None:
            return piece
        wanted = HEAD_BYTES if self._expect is None else self._expect - self._start
        # A tail's worth at least, since the round trip costs the same; no more than a head, which is what may
        # be kept.
        stop = self._start + min(max(wanted, TAIL_BYTES), HEAD_BYTES)
        piece = _read(self._path, self._start, stop, self._version)
        if keeps:
            heads.keep(self._path, self._version, piece)
        return piece


class SizedFile(io.RawIOBase):
    """A file of a size that is known, of which any place may be asked for."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size, self._at = size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at


class _RangeReader(SizedFile):
    """Reads an object at any place, one request a read."""

    def __init__(self, path: str, size: int, version: str) -> None:
        super().__init__(size)
        self._path, self._version = path, version

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        data = _exactly(RangeRequest(self._path, self._at, min(self._at + len(target), self._size), self._version))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
