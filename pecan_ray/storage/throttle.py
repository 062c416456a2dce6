"""How fast this process reads from object stores: its share of the job's quota, which may change at any time.

A read waits for its bytes before it asks for them, not while they come: no connection is held open meanwhile.  Large
reads are made in pieces, so that bytes come as evenly as they are allowed to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from pecan_ray.storage.hedged_reads import AskRange, QuotaRequest
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.retry import pause
from pecan_ray.storage.token_bucket import TokenBucket

# Decision 51: at 1 MB/s, blocks of 8 MiB would come in bursts of eight seconds.
PIECE_S = 0.1
"""A piece is what may be read in this time."""
LEAST_PIECE = 16 << 10
"""Least bytes of a piece: below it a request costs more than what it brings."""
MOST_PIECE = 8 << 20
"""Most bytes of a piece, as of any ranged read (`access.BLOCK_BYTES`)."""
LOOK_S = 0.1
"""Whoever waits sees a change of the quota after this time: as long as a piece takes."""


class Throttle:
    """The quota of a process: reads of all its threads, in the order in which they come."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = pause) -> None:
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        """Guards all below."""
        self._bucket: TokenBucket | None = None
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes that were read from object stores so far."""
        return self._nbytes

    @property
    def bytes_per_s(self) -> float | None:
        """The quota; None: there is none."""
        bucket = self._bucket
        return None if bucket is None else bucket.bytes_per_s

    def reset_after_fork(self) -> None:
        """Go on in a forked child, in whose parent another thread may just hold the lock."""
        self._lock = threading.Lock()
        """Guards what the one before it did."""

    def limit(self, bytes_per_s: float | None) -> None:
        """Set the quota, also for reads that wait; None: none."""
        with self._lock:
            if bytes_per_s is None:
                self._bucket = None
            elif self._bucket is None:
                self._bucket = TokenBucket(bytes_per_s, self._clock())
            else:
                self._bucket.set_rate(bytes_per_s, self._clock())

    def read(
        self,
        ask: AskRange,
        start: int,
        stop: int | None,
        version: str,
        hedged: Callable[[AskRange, int, int | None, str, QuotaRequest], FileRange] | None = None,
    ) -> FileRange:
        """Return what `ask` gives of bytes `start` to `stop` (None: to the end), as fast as the quota allows.

        All pieces are of the version that is given, or else of that which the first one has told.  `hedged` makes the
        requests of a piece, of which each is charged to the quota; None: there is one.
        """
        parts: list[bytes] = []
        at, size, reserved = start, None, _Reserved()
        try:
            while True:
                most = self._chunk_size()
                end = stop if most is None else at + most if stop is None else min(at + most, stop)
                # Decision 51: charged before the request: a body that is read slowly keeps a connection open,
                # and bytes in socket buffers have been sent whether they are taken or not.
                charged = _ReservedRequest(self, reserved, end if size is None else size)
                piece = charged(ask, at, end, version) if hedged is None else hedged(ask, at, end, version, charged)
                parts.append(piece.data)
                at += len(piece.data)
                version, size = version or piece.version, piece.size if stop is None else min(stop, piece.size)
                if not piece.data or at >= size:
                    return piece if len(parts) == 1 else FileRange(b"".join(parts), piece.size, piece.version)
        # Decision 51: the length of an object is often not known, so more was reserved than there is.
        finally:
            self.return_unused(reserved, at)

    def _chunk_size(self) -> int | None:
        """Return how many bytes are to be asked for at a time; None: all of them."""
        rate = self.bytes_per_s
        return None if rate is None else max(LEAST_PIECE, min(MOST_PIECE, int(rate * PIECE_S)))

    def wait_for(self, reserved: _Reserved, start: int, stop: int, end: int) -> None:
        """Wait until a piece may be read, of a read that will go on to its `end`."""
        with self._lock:
            bucket = self._bucket
            if bucket is None:
                return
            # Decision 51: a place in the line and no time, so that a new rate holds at once for all that wait.
            reserved.reserve(bucket, start, max(stop, end), self._clock())
        while True:
            with self._lock:
                # Where the quota was lifted meanwhile, nobody need wait any more.
                wait_s = reserved.wait_s(stop, self._clock()) if self._bucket is bucket else 0.0
            if wait_s <= 0:
                return
            self._sleep(min(wait_s, LOOK_S))

    def note_read(self, nbytes: int) -> None:
        """Note that so many bytes were read."""
        with self._lock:
            self._nbytes += nbytes

    def return_unused(self, reserved: _Reserved, start: int) -> None:
        """Let others have what was reserved from `start` on."""
        with self._lock:
            reserved.return_unused(start, self._clock())


class _ReservedRequest:
    """The requests for one piece of a read: the first one has what the read has reserved, another one reserves anew."""

    def __init__(self, throttle: Throttle, reserved: _Reserved, end: int | None) -> None:
        self._throttle, self._end = throttle, end
        self._reserved = [reserved]

    def __call__(self, ask: AskRange, start: int, stop: int | None, version: str, /) -> FileRange:
        try:
            # `list.pop` is atomic: of two requests that are made side by side one has what was reserved.
            reserved, again = self._reserved.pop(), False
        except IndexError:
            reserved, again = _Reserved(), True
        came = 0
        try:
            if stop is not None:
                self._throttle.wait_for(reserved, start, stop, stop if again or self._end is None else self._end)
            piece = ask(start, stop, version)
            came = len(piece.data)
            self._throttle.note_read(came)
            return piece
        finally:
            if again:
                self._throttle.return_unused(reserved, start + came)


class _Reserved:
    """The bytes of a file that a read has reserved: all that it will read, as soon as it knows how many there are.

    So bytes flow for the next piece while one comes, also where nobody else reads.
    """

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None
        self._place, self._stop = 0.0, 0
        """Where the reserved bytes end in the bucket, and in the file."""

    def reserve(self, bucket: TokenBucket, start: int, stop: int, now: float) -> None:
        """Reserve what is not reserved yet of the bytes from `start` to `stop`."""
        if bucket is not self._bucket:
            self._bucket, self._stop = bucket, start
        if stop > self._stop:
            self._place = bucket.reserve(stop - self._stop, now)
            self._stop = stop

    def wait_s(self, stop: int, now: float) -> float:
        """Return how long it takes until all bytes up to `stop` have flowed."""
        return 0.0 if self._bucket is None else self._bucket.wait_s(self._place - (self._stop - stop), now)

    def return_unused(self, start: int, now: float) -> None:
        """Give back what was reserved from `start` on."""
        if self._bucket is not None and self._stop > start:
            self._bucket.return_unused(self._stop - start, now)


throttle = Throttle()
"""That of this process."""
os.register_at_fork(after_in_child=throttle.reset_after_fork)


def limit_remote_io(bytes_per_s: float | None) -> None:
    """Let this process read no more than so many bytes a second from object stores; None: as fast as it can."""
    throttle.limit(bytes_per_s)


def remote_bytes() -> int:
    """Return how many bytes this process has read from object stores."""
    return throttle.nbytes
