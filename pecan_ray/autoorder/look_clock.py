"""The time that a look takes: CPU time, with the wall clock beside it."""

from __future__ import annotations

import time

WALL_PER_CPU = 6.0
"""A look may take so many times its seconds by the wall clock: the machine has other work, or operators wait."""


class LookClock:
    """Seconds that a look has taken: of CPU time, of which other programs on the machine take none.

    Beside it runs the wall clock, `WALL_PER_CPU` times as slowly, so that what waits (for a lock, a CPU) ends.
    """

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def __call__(self) -> float:
        """Return the seconds since it was made."""
        return max(time.process_time() - self._cpu, (time.perf_counter() - self._wall) / WALL_PER_CPU)
