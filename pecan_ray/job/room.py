"""What a cluster has room for, as a job that begins is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """What the cluster offers a job."""

    host_cpus: tuple[float, ...]
    """CPUs of each trainer's node."""
    remote_cpus: tuple[float, ...]
    """CPUs of each node that remote workers may run on."""
