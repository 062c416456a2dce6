"""User options of caches, and of what jobs of a cluster share."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from pecan_ray.errors import PlanError
from pecan_ray.plan.option_types import of_kind, settle
from pecan_ray.user_files import user_cache_folder

SharingPolicy: TypeAlias = Literal["greedy", "sjf", "max_min"]

# Bytes.
MIB, GIB = 1 << 20, 1 << 30
SHARED_MEMORY = Path("/dev/shm")
LEAST_SOURCE_BYTES = 64 * MIB
"""There a sixteenth, which goes at a time, is some blocks."""


@dataclass(frozen=True)
class Cache:
    """Location and size of the caches that a job uses on each node."""

    path: str | os.PathLike[str] | None = None
    """Folder of `autocache` entries on the node's disk; None: ``pecan_ray/cache`` in the user's cache folder."""
    max_bytes: int = 32 * GIB
    """Maximum bytes on disk.  When the cache is full, entries that save the least time per byte are evicted first."""
    memory_bytes: int = 0
    """Bytes of the node's shared memory for entries that were read from the disk once; 0: none.  The memory stays in
    use after the job, until ``pecan cache rm`` or a restart of the machine."""
    remote: str | os.PathLike[str] | None = None
    """Store that all machines share: ``s3://bucket/prefix``, ``gs://bucket/prefix``, or a folder that all machines
    have mounted; None: no shared store.  Its entries are never evicted automatically."""

    source_bytes: int = 0
    """Bytes of the disk for raw blocks of buckets, which all jobs and workers of the node share; 0: none."""
    digests: Sequence[str | os.PathLike[str]] = ()
    """Digest files (``pecan cache digest``): blocks of buckets are verified against them, and cached by content."""
    spread: bool = False
    """True: each block of a bucket is cached on one node, and the other nodes fetch it from there.  False: each node
    caches the blocks that it reads itself."""
    cached_first: bool = True
    """If several jobs on a node read the same shuffled data, each job first reads what is already cached."""

    @property
    def memory_folder(self) -> Path | None:
        """Folder of the entries in shared memory; None: memory is not used."""
        if not self.memory_bytes or not SHARED_MEMORY.is_dir():
            return None
        # By the folder on the disk, so that jobs which share that one share the memory too.
        name = hashlib.blake2b(os.fsencode(self.folder.absolute()), digest_size=8).hexdigest()
        return SHARED_MEMORY / f"pecan-cache-{os.geteuid()}-{name}"

    @property
    def folder(self) -> Path:
        """Folder of the entries on disk."""
        if self.path is not None:
            return Path(self.path)
        return user_cache_folder("cache")

    @property
    def source_folder(self) -> Path:
        """Folder of the raw blocks of buckets."""
        return self.folder / "source"

    @property
    def remote_url(self) -> str | None:
        """URL of the shared store without a trailing slash; None: no shared store."""
        return None if self.remote is None else os.fspath(self.remote).rstrip("/")

    def __post_init__(self) -> None:
        settle(self, "Cache")
        if self.remote_url is not None:
            _check_remote(self.remote_url)
        if self.max_bytes < MIB:
            raise PlanError(f"Cache(max_bytes=...) must be at least 1 MiB, but got {self.max_bytes}.")
        for name, least in (("memory_bytes", MIB), ("source_bytes", LEAST_SOURCE_BYTES)):
            if 0 != (value := getattr(self, name)) < least:
                raise PlanError(f"Cache({name}=...) must be 0, or at least {least // MIB} MiB, but got {value}.")
        if self.spread and not self.source_bytes:
            raise PlanError("Cache(spread=True) spreads bytes of buckets, of which Cache(source_bytes=0) keeps none.")
        if self.path is not None and "://" in os.fspath(self.path):
            raise PlanError(f"Cache(path=...) must be a folder on a disk, but got {os.fspath(self.path)!r}.")


def _check_remote(url: str) -> None:
    scheme, separator, rest = url.partition("://")
    if not separator and os.path.isabs(url):
        return
    bucket = rest.partition("/")[0]
    if "@" in bucket or ":" in bucket:  # it may be a secret, so it is not repeated
        raise PlanError(
            "Cache(remote=...) must name a bucket and nothing of whoever uses it: credentials are found as the tools "
            "of S3 and Google Cloud find them."
        )
    if scheme not in ("s3", "gs") or not bucket:
        raise PlanError(
            "Cache(remote=...) must be s3://bucket/prefix, gs://bucket/prefix or an absolute path that all machines "
            f"have mounted, but got {url!r}."
        )


@dataclass(frozen=True)
class ClusterIo:
    """Read bandwidth to object stores, and cache space, that jobs of a cluster share through `Config(remote_io=...)`.

    Both are divided again when such jobs start and end, and when their speeds change.
    """

    bytes_per_s: float | None = None
    """Total read bandwidth of these jobs, in bytes per second.  None: keep the value set by another job."""
    cache_bytes: int | None = None
    """Cache bytes per node for their datasets.  None: set by another job, or else ``Cache(source_bytes=...)``."""
    policy: SharingPolicy | None = None
    """The goal: the largest sum of speeds ("greedy"), short jobs first ("sjf"), or the highest speed of the slowest
    job ("max_min").  None: the value set by another job, or else "greedy"."""
    ideal_bytes_per_s: float | None = None
    """Bytes per second that this job reads if it never waits for data; None: measured."""
    dataset_bytes: float | None = None
    """Bytes that this job reads per epoch; None: measured."""

    def __post_init__(self) -> None:
        settle(self, "ClusterIo")
        for name in ("bytes_per_s", "ideal_bytes_per_s", "dataset_bytes"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise PlanError(f"ClusterIo({name}=...) must be a finite number > 0, or None, but got {value!r}.")
        if self.cache_bytes is not None and self.cache_bytes < 0:
            raise PlanError(f"ClusterIo(cache_bytes=...) must be 0 or more, but got {self.cache_bytes}.")


def check_remote_io(bytes_per_s: float | None) -> None:
    """Raise `PlanError` for a quota of remote reads that is none."""
    if of_kind("remote_io", bytes_per_s, float | None) is not None and not 0 < float(bytes_per_s or 0) < math.inf:
        raise PlanError(
            f"remote_io must be a finite number of bytes a second > 0, or None for no bound, but got {bytes_per_s!r}."
        )
