"""The processes of a job: found by their titles, hurt by signals and limits, and looked for when it is over."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import ray

WORKER, CONTROLLER, KEEPER = "ray::PreprocessingWorker", "ray::AutoPlacementController", "ray::WorkerOwner"


def take_files(process: psutil.Process, spare: int) -> Callable[[], None]:
    """Leave a process so few descriptors beside those that it has open (EMFILE); return what gives them back."""
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.num_fds() + spare, hard))

    def end() -> None:
        with suppress(OSError):  # it has ended meanwhile
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))

    return end


def ours(title: str) -> list[psutil.Process]:
    """Return the processes with such a title that descend from this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(title) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def left_behind() -> list[str]:
    """Name actors and processes of ours, and memory files that any process of the cluster holds."""
    left = [f"actor {one['name']}" for one in ray.util.list_named_actors(all_namespaces=True)]
    left += [f"process {one.pid} {one.name()}" for title in (WORKER, CONTROLLER, KEEPER) for one in ours(title)]
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError, psutil.Error):
            links = [os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
            left += [f"{process.pid}: {link}" for link in links if "memfd:pecan-" in link]
    return left


def send_signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
