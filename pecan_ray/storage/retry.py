"""Trying again after errors that pass: exponential backoff with full jitter, for a time and not a number of tries.

An outage of a storage is waited out.  One that lasts longer than the patience of this process is a
`StorageOutageError`, which no `on_error` takes for a bad element.

Decisions: docs/decisions/storage.md.
"""

from __future__ import annotations

import logging
import math
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from pecan_ray.errors import StorageOutageError, describe_error, strip_credentials

logger = logging.getLogger("pecan_ray.storage")

T = TypeVar("T")
Doing: TypeAlias = Literal["read", "write", "remove"]
"""What is asked of a storage."""
DONE: dict[Doing, str] = {"read": "read", "write": "written", "remove": "removed"}

LOOK_S = 0.1
"""Whoever pauses, and may be given up by several, looks so often: nobody notices a tenth of a second behind a pause of
one."""
SAY_AFTER_S = 5.0
"""What has been tried again for so long is told, as every wait is."""
SAY_AGAIN_S = 60.0
"""It is told again after this time, if there still is something: once a minute fills no log."""


class RequestCancelledError(Exception):
    """Nobody wants any more what was asked for.  No reader meets it."""


@dataclass(frozen=True)
class Backoff:
    """How long to try, and how long to wait between tries."""

    # Decision 27: time, and no number of tries: a burst of 503 that lasted 2 s has ended a job after seven tries.
    patience_s: float = 300.0
    """From the first failure on."""
    first_s: float = 0.1
    """Upper bound of the first pause; it doubles from one pause to the next."""
    longest_s: float = 10.0
    """Upper bound of any pause: so long is idle, at most, what an outage has stopped that is over."""

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the pause after so many failures: `chance` in [0, 1) of the bound.

        The whole range is drawn from, so that workers that were throttled together do not come back together.
        """
        # Beyond 64 doublings every bound is reached, and floats end at 1,024.
        return chance * min(self.longest_s, self.first_s * 2.0 ** min(failures - 1, 64))


@dataclass(frozen=True)
class Retrying:
    """A request that has failed and is being tried again."""

    path: str
    """As it may be shown."""
    error: str
    """What was raised last, in words."""
    since: float
    """When it failed first, as the clock told it."""
    operation: Doing = "read"


class RetryRegistry:
    """The requests of this process that are being tried again."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        """`tell` is given a text when a request has been tried again for long; not for each of many."""
        self.tell = tell
        self._lock = threading.Lock()
        """Guards all below."""
        self._retrying: dict[int, Retrying] = {}
        """By the thread that waits."""
        self._say_from = float("-inf")
        """Nothing more is told before."""

    @contextmanager
    def track_attempts(self) -> Iterator[Callable[[Retrying], None]]:
        """Enclose the tries of one request by the calling thread; give what notes its failures."""
        me = threading.get_ident()

        def note(retrying: Retrying) -> None:
            with self._lock:
                self._retrying[me] = retrying

        try:
            yield note
        finally:
            with self._lock:
                self._retrying.pop(me, None)

    def failing(self, thread: int) -> bool:
        """Tell whether a thread is trying a request again."""
        with self._lock:
            return thread in self._retrying

    def longest(self) -> Retrying | None:
        """Return the request that has been tried again for longest; None if there is none."""
        with self._lock:
            return min(self._retrying.values(), key=lambda one: one.since, default=None)

    def say(self, retrying: Retrying, now: float, next_try: float, patience_s: float) -> None:
        """Tell of a request that will have failed for long before it is tried again."""
        if self.tell is None or next_try - retrying.since < SAY_AFTER_S:
            return
        with self._lock:
            if now < self._say_from:
                return
            # Decision 27: one message a minute for all requests of a process, because an outage meets many of them.
            self._say_from = now + SAY_AGAIN_S
        self.tell(
            f"{retrying.path} cannot be {DONE[retrying.operation]} and is tried again, for {patience_s:.0f} s at most "
            f"(Config(storage_patience_s=...)): {retrying.error}"
        )


retries = RetryRegistry(logger.warning)
"""What is being tried again in this process, for whoever tells of it."""


@dataclass
class _Patience:
    """How long this process tries."""

    seconds: float = Backoff.patience_s
    at_most: float = math.inf


_patience = _Patience()


def set_patience(seconds: float) -> None:
    """Let requests of this process that begin from now on be tried again for so long."""
    _patience.seconds = seconds


@contextmanager
def patience_at_most(seconds: float) -> Iterator[None]:
    """Let this process try no longer than so long for a while: for what is not worth waiting out an outage."""
    before, _patience.at_most = _patience.at_most, seconds
    try:
        yield
    finally:
        _patience.at_most = before


_thread = threading.local()


@contextmanager
def unless_given_up(*given_up: threading.Event, patience_s: float = math.inf) -> Iterator[None]:
    """Let retries by this thread end with RequestCancelledError as soon as any event says that nobody wants them.

    `patience_s`: they last no longer than that, whatever the process's patience.
    """
    if any(event.is_set() for event in given_up):
        raise RequestCancelledError
    _thread.given_up, _thread.patience_s = given_up, patience_s
    try:
        yield
    finally:
        del _thread.given_up, _thread.patience_s


def retry_limits() -> tuple[tuple[threading.Event, ...], float]:
    """Return what ends the retries of this thread: the events, and its patience, as another one may take them over."""
    return getattr(_thread, "given_up", ()), getattr(_thread, "patience_s", math.inf)


def pause(seconds: float) -> None:
    """Sleep, in a thread whose wishes may be given up: then it raises RequestCancelledError."""
    given_up, _ = retry_limits()
    if not given_up:
        time.sleep(seconds)
        return
    until = time.monotonic() + seconds
    while not any(event.is_set() for event in given_up):
        left = until - time.monotonic()
        if left <= 0:
            return
        # A thread cannot wait for several events at a time.
        given_up[0].wait(left if len(given_up) == 1 else min(left, LOOK_S))
    raise RequestCancelledError


def tell_elsewhere() -> None:
    """Leave it to this process's owner to tell what is tried again for long: it looks at `retries`."""
    retries.tell = None


def retry(
    call: Callable[[], T],
    *,
    passes: Callable[[Exception], bool],
    path: str = "",
    doing: Doing = "read",
    backoff: Backoff | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = pause,
    registry: RetryRegistry = retries,
) -> T:
    """Return what `call` returns, trying again while it raises errors for which `passes` is true.

    Raises StorageOutageError when the patience is over: `backoff`'s, or that of the process and of the thread.  `path`
    tells `registry` what is asked for.
    """
    backoff = backoff or Backoff(min(_patience.seconds, _patience.at_most, getattr(_thread, "patience_s", math.inf)))
    first: float | None = None
    failures = 0
    with registry.track_attempts() as note:
        while True:
            try:
                return call()
            except Exception as error:
                if not passes(error):
                    raise
                now, failures = clock(), failures + 1
                first = now if first is None else first
                left = first + backoff.patience_s - now
                # Decision 166: what is told of a request shows no user information and no query.
                retrying = Retrying(strip_credentials(path), strip_credentials(describe_error(error)), first, doing)
                if left <= 0:
                    raise _outage(retrying, path, failures, now - first) from error
                note(retrying)
                # A last try comes just when the patience ends, and not up to ten seconds before.
                pause = min(backoff.pause_s(failures, random.random()), left)
                registry.say(retrying, now, now + pause, backoff.patience_s)
            # Behind the `except`: what is raised when the request is given up is not chained to its last
            # failure.
            sleep(pause)


def is_cert_error(error: BaseException | None) -> bool:
    """Say whether what lies behind an error is a certificate that is not trusted, which does not pass."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        # botocore and aiohttp wrap it, some layers deep.
        error = error.__cause__ or error.__context__
    return False


def _outage(failed: Retrying, path: str, tries: int, seconds: float) -> StorageOutageError:
    return StorageOutageError(
        f"{failed.path} could not be {DONE[failed.operation]}: the storage failed {tries} times within {seconds:.0f} "
        "s, at "
        f"last with {failed.error}. Check the network and the store's state; Config(storage_patience_s=...) says how "
        "long an outage is waited out.",
        path=path,
        tries=tries,
    )
