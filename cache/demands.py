"""What jobs want of a cluster's cache and of its pipe to remote storage, and what they are given: the words of SiloD.

A job reads each byte of its dataset once an epoch, in random order.  If c of its d bytes are cached (any of them: each
is read equally often) and b bytes a second come from remote storage, it reads

    f = min( f*, b / (1 - c / d) )        f*: what it would read if it never waited for data

so that a cached byte saves f* / d bytes a second of the pipe: the job's cache efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.cache.checked import checked_amount, checked_count
from pecan_ray.errors import PlanError


@dataclass(frozen=True)
class JobDemand:
    """A job that reads one dataset over and over."""

    name: str
    ideal_bytes_per_s: float
    """What it reads when it never waits for data: f*."""
    dataset_bytes: float
    dataset: str | None = None
    """Jobs that name the same one share what is cached of it; None: no other job reads it."""
    remaining_bytes: float | None = None
    """What it has still to read, for "sjf"; None: its dataset once."""
    gpus: int = 1
    """For "sjf", "coordl" and "quiver"."""
    cached_bytes: float | None = None
    """What is cached of its dataset now and will be found: caches fill during an epoch, and are of use in the next.
    It bounds what the pipe has to carry; None: all that the job is allotted is there."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"JobDemand(name=...) must be a non-empty string, but got {self.name!r}.")
        if self.dataset is not None and (not isinstance(self.dataset, str) or not self.dataset):
            raise PlanError(f"job {self.name!r}: dataset must be a non-empty string or None, but got {self.dataset!r}.")
        for field in ("ideal_bytes_per_s", "dataset_bytes"):
            checked_amount(f"job {self.name!r}: {field}", getattr(self, field), positive=True)
        for field in ("remaining_bytes", "cached_bytes"):
            if getattr(self, field) is not None:
                checked_amount(f"job {self.name!r}: {field}", getattr(self, field))
        checked_count(f"job {self.name!r}: gpus", self.gpus)

    @property
    def cache_efficiency(self) -> float:
        """Bytes a second of the pipe that a cached byte saves: f* / d."""
        return self.ideal_bytes_per_s / self.dataset_bytes


@dataclass(frozen=True)
class ClusterResources:
    """What all jobs share."""

    cache_bytes: float
    """Of all nodes together."""
    remote_io: float
    """Bytes a second that remote storage gives to all of them together."""
    gpus: int | None = None
    """Of the cluster, also those that are idle; None: as many as the jobs have."""

    def __post_init__(self) -> None:
        for field in ("cache_bytes", "remote_io"):
            checked_amount(f"ClusterResources({field}=...)", getattr(self, field), positive=True)
        if self.gpus is not None:
            checked_count("ClusterResources(gpus=...)", self.gpus)


@dataclass(frozen=True)
class Allocation:
    """What a job may use, and how fast it runs with it."""

    cache_bytes: float
    """Of its dataset; what jobs with one dataset share is said to each of them, and there once."""
    remote_io: float
    """Bytes a second that it may read from remote storage."""
    hit_share: float
    """Of its reads, what the cache serves."""
    bytes_per_s: float
    """What it reads in all."""


def silod_perf(ideal_bytes_per_s: float, remote_io: float, cache_bytes: float, dataset_bytes: float) -> float:
    """Return the bytes a second that a job reads: min(f*, b / (1 - c / d)).

    With the whole dataset cached it is the ideal speed, whatever the pipe; without cache what the pipe gives.
    """
    ideal = checked_amount("silod_perf(ideal_bytes_per_s=...)", ideal_bytes_per_s)
    pipe = checked_amount("silod_perf(remote_io=...)", remote_io, endless=True)
    cached = checked_amount("silod_perf(cache_bytes=...)", cache_bytes, endless=True)
    size = checked_amount("silod_perf(dataset_bytes=...)", dataset_bytes, positive=True)
    # Before the quotient, which would divide by zero.
    if cached >= size:
        return ideal
    return min(ideal, pipe / (1 - cached / size))
