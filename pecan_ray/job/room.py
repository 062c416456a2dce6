"""What a cluster has room for, as a job that begins is told; and where there is room."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Placement: TypeAlias = Literal["local", "remote"]
DatasetRooms: TypeAlias = tuple[tuple[str, int], ...]
"""Datasets by their names, with the bytes of them that a node may keep."""


@dataclass(frozen=True)
class Room:
    """What the cluster offers a job."""

    host_cpus: tuple[float, ...]
    """CPUs of each trainer's node."""
    remote_cpus: tuple[float, ...]
    """CPUs of each node that remote workers may run on."""
