"""Trying again after errors that pass: exponential backoff with full jitter."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """How often to try, and how long to wait between tries."""

    attempts: int = 7
    first_s: float = 0.1
    """Upper bound of the first pause; it doubles from one pause to the next."""
    longest_s: float = 10.0

    def pause_s(self, failures: int, chance: float) -> float:
        """Return the pause after so many failures: `chance` in [0, 1) of the bound.

        The whole range is drawn from, so that workers that were throttled together do not come back together.
        """
        return chance * min(self.longest_s, self.first_s * 2.0 ** (failures - 1))


@dataclass(frozen=True)
class Retrying:
    """A request that has failed and is being tried again."""

    path: str
    error: str
    """What was raised last, in words."""
    since: float
    """When it failed first, as `time.monotonic` told it."""


class RetryRegistry:
    """The requests of this process that are being tried again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._retrying: dict[int, Retrying] = {}
        """By the thread that waits."""

    @contextmanager
    def enclose(self) -> Iterator[Callable[[str, Exception], None]]:
        """Enclose the tries of one request by the calling thread; give what notes its failures."""
        me = threading.get_ident()

        def note(path: str, error: Exception) -> None:
            with self._lock:
                known = self._retrying.get(me)
                self._retrying[me] = Retrying(
                    path, f"{type(error).__name__}: {error}", known.since if known else time.monotonic()
                )

        try:
            yield note
        finally:
            with self._lock:
                self._retrying.pop(me, None)

    def longest(self) -> Retrying | None:
        """Return the request that has been tried again for longest; None if there is none."""
        with self._lock:
            return min(self._retrying.values(), key=lambda one: one.since, default=None)


retries = RetryRegistry()
"""What is being tried again in this process, for whoever tells of it."""


def retry(
    call: Callable[[], T],
    *,
    passes: Callable[[Exception], bool],
    path: str = "",
    backoff: Backoff = Backoff(),
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Return what `call` returns, trying again while it raises errors for which `passes` is true.

    `path` tells `retries` what is asked for.
    """
    with retries.enclose() as note:
        for failures in range(1, backoff.attempts):
            try:
                return call()
            except Exception as error:
                if not passes(error):
                    raise
                note(path, error)
            sleep(backoff.pause_s(failures, random.random()))
        return call()
