"""The command `pecan doctor`: what a machine and its Ray cluster lack for running jobs, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias, get_args

import ray

from pecan_ray.cache_options import SHARED_MEMORY
from pecan_ray.engines.available_cpus import whole_cpus
from pecan_ray.errors import PecanError
from pecan_ray.options import TransportChoice
from pecan_ray.runtime import cluster
from pecan_ray.transport.ring import ring_supported

PACKAGES = ("ray", "numpy", "pyarrow", "opencv-python-headless", "tensorflow", "torch", "boto3", "gcsfs")
LEAST_SHARED_BYTES = 256 << 20
"""A worker's ring, for whose batches there must be room."""
# Open files of a process, the usual limit of Linux; bytes that Ray's sessions need to begin with.
LEAST_DESCRIPTORS = 1024
# Ray's sessions write logs and spill objects there.
LEAST_FREE_BYTES = 1 << 30
ROWS = 64
"""Elements of an epoch that a transport carries: enough batches to use each slot again, in a second."""


Epoch: TypeAlias = Callable[[TransportChoice], tuple[int, Sequence[str]]]
"""Runs a small job over a transport; returns the elements that came, and by which ways."""


@dataclass(frozen=True)
class DiagnosticResult:
    """What one look has found."""

    what: str
    message: str
    suggestion: str = ""
    """What to do; empty: all is well."""

    def __str__(self) -> str:
        mark = "wrong" if self.suggestion else "ok"
        suggestion = f". {self.suggestion}" if self.suggestion else ""
        return f"{mark:6s}{self.what}: {self.message.rstrip('.')}{suggestion}"


def looks(epoch: Epoch | None) -> Iterator[DiagnosticResult]:
    """Yield what each look has found: at this machine, at Ray, and at each transport, which carries an epoch.

    `epoch`: None: this machine alone, and nothing is started.
    """
    yield DiagnosticResult("versions", f"Python {platform.python_version()}, {', '.join(_versions())}")
    yield cpus(whole_cpus(), os.cpu_count() or 1)
    yield shared_memory(*ring_supported(), free_bytes(SHARED_MEMORY))
    yield descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield temporary_folder(Path(tempfile.gettempdir()), free_bytes(Path(tempfile.gettempdir())))
    if epoch is None:
        return
    reached = _ray()
    yield reached
    if reached.suggestion:
        return
    for transport in get_args(TransportChoice):
        yield check_transport(transport, epoch)


def cpus(usable: int, present: int) -> DiagnosticResult:
    """Judge the CPUs that this process may use."""
    told = f"{usable} of {present} may be used"
    return DiagnosticResult(
        "CPUs", told, "" if usable > 1 else "Give the container or the batch job two or more of them."
    )


def shared_memory(supported: bool, why: str, free: int | None) -> DiagnosticResult:
    """Judge what batches travel through on one node."""
    if not supported:
        return DiagnosticResult(
            "shared memory", why, "Without it batches take the slower way through Ray's object store."
        )
    if free is None or free < LEAST_SHARED_BYTES:
        told = "there is no /dev/shm" if free is None else f"/dev/shm has {free >> 20} MiB free"
        return DiagnosticResult(
            "shared memory", told, "Give it some GiB (docker run --shm-size=4g): Ray needs it, too."
        )
    return DiagnosticResult("shared memory", f"{why}, /dev/shm has {free / (1 << 30):.1f} GiB free")


def descriptors(limit: int) -> DiagnosticResult:
    """Judge how many files a process may have open."""
    # No limit is -1 (RLIM_INFINITY).
    enough = limit < 0 or limit >= LEAST_DESCRIPTORS
    told = "as many as there are" if limit < 0 else f"{limit} for each process"
    return DiagnosticResult("open files", told, "" if enough else "Raise the limit before Ray starts: ulimit -n 65536.")


def temporary_folder(folder: Path, free: int | None) -> DiagnosticResult:
    """Judge where Ray's session and its spilled objects lie."""
    if free is None or not os.access(folder, os.W_OK):
        return DiagnosticResult("temporary files", f"{folder} cannot be written", "Set TMPDIR and RAY_TMPDIR.")
    told = f"{folder} has {free / (1 << 30):.1f} GiB free"
    enough = free >= LEAST_FREE_BYTES
    return DiagnosticResult("temporary files", told, "" if enough else "Make room: Ray's sessions lie there.")


def check_transport(transport: TransportChoice, epoch: Epoch) -> DiagnosticResult:
    """Have a transport carry an epoch, and judge what came and by which way."""
    what, started = f"transport {transport}", time.perf_counter()
    try:
        rows, ways = epoch(transport)
    except PecanError as error:
        return DiagnosticResult(what, error.message, "Until then choose another one: Config(transport=...).")
    told = f"{rows} elements in {time.perf_counter() - started:.1f} s, {'; '.join(ways)}"
    if rows != ROWS:
        return DiagnosticResult(what, f"{told}, of {ROWS}", "That must not be: please report it, with this output.")
    return DiagnosticResult(what, told)


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes of a folder's disk; None: there is no such folder."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _versions() -> Iterator[str]:
    for name in ("pecan_ray", *PACKAGES):
        # tensorflow-cpu is TensorFlow too.
        for to_str in (name, f"{name}-cpu"):
            with contextlib.suppress(PackageNotFoundError):
                yield f"{name} {version(to_str)}"
                break
        else:
            yield f"no {name}"


def _ray() -> DiagnosticResult:
    try:
        started = cluster.attach()
    except PecanError as error:
        return DiagnosticResult("Ray", error.message, "Correct that first: nothing else can be looked at.")
    told_by_ray: Any = ray
    nodes = sum(node["Alive"] for node in told_by_ray.nodes())
    total_cpus = told_by_ray.cluster_resources().get("CPU", 0)
    where = "none ran here, so one was started for this look" if started else ray.get_runtime_context().gcs_address
    told = f"{where}; {nodes} node(s), {total_cpus:g} CPUs, RAY_AUTH_MODE={os.environ.get('RAY_AUTH_MODE', '')}"
    if not total_cpus:
        return DiagnosticResult("Ray", told, "Start a node with CPUs: workers need them.")
    return DiagnosticResult("Ray", told)
