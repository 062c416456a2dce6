"""CPU time and memory of a process and all its descendants, and of the machine, from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RAY_DAEMONS = (
    "/core/src/ray/",
    "/_private/",
    "/dashboard/",
    "ray::DashboardAgent",
    "ray::RuntimeEnvAgent",
)
"""Parts of the command lines of Ray's own processes, which work for every job of a node."""


@dataclass(frozen=True)
class Process:
    """What /proc/PID/stat tells."""

    parent: int
    cpu_s: float
    """User and system time, that of children that ended and were waited for included."""


@dataclass(frozen=True)
class TreeMemory:
    """Proportional set sizes in bytes: memory that several processes map is divided among them."""

    total: int
    daemons: int
    """Of which Ray's own processes."""
    worker: int
    """Memory of the largest worker of Ray, without what it shares with the trainer."""


def processes() -> dict[int, Process]:
    """Return all processes of the machine by id."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            found[int(entry)] = _parsed(text)
    return found


def _parsed(stat: str) -> Process:
    # The name stands in parentheses and may hold spaces and parentheses itself.
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_S)


def descendants(root: int, found: dict[int, Process]) -> set[int]:
    """Return a process and all that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for pid, process in found.items():
        children.setdefault(process.parent, []).append(pid)
    tree, todo = set(), [root] if root in found else []
    while todo:
        pid = todo.pop()
        tree.add(pid)
        todo += children.get(pid, [])
    return tree


def cpu_seconds(root: int, found: dict[int, Process]) -> float:
    """Return the CPU time of a process tree so far; differences count processes that ended in between, too."""
    return sum(found[pid].cpu_s for pid in descendants(root, found))


def machine_seconds() -> tuple[float, float]:
    """Return the CPU time at work since the machine started, what its host took away included, and the idle time."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / TICKS_PER_S, idle / TICKS_PER_S


def memory(pids: Iterable[int]) -> TreeMemory:
    """Return the memory of some processes."""
    total = daemons = worker = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            command = Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue  # it ended meanwhile
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in rollup.splitlines()[1:]}
        total += sizes["Pss"]
        if any(part in command for part in RAY_DAEMONS):
            daemons += sizes["Pss"]
        elif command.startswith("ray::"):
            worker = max(worker, sizes["Pss"] - sizes.get("Pss_Shmem", 0))
    return TreeMemory(total, daemons, worker)
