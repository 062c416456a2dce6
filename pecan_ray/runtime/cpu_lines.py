"""For how long the threads of a process of this node stand in line for a CPU, as the kernel counts it.

Linux tells it of each thread, to anybody who may see the process.  Where it does not (other systems, kernels without
scheduler statistics, a process of another PID namespace), nothing is known, and silence counts in full.
"""

from __future__ import annotations

from pathlib import Path

NS_PER_S = 1e9
WAITED = 1
"""Place of the nanoseconds in line among the three numbers of /proc/PID/task/TID/schedstat."""


class CpuLines:
    """What processes were last seen to have waited."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, int]] = {}
        """Of each process, by thread."""

    def look(self, pid: int, *, again: bool) -> float | None:
        """Return for how long the thread that stood in line longest did so since the last look; None: not known.

        `again`: the last look was in this silence.
        """
        now, before = waited_ns(pid), self._before.get(pid) if again else None
        self._before[pid] = now
        # Of a thread that came later nothing is known before: it may have waited in another silence.
        if not now or before is None:
            return None
        return max([0, *(now[thread] - before[thread] for thread in now.keys() & before.keys())]) / NS_PER_S


def waited_ns(pid: int) -> dict[str, int]:
    """Return how long each thread of a process has stood in line since it began; empty: not known."""
    found = {}
    for thread in _threads(pid):
        try:
            found[thread.name] = int((thread / "schedstat").read_text().split()[WAITED])
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile, or this kernel does not count
    return found


def _threads(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
