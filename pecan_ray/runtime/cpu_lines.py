"""For how long the threads of a process of this node stand in line for a CPU, as the kernel counts it.

Linux tells it of each thread, to anybody who may see the process.  Where it does not (other systems, kernels without
scheduler statistics, a process of another PID namespace), nothing is known, and silence counts in full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from pecan_ray.runtime.host_use import in_line_s


class TimeInLine(NamedTuple):
    """How long a process stood in line for a CPU, and of how long."""

    seconds: float
    of_s: float


class CpuLines:
    """What processes were last seen to have waited."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: dict[int, tuple[float, Mapping[int, float]]] = {}
        """Of each process: when it was looked at, and what each of its threads had waited."""

    def look(self, pid: int, *, again: bool) -> TimeInLine | None:
        """Return for how long the thread that stood in line longest did so since the last look; None: not known.

        `again`: the last look was in this silence.
        """
        at, now = self._clock(), waits_by_thread(pid)
        before = self._before.get(pid) if again else None
        self._before[pid] = at, now
        # Of a thread that came later nothing is known before: it may have waited in another silence.
        if not now or before is None:
            return None
        since, waited = before
        return TimeInLine(max([0.0, *(now[one] - waited[one] for one in now.keys() & waited.keys())]), at - since)


def waits_by_thread(pid: int) -> dict[int, float]:
    """Return for how many seconds each thread of a process has stood in line since it began; empty: not known."""
    try:
        threads = [int(one.name) for one in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return {}
    waits = {thread: in_line_s(thread, pid) for thread in threads}
    # One that ended meanwhile has none.
    return {thread: seconds for thread, seconds in waits.items() if seconds is not None}
