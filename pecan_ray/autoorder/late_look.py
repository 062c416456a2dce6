"""A look that goes on beside its job, and ends with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class JobEnd:
    """The end of a job, and what ends with it; both can come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards what ends with the job, and whether it is over."""
        self._ending: list[Callable[[], None]] = []
        self._over = False

    def finish(self) -> None:
        """End what was to end; once."""
        with self._lock:
            self._over = True
            ending, self._ending = self._ending, []
        # Outside of the lock: an end may take long.
        for end in ending:
            end()

    @contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """Call this at the end, if that comes in the meantime or has come."""
        with self._lock:
            over = self._over
            self._ending += [] if over else [end]
        if over:
            end()
        try:
            yield
        finally:
            with self._lock:
                self._ending = [one for one in self._ending if one is not end]


def begin_look(look: Callable[[], T]) -> Future[T]:
    """Return what a look is about to find, in a thread of its own which does not keep the program from ending."""
    found = Future[T]()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:  # who asks for the result gets it
            found.set_exception(error)

    threading.Thread(target=run, name="pecan-look", daemon=True).start()
    return found
