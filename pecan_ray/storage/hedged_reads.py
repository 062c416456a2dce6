"""Reads of object stores of which the latest are asked for a second time: the first answer is taken.

The request that has lost is let run to its end, which is bounded by the store's timeouts, and is not tried again if it
fails.  Each of the two waits for the process's quota, and its bytes count.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol, TypeAlias

from pecan_ray.storage.hedging import HedgeBudget, LateRead, decide_hedge, late_after
from pecan_ray.storage.ranges import FileRange
from pecan_ray.storage.retry import retries, retry_limits, unless_given_up
from pecan_ray.storage.threads import RequestThreads

AskRange: TypeAlias = Callable[[int, "int | None", str], FileRange]
"""Asks the store for bytes from one place to another (None: to the end) of a version."""

LATEST = 128
"""Reads of a size by which is told what is late."""
LOOK_EVERY = 16
"""After so many reads of a size it is told anew what is late: it takes a hundredth of a millisecond."""
# Twice the 2 x 16 requests of a process (`access.THREADS`), each made twice, as losers run to their end.
THREADS = 128
"""Requests that are watched at a time; others wait for one of them to end."""


class QuotaRequest(Protocol):
    """Makes a request once the quota allows it."""

    def __call__(self, ask: AskRange, start: int, stop: int | None, version: str, /) -> FileRange:
        """Return what `ask` gives."""
        ...


class HedgeCount(NamedTuple):
    """Of the reads of a process."""

    twice: int = 0
    """Reads that were asked for twice."""
    won: int = 0
    """Reads of which the second request was answered first."""


@dataclass
class _LatencyWindow:
    """The latest reads of one size, of one bucket."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    nbytes: float = 0.0
    """Mean of all of them, the newest ones most."""
    late_s: float | None = None
    reads: int = 0


@dataclass
class _Flight:
    """One request for a range."""

    ask: AskRange
    clock: Callable[[], float]
    started: float | None = None
    """When the store was asked: the quota is waited for before that."""
    thread: int = 0

    def __call__(self, start: int, stop: int | None, version: str) -> FileRange:
        self.thread, self.started = threading.get_ident(), self.clock()
        return self.ask(start, stop, version)

    def waited_s(self) -> float:
        """Return how long the store has been asked."""
        return 0.0 if self.started is None else self.clock() - self.started


class _RequestResult(NamedTuple):
    flight: _Flight
    file_range: FileRange | None
    error: BaseException | None

    def result(self) -> FileRange:
        """Return the range, or raise what the request failed with."""
        if self.file_range is None:
            assert self.error is not None
            raise self.error
        return self.file_range


class HedgedReads:
    """The reads of one process, which must not be used by a forked child."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._threads = RequestThreads(THREADS)
        self._lock = threading.Lock()
        """Guards all below."""
        self._latency_windows: defaultdict[tuple[str, int], _LatencyWindow] = defaultdict(_LatencyWindow)
        """By bucket and size."""
        self._budget = HedgeBudget()
        self._under_way = 0
        self.count = HedgeCount()

    def read(
        self, path: str, ask: AskRange, start: int, stop: int | None, version: str, charged: QuotaRequest
    ) -> FileRange:
        """Return a range of an object, asked for twice where it is late."""
        lately = self._of_size(path, None if stop is None else stop - start)
        flight = _Flight(ask, self._clock)
        # Decision 72: a thread that waits for a socket cannot look at a clock, so a watched read takes another thread.
        # That costs 0.1 ms of CPU, so it begins only when it is known what is late.
        if lately.late_s is None:
            piece = charged(flight, start, stop, version)
        else:
            piece = self._first_of_two(lately, flight, lately.late_s, lambda one: charged(one, start, stop, version))
        self._note_read(lately, flight.waited_s(), len(piece.data))
        return piece

    def _of_size(self, path: str, nbytes: int | None) -> _LatencyWindow:
        bucket = "/".join(path.split("/", 3)[:3])
        with self._lock:
            # Decision 72: sizes by powers of two, because large reads are no late small ones.
            return self._latency_windows[bucket, -1 if nbytes is None else nbytes.bit_length()]

    def _note_read(self, lately: _LatencyWindow, seconds: float, nbytes: int) -> None:
        """Note how long a read took, were it not for a second request."""
        with self._lock:
            # Decision 72: also of those that a second request has won.
            # So a store that becomes slow as a whole makes its own measure.
            lately.seconds.append(seconds)
            lately.nbytes += (nbytes - lately.nbytes) / len(lately.seconds)
            lately.reads += 1
            if lately.reads % LOOK_EVERY == 0:
                lately.late_s = late_after(lately.seconds)
            self._budget = self._budget.after_read(nbytes)

    def _first_of_two(
        self, lately: _LatencyWindow, first: _Flight, late_s: float, request: Callable[[_Flight], FileRange]
    ) -> FileRange:
        landed: SimpleQueue[_RequestResult] = SimpleQueue()
        over, left = threading.Event(), [first]
        # Those of the calling thread: the threads that make the requests have none of their own.
        given_up, patience_s = retry_limits()

        def run(flight: _Flight, patience_s: float) -> None:
            piece: FileRange | None = None
            failure: BaseException | None = None
            try:
                with unless_given_up(over, *given_up, patience_s=patience_s):
                    piece = request(flight)
            except BaseException as error:
                failure = error
            landed.put(_RequestResult(flight, piece, failure))
            with self._lock:
                left.remove(flight)
                # Both have landed: a loser still loads the store, so its pair counts until then.
                self._under_way -= twice and not left

        twice, look_s, expected = False, late_s, 0.0
        self._threads.start(partial(run, first, patience_s))
        while True:
            try:
                got = landed.get(timeout=None if twice else look_s)
            except Empty:
                read = LateRead(first.waited_s(), lately.nbytes, retries.failing(first.thread))
                with self._lock:
                    decision = decide_hedge(read, late_s, self._budget, late_together=self._under_way)
                    look_s = decision.look_s
                    # The first one may have landed since the queue was looked at: its answer comes with the
                    # next look.
                    if not decision.retry or first not in left:
                        continue
                    twice, second = True, _Flight(first.ask, self._clock)
                    left.append(second)
                    self._under_way += 1
                    expected = lately.nbytes
                    self._budget = self._budget.consume(expected)
                    self.count = self.count._replace(twice=self.count.twice + 1)
                # Decision 72: not tried again at all.  Where the store fails, more requests make it worse.
                self._threads.start(partial(run, second, 0.0))
                continue
            # What the second request fails with is nobody's error.
            if got.file_range is not None or got.flight is first:
                break
        # Decision 72: the other request is not cancelled, which boto3 and gcsfs cannot do safely from here.
        over.set()
        piece = got.result()
        with self._lock:
            if twice:
                self._budget = self._budget.corrected(expected, len(piece.data))
            self.count = self.count._replace(won=self.count.won + (got.flight is not first))
        return piece
