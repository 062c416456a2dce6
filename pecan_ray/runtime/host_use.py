"""What a process may use of its node, and uses: CPUs, memory, and its threads' time in line for a CPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pecan_ray.engines.available_cpus import CGROUPS, OWN_CGROUPS, available_cpus, cgroups_of, read_text
from pecan_ray.job.room import HostUse

UNLIMITED = 1 << 60
"""Bytes from which on a bound on memory is none: cgroup v1 writes a number near 2**63."""


def host_use(thread: int | None = None) -> HostUse:
    """Return what this process may use of its node, and uses; `thread`: the native number of the training loop's."""
    return HostUse(available_cpus(), free_memory(), time.process_time(), None if thread is None else in_line_s(thread))


def free_memory(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int | None:
    """Return the bytes of memory that are left to the node, or fewer by a bound on any of the process's cgroups."""
    left = [free for folder in cgroups_of("memory", root, own) if (free := _left(folder)) is not None]
    return min([*left, *_available()], default=None)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had, mapped shared memory included; 0: not known."""
    # Not `getrusage`, which counts what the process was before it became this program.
    lines = (read_text(Path("/proc/self/status")) or "").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


# Why this time counts: docs/decisions/placement.md#126-steer-by-the-load, point 6
def in_line_s(thread: int, process: int | Literal["self"] = "self") -> float | None:
    """Return for how many seconds a thread of a process has been ready to run without a CPU; None: not known."""
    text = read_text(Path(f"/proc/{process}/task/{thread}/schedstat"))
    # Three numbers: nanoseconds on a CPU, nanoseconds in line for one, and time slices.
    return int(text.split()[1]) / 1e9 if text else None


def _left(folder: Path) -> int | None:
    # The names of cgroup v2, and then those of v1.
    for bound, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        most, now = read_text(folder / bound), read_text(folder / used)
        if most and now and most != "max" and int(most) < UNLIMITED:
            return max(0, int(most) - int(now))
    return None


def _available() -> list[int]:
    lines = (read_text(Path("/proc/meminfo")) or "").splitlines()
    return [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
