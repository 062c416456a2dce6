"""How many CPUs this process can use: those that it may run on, or fewer by a quota of its container."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def whole_cpus() -> int:
    """Return the CPUs that this process can use, as a number of threads: one at least."""
    # Rounded down: the kernel stops a group of threads that has used up its quota until the next period
    # begins.
    return max(1, int(available_cpus()))


def available_cpus(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> float:
    """Return the CPUs that this process can use.

    Args:
        root: Where cgroups are mounted.
        own: The file that names those of this process.

    Returns:
        The number of CPUs in its affinity, or the least quota of its cgroups and of all that enclose them.
    """
    quotas = [quota for folder in cgroups_of("cpu", root, own) if (quota := _quota(folder)) is not None]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def cgroups_of(controller: str, root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> Iterator[Path]:
    """Yield the folders of this process's cgroup, and of those that enclose it, for a controller.

    In version 2 one tree has all controllers, in version 1 each has a tree.  A container may see its own cgroup as the
    top of a tree, while its path is that on the host: then only the top is there.
    """
    for line in (read_text(own) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        # Version 2 has one line without a controller's name, "0::/path", which stands for all of them.
        if controllers and controller not in controllers.split(","):
            continue
        top = _top(root, controllers, controller)
        inside = top / path.lstrip("/")
        # A quota of any enclosing group binds, too, so the whole path is looked at.
        for folder in (inside, *inside.parents):
            if folder.is_relative_to(top) and folder.is_dir():
                yield folder


def _top(root: Path, controllers: str, controller: str) -> Path:
    """Return where a tree is mounted; some systems name its controllers in another order than its folder does."""
    if not controllers:
        return root
    together = root / controllers
    return together if together.is_dir() else root / controller


def _quota(folder: Path) -> float | None:
    """Return the CPUs that a cgroup may use; None: as many as there are."""
    if limit := read_text(folder / "cpu.max"):
        quota, period = limit.split()
        return None if quota == "max" else int(quota) / int(period)
    first, second = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    # Version 1 writes -1 where there is no quota.
    if not first or not second or int(first) <= 0:
        return None
    return int(first) / int(second)


def read_text(path: Path) -> str | None:
    """Return what a file says; None if it is not there, or may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
