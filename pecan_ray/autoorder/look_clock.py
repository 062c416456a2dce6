"""The time that a look takes: CPU time, with the wall clock beside it; and a look that goes on beside its job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

WALL_PER_CPU = 15.0
"""A look may take so many times its seconds by the wall clock, which ends operators that wait.  What a look finds
must not depend on the load of a machine: beside forty other programs on two CPUs it takes ten times as long."""


class LookClock:
    """Seconds that a look has taken: of CPU time, of which other programs on the machine take none.

    Beside it runs the wall clock, `WALL_PER_CPU` times as slowly, so that what waits (for a lock, a CPU) ends.
    """

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def __call__(self) -> float:
        """Return the seconds since it was made."""
        return max(time.process_time() - self._cpu, (time.perf_counter() - self._wall) / WALL_PER_CPU)


def begun(look: Callable[[], T]) -> Future[T]:
    """Begin a look in a thread of its own, which does not keep the program from ending."""
    found = Future[T]()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:  # who asks for the result gets it
            found.set_exception(error)

    threading.Thread(target=run, name="pecan-look", daemon=True).start()
    return found
