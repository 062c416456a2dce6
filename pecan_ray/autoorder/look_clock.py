"""The time that a look takes: of the CPUs, and of waiting."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

WALL_PER_CPU = 15.0
"""A look may take so many times its seconds by the wall clock.  What it finds must not depend on the load of a machine:
beside forty other programs on two CPUs it takes ten times as long."""
WAITING_PER_CPU = 3.0
"""So many seconds of waiting count as one of the CPU: a look whose functions wait (for a file, a lock, a server) ends
after a minute, and one whose storage is slow still reads its sample."""
STEP_S = 0.1
"""Waiting is counted in steps that are long beside the time that reading the counters takes."""
THREADS = Path("/proc/self/task")
"""Where Linux tells of each thread how long it was ready to run and had no CPU."""


class LookClock:
    """Seconds that a look has taken: those of the CPUs, and a third of those in which it waited.

    It does not wait while other programs have the CPU that it wants, as far as the system tells.
    """

    def __init__(self) -> None:
        self._started = self._wall = time.perf_counter()
        self._cpu_start = self._cpu = time.process_time()
        self._queued = _queued_s()
        self.waited_s = 0.0
        """Seconds in which nothing of this process wanted a CPU."""

    def __call__(self) -> float:
        """Return the seconds since it was made."""
        if time.perf_counter() - self._wall >= STEP_S:
            self._count_waiting()
        wall, cpu = time.perf_counter() - self._started, time.process_time() - self._cpu_start
        return max(cpu + self.waited_s / WAITING_PER_CPU, wall / WALL_PER_CPU)

    def _count_waiting(self) -> None:
        wall, cpu, queued = time.perf_counter(), time.process_time(), _queued_s()
        # Decision 143: time in line for a CPU is the machine's load, and what a look finds must not depend on that.
        busy = cpu - self._cpu + max(queued - self._queued, 0.0)  # threads that have ended are not counted any more
        self.waited_s += max(wall - self._wall - busy, 0.0)
        self._wall, self._cpu, self._queued = wall, cpu, queued


def _queued_s() -> float:
    """Return the seconds in which threads of this process were ready to run; 0 where the system does not tell."""
    total = 0
    with contextlib.suppress(OSError):
        for thread in THREADS.iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
                total += int((thread / "schedstat").read_text().split()[1])
    return total / 1e9
