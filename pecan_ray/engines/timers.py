"""Timing short calls on a machine that others use too."""

from __future__ import annotations

import time

try:
    import resource

    _THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
except ImportError:
    _THREAD = None


LEAST_SHARE = 0.05
"""Of a measured time that remains when the overhead of the call is taken off."""


class ThreadTimer:
    """Seconds of a call in this thread, without those in which another process had the core.

    A thread that never waits of its own accord takes its CPU time; whatever its wall clock shows beyond that was
    taken from it.  One that waits (for a file, a lock, other threads at work for it) takes the wall-clock time.
    """

    def start(self) -> None:
        """Begin."""
        self._switches = _thread_switches()
        # The wall clock is read last here and first in `stop`, so that it holds as little of these calls as
        # can be.
        self._cpu = time.thread_time()
        self._wall = time.perf_counter()

    def stop(self) -> float:
        """Return the seconds since `start`."""
        wall = time.perf_counter() - self._wall
        cpu = time.thread_time() - self._cpu
        # Switches that the system forces are not counted among these, so a busy machine does not look like
        # waiting.
        waited = _THREAD is None or _thread_switches() != self._switches
        return wall if waited else min(wall, cpu)


def _thread_switches() -> int:
    """Return how often this thread has given up its core of its own accord."""
    return int(resource.getrusage(_THREAD).ru_nvcsw) if _THREAD is not None else 0


class ProcessTimer:
    """Seconds of a call that spreads over threads: the CPU time of all of them, which is what throughput costs.

    What they wait for does not count: of a wall clock nobody can tell whether other programs had the CPUs.
    """

    def __init__(self, overhead_s: float = 0.0) -> None:
        self._overhead_s = overhead_s
        """What a call costs by itself, and would not within the engine."""

    def start(self) -> None:
        """Begin."""
        self._started = time.process_time()

    def stop(self) -> float:
        """Return the seconds since `start`."""
        spent = time.process_time() - self._started
        return max(spent - self._overhead_s, LEAST_SHARE * spent)
