"""What a cluster has room for, as a job that begins is told; and where there is room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Placement: TypeAlias = Literal["local", "remote"]
DatasetRooms: TypeAlias = tuple[tuple[str, int], ...]
"""Datasets by their names, with the bytes of them that a node may keep."""


@dataclass(frozen=True)
class StorageLimits:
    """What a job may have of stores and disks that jobs share."""

    remote_io: float | None = None
    """Bytes a second that all of its workers together may read of object stores; None: as many as they can."""
    cache_limits: DatasetRooms = ()
    """What their nodes may keep of each dataset; empty: nobody bounds that."""
    pool_nodes: int = 1
    """Nodes that keep blocks together; 1: each keeps its own."""


@dataclass(frozen=True)
class Room:
    """What the cluster offers a job."""

    host_cpus: tuple[float, ...]
    """CPUs of each trainer's node."""
    remote_cpus: tuple[float, ...]
    """CPUs of each node that remote workers may run on."""


@dataclass(frozen=True)
class HostUse:
    """What a trainer's process may use of its node, and uses, as it measures itself; None: it cannot be measured."""

    cpus: float | None = None
    """CPUs that it may use: its affinity, or the least quota of its cgroups."""
    memory_bytes: int | None = None
    """Memory that is left to it and its node."""
    cpu_s: float = 0.0
    """CPU seconds of its process so far."""
    in_line_s: float | None = None
    """Seconds in which the training loop's thread stood in line for a CPU so far."""
