"""What a user may set, as small frozen groups that refuse nonsense when they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from pecan_ray.errors import PlanError

EngineName: TypeAlias = Literal["python", "tensorflow"]
Format: TypeAlias = Literal["numpy", "torch", "tf", "jax"]
Order: TypeAlias = Literal["relaxed", "strict"]
OnError: TypeAlias = Literal["raise", "skip", "quarantine"]
Sharding: TypeAlias = Literal["dynamic", "off", "static"]
Visitation: TypeAlias = Literal["exactly_once", "at_most_once", "zero_or_more"]

MIB = 1 << 20


@dataclass(frozen=True)
class Workers:
    """Fixes the numbers of workers: `local` on the trainer's node, `remote` on other nodes."""

    local: int = 1
    remote: int = 0

    def __post_init__(self) -> None:
        for name in ("local", "remote"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise PlanError(f"Workers({name}=...) must be a whole number >= 0, but got {value!r}.")
        if self.local + self.remote == 0:
            raise PlanError("Workers(local=0, remote=0) would never produce a batch: ask for at least one worker.")


@dataclass(frozen=True)
class Config:
    """Settings of a pipeline that have good defaults.

    Sizes are in bytes, times in seconds.
    """

    cpus_per_worker: float = 1.0
    """CPUs that Ray reserves for a worker (`num_cpus` of its actor)."""
    threads_per_worker: int | None = None
    """Threads of a worker; None: the CPUs of its node, which the job's local workers share."""
    ring_bytes: int = 512 * MIB
    """Bound on batches that a worker has finished and the trainer has not taken."""
    remote_labels: Mapping[str, str] = field(default_factory=dict)
    """Label selector for remote workers; empty: ``pecan-role=remote`` where a node has it, else any node
    that is not a trainer's."""
    placement_warning_s: float = 5.0
    """How long a worker may wait for a node before the log says what is missing."""
    error_budget: float = 0.01
    """With ``on_error="skip"`` or ``"quarantine"``: the share of elements that may be bad (at least 10 may)."""
    quarantine_path: str | None = None
    """File for quarantined elements; None: ``pecan-quarantine-<job>.pickle`` in the working directory."""
    progress: bool | None = None
    """Show the progress line; None: only on a terminal."""

    def __post_init__(self) -> None:
        if self.cpus_per_worker <= 0:
            raise PlanError(f"cpus_per_worker must be positive, but got {self.cpus_per_worker}.")
        if self.threads_per_worker is not None and self.threads_per_worker < 1:
            raise PlanError(f"threads_per_worker must be at least 1, but got {self.threads_per_worker}.")
        if self.ring_bytes < MIB:
            raise PlanError(f"ring_bytes must be at least 1 MiB, but got {self.ring_bytes}.")


@dataclass(frozen=True)
class IterOptions:
    """The arguments of one `iter_batches` call."""

    epochs: int | None = 1
    workers: Workers | None = None
    format: Format = "numpy"
    rank: int = 0
    world_size: int = 1
    order: Order = "relaxed"
    visitation: Visitation = "exactly_once"
    sharding: Sharding = "dynamic"
    on_error: OnError = "raise"
    prefetch_bytes: int = 256 * MIB
    job: str | None = None

    def __post_init__(self) -> None:
        choices = {
            "format": Format,
            "order": Order,
            "visitation": Visitation,
            "sharding": Sharding,
            "on_error": OnError,
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in get_args(allowed):
                raise PlanError(f"{name} must be one of {', '.join(map(repr, get_args(allowed)))}, but got {value!r}.")
        if self.epochs is not None and self.epochs < 1:
            raise PlanError(f"epochs must be at least 1 (or None for no end), but got {self.epochs}.")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank must be in [0, world_size), but got rank={self.rank}, world_size={self.world_size}.")
        if self.prefetch_bytes < 1:
            raise PlanError(f"prefetch_bytes must be positive, but got {self.prefetch_bytes}.")
