"""How fast this process reads from object stores: its share of the job's quota, which may change at any time.

A read waits for its bytes before it asks for them, not while they come: no connection is held open meanwhile.  Large
reads are made in pieces, so that bytes come as evenly as they are allowed to.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from pecan_ray.storage.hedged_reads import AskRange, Charged
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.retry import UnwantedError, pause
from pecan_ray.storage.token_bucket import TokenBucket

PIECE_S = 0.1
"""A piece is what may be read in this time,"""
LEAST_PIECE = 16 << 10
"""at least so many bytes,"""
MOST_PIECE = 8 << 20
"""and at most so many."""
LOOK_S = 0.1
"""Whoever waits sees a change of the quota after this time."""


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

    def forked(self) -> None:
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
        hedged: Callable[[AskRange, int, int | None, str, Charged], FileRange] | None = None,
    ) -> FileRange:
        """Return what `ask` gives of bytes `start` to `stop` (None: to the end), as fast as the quota allows.

        All pieces are of the version that is given, or else of that which the first one has told.  `hedged` makes the
        requests of a piece, of which each is charged to the quota; None: there is one.
        """
        parts: list[bytes] = []
        at = start
        while True:
            most = self._piece()
            end = stop if most is None else at + most if stop is None else min(at + most, stop)
            within = self._within
            piece = within(ask, at, end, version) if hedged is None else hedged(ask, at, end, version, within)
            parts.append(piece.data)
            at += len(piece.data)
            version = version or piece.version
            if not piece.data or at >= (piece.size if stop is None else min(stop, piece.size)):
                return piece if len(parts) == 1 else FileRange(b"".join(parts), piece.size, piece.version)

    def _piece(self) -> int | None:
        """Return how many bytes are to be asked for at a time; None: all of them."""
        rate = self.bytes_per_s
        return None if rate is None else max(LEAST_PIECE, min(MOST_PIECE, int(rate * PIECE_S)))

    def _within(self, ask: AskRange, start: int, stop: int | None, version: str) -> FileRange:
        """Ask for a piece once it may be read; what it is shorter than expected may be read by others."""
        reserved = 0 if stop is None else stop - start
        bucket = self._wait_for(reserved)
        came = 0
        try:
            piece = ask(start, stop, version)
            came = len(piece.data)
        finally:
            with self._lock:
                self._nbytes += came
                if bucket is not None:
                    bucket.give_back(reserved - came, self._clock())
        return piece

    def _wait_for(self, nbytes: int) -> TokenBucket | None:
        """Wait until so many bytes may be read; return what they were reserved from, None without a quota."""
        with self._lock:
            bucket = self._bucket
            if bucket is None:
                return None
            place = bucket.reserve(nbytes, self._clock())
        while True:
            with self._lock:
                # Where the quota was lifted meanwhile, nobody need wait any more.
                wait_s = bucket.wait_s(place, self._clock()) if self._bucket is bucket else 0.0
            if wait_s <= 0:
                return bucket
            try:
                self._sleep(min(wait_s, LOOK_S))
            except UnwantedError:
                with self._lock:
                    bucket.give_back(nbytes, self._clock())
                raise


throttle = Throttle()
"""That of this process."""
os.register_at_fork(after_in_child=throttle.forked)


def limit_remote_io(bytes_per_s: float | None) -> None:
    """Let this process read no more than so many bytes a second from object stores; None: as fast as it can."""
    throttle.limit(bytes_per_s)


def remote_bytes() -> int:
    """Return how many bytes this process has read from object stores."""
    return throttle.nbytes
