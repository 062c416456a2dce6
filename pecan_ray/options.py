"""What a user may set, as small frozen groups that refuse nonsense when they are made."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pecan_ray.errors import PlanError
from pecan_ray.plan.deadline import Deadline
from pecan_ray.plan.kinds import settle
from pecan_ray.plan.prices import Prices

EngineName: TypeAlias = Literal["python", "tensorflow"]
Format: TypeAlias = Literal["numpy", "torch", "tf", "jax"]
Order: TypeAlias = Literal["relaxed", "strict"]
OnError: TypeAlias = Literal["raise", "skip", "quarantine"]
Sharding: TypeAlias = Literal["dynamic", "off", "static"]
Visitation: TypeAlias = Literal["exactly_once", "at_most_once", "zero_or_more"]
TransportChoice: TypeAlias = Literal["auto", "ring", "flight", "object_store"]
Compression: TypeAlias = Literal["auto", "none", "lz4", "zstd"]
ReorderMode: TypeAlias = Literal["cost", "paper", "strict", "off"]

PlacementMode: TypeAlias = Literal[
    "auto", "pecan", "pecan-code", "pecan-cost", "cachew", "cachew-code", "collocated", "fastflow"
]

ObjectiveName: TypeAlias = Literal["cost", "no_wait"]

MIB = 1 << 20
GIB = 1 << 30
MOST_STREAMS = 16


@dataclass(frozen=True)
class Workers:
    """Fixes the numbers of workers: `local` on the trainer's node, `remote` on other nodes."""

    local: int = 1
    remote: int = 0

    def __post_init__(self) -> None:
        settle(self, "Workers")
        for name in ("local", "remote"):
            if getattr(self, name) < 0:
                raise PlanError(f"Workers({name}=...) must be a whole number >= 0, but got {getattr(self, name)}.")
        if self.local + self.remote == 0:
            raise PlanError("Workers(local=0, remote=0) would never produce a batch: ask for at least one worker.")


@dataclass(frozen=True)
class AutoWorkers:
    """Lets AutoPlacement find the numbers of workers while the job runs."""

    mode: PlacementMode = "auto"
    """Which search: ours, or one of the papers' (Pecan §5.1, Cachew §4.3) to compare with."""
    objective: ObjectiveName | Deadline = "cost"
    """What is looked for: the cheapest workers, the cheapest of those beside which the trainer waits for less than 2 %
    of its time, or the cheapest of those with which the job ends by a `Deadline`; the last two in mode "auto"."""
    prices: Prices | None = None
    """None: hosts and workers weigh as in the Pecan paper's experiments, and no dollars are told."""
    threshold: float = 0.03
    """A change of the batch time by less than this share is no change."""
    max_local: int | None = None
    """Most workers on the trainers' nodes; None: as many as their CPUs hold."""
    max_remote: int | None = None
    """Most workers on other nodes; None: as many as the CPUs of the present ones hold.  Where Ray's autoscaler
    brings nodes up, say how many workers may run on them."""
    min_local: int = 0
    min_remote: int = 0
    max_per_hour: float | None = None
    """Budget in $ per hour, trainers' nodes included; needs `prices`."""
    max_local_cpu_fraction: float | None = None
    """Share of a trainer's node that local workers may use."""
    fast_removal: bool = False
    """Remove workers at once, with what they hold; needs ``visitation="at_most_once"``."""
    window_batches: int | None = None
    """Batches of a trainer between two decisions; None: what the mode asks for."""
    window_s: float = 5.0
    """A window ends after this time too, if it holds some batches."""
    patience_s: float = 180.0
    """How long a remote worker may wait for a node before AutoPlacement settles for less."""

    def __post_init__(self) -> None:
        settle(self)
        if self.objective != "cost" and self.mode != "auto":
            raise PlanError(f"objective={self.objective!r} is only known to mode='auto', but got mode={self.mode!r}.")
        for side in ("local", "remote"):
            least, most = getattr(self, f"min_{side}"), getattr(self, f"max_{side}")
            if least < 0 or (most is not None and most < least):
                raise PlanError(f"min_{side} must be from 0 to max_{side}, but got {least} and {most}.")
        if self.max_local == self.max_remote == 0:
            raise PlanError("max_local=0 and max_remote=0 leave no worker: raise one of them.")
        if not 0 <= self.threshold < 1:
            raise PlanError(f"threshold must be a share in [0, 1), but got {self.threshold}.")
        if self.max_per_hour is not None and self.prices is None:
            raise PlanError(
                f"max_per_hour={self.max_per_hour} is a budget in $ and needs prices: pass "
                "prices=Prices(accelerator_host=..., remote_worker=...) of pecan_ray.placement, in $ per hour."
            )
        if self.max_per_hour is not None and not 0 <= self.max_per_hour < math.inf:
            raise PlanError(f"max_per_hour must be a number of $ >= 0, but got {self.max_per_hour!r}.")
        fraction = self.max_local_cpu_fraction
        if fraction is not None and not 0 <= fraction <= 1:
            raise PlanError(f"max_local_cpu_fraction must be a share in [0, 1], but got {fraction}.")
        for name in ("window_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise PlanError(f"{name} must be positive, but got {getattr(self, name)}.")
        if self.window_batches is not None and self.window_batches < 2:
            raise PlanError(f"window_batches must be at least 2, but got {self.window_batches}.")


SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Cache:
    """Where the entries of `autocache` points lie, and how much room they have on each node."""

    path: str | os.PathLike[str] | None = None
    """A folder on a disk of the node; None: ``pecan_ray/cache`` in the user's cache folder."""
    max_bytes: int = 32 * GIB
    """What no longer fits goes: that which saves least time for its bytes."""
    memory_bytes: int = 0
    """Of the node's shared memory, for entries that were read from the disk once; 0: none.  It stays with them when the
    job is over, until ``pecan cache rm`` or the next start of the machine."""

    @property
    def memory_folder(self) -> Path | None:
        """The folder of entries in memory; None: none are kept there."""
        if not self.memory_bytes or not SHARED_MEMORY.is_dir():
            return None
        name = hashlib.blake2b(os.fsencode(self.folder.absolute()), digest_size=8).hexdigest()
        return SHARED_MEMORY / f"pecan-cache-{os.geteuid()}-{name}"

    @property
    def folder(self) -> Path:
        """The folder."""
        if self.path is not None:
            return Path(self.path)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pecan_ray" / "cache"

    def __post_init__(self) -> None:
        settle(self, "Cache")
        if self.max_bytes < MIB:
            raise PlanError(f"Cache(max_bytes=...) must be at least 1 MiB, but got {self.max_bytes}.")
        if self.memory_bytes != 0 and self.memory_bytes < MIB:
            raise PlanError(f"Cache(memory_bytes=...) must be 0, or at least 1 MiB, but got {self.memory_bytes}.")
        if self.path is not None and "://" in os.fspath(self.path):
            raise PlanError(f"Cache(path=...) must be a folder on a disk, but got {os.fspath(self.path)!r}.")


@dataclass(frozen=True)
class Config:
    """Settings of a pipeline that have good defaults.

    Sizes are in bytes, times in seconds.
    """

    cpus_per_worker: float = 1.0
    """CPUs that Ray reserves for a worker (`num_cpus` of its actor)."""
    threads_per_worker: int | None = None
    """Threads of a worker; None: as many as its CPUs at first (those of its node, which the job's local workers share),
    then as many as make it fastest (python engine)."""
    ring_bytes: int = 512 * MIB
    """Bound on batches that a worker has finished and the trainer has not taken, and on the elements in progress where
    a worker tunes its threads."""
    remote_labels: Mapping[str, str] = field(default_factory=dict)
    """Label selector for remote workers; empty: ``pecan-role=remote`` where a node has it, else any node
    that is not a trainer's."""
    trainer_timeout_s: float = 60.0
    """A trainer of several that is not heard for so long is taken for lost, and the job ends: its threads report
    every second while Python runs at all, each of N > 100 trainers every N / 100 s; three times that is the least."""
    worker_timeout_s: float = 60.0
    """A worker that is not heard for so long is taken for lost and killed, and what it held is given out again."""
    hung_after_s: float = 1800.0
    """A worker that works on one element, or reads one, for so long is killed and replaced.  An element at which two
    workers have hung is left out, or ends the job, as `on_error` says.  Loading the pipeline may take 300 s at least.
    `math.inf`: never."""
    storage_patience_s: float = 300.0
    """How long a storage that fails or does not answer is asked again, before it ends the job under every `on_error`:
    of the processes of the job, and of the trainer's own from its last `iter_batches` or `peek` on."""
    placement_warning_s: float = 5.0
    """How long a worker may wait for a node before the log says what is missing."""
    error_budget: float = 0.01
    """With ``on_error="skip"`` or ``"quarantine"``: the share of elements that may be bad (at least 10 may)."""
    quarantine_path: str | None = None
    """File for quarantined elements; None: ``pecan-quarantine-<job>.jsonl`` in the working directory."""
    share_window_bytes: int = 256 * MIB
    """Bound on the batches that a shared group keeps for readers that lag; one batch must fit."""
    share_linger_s: float = 10.0
    """A shared group that nobody reads ends after this time."""
    cache: Cache = Cache()
    """For pipelines with `autocache` points."""
    journal: str | os.PathLike[str] | None = None
    """Folder of the controller's journal, from which a controller goes on whose process was lost; None: one beside
    Ray's session, on the controller's node; "off": there is none, and the job ends with its controller."""
    progress: bool | None = None
    """Show the progress line; None: only on a terminal."""
    transport: TransportChoice = "auto"
    """How batches travel; a way that does not work between two nodes is replaced by one that does."""
    flight_streams: int = 1
    """Parallel streams from a worker on another node to a trainer; one where the order of batches counts."""
    compression: Compression = "auto"
    """Of batches from other nodes; "auto": where it makes a slow link faster, as measured on the first batches."""
    reorder: ReorderMode = "cost"
    """How AutoOrder changes the order of operators: by measured times, by Pecan's Algorithm 2, only where results stay
    equal, or not at all."""
    order_file: str | os.PathLike[str] | None = None
    """Pins the order of operators to that of a file, which `pecan explain --save` writes: nothing is sampled."""
    order_folder: str | os.PathLike[str] | None = None
    """Folder of the orders that AutoOrder has found, which later jobs of the same pipeline run without a sample; None:
    ``pecan_ray/orders`` in the user's cache folder; "": none is kept."""
    sample_elements: int | None = None
    """Elements that AutoOrder runs before the job starts, in the trainer's process; None: 300."""
    sample_seconds: float | None = None
    """Bound on the time that it takes for that; None: 5 s, and, where `sample_elements` is None too, at most 2 % of a
    job whose number of elements is known."""
    reorder_check: Callable[[dict[str, Any], dict[str, Any]], Any] | None = None
    """Called with an element as your order makes it and as another one does; False, or an exception, refuses that
    order."""

    def __post_init__(self) -> None:
        settle(self)
        for name in ("trainer_timeout_s", "worker_timeout_s", "hung_after_s"):
            if not getattr(self, name) >= 5:
                raise PlanError(f"{name} must be at least 5, but got {getattr(self, name)}.")
        if self.journal is not None and "://" in os.fspath(self.journal):
            raise PlanError(
                f"journal must be a folder, but got {os.fspath(self.journal)!r}: lines cannot be added to an object. "
                "Name a folder that the trainers' nodes share, or mount the bucket."
            )
        for name in ("storage_patience_s", "placement_warning_s"):
            if getattr(self, name) < 0:
                raise PlanError(f"{name} must be 0 or more, but got {getattr(self, name)}.")
        if not 0 < self.cpus_per_worker < math.inf:
            raise PlanError(f"cpus_per_worker must be positive and finite, but got {self.cpus_per_worker}.")
        if self.threads_per_worker is not None and self.threads_per_worker < 1:
            raise PlanError(f"threads_per_worker must be at least 1, but got {self.threads_per_worker}.")
        if not 0 <= self.error_budget <= 1:
            raise PlanError(f"error_budget must be a share in [0, 1], but got {self.error_budget}.")
        if not self.share_linger_s >= 0 or self.share_window_bytes < 1:
            raise PlanError(
                "share_linger_s must be 0 or more and share_window_bytes positive, but got "
                f"{self.share_linger_s} and {self.share_window_bytes}."
            )
        if self.ring_bytes < MIB:
            raise PlanError(f"ring_bytes must be at least 1 MiB, but got {self.ring_bytes}.")
        if not 1 <= self.flight_streams <= MOST_STREAMS:
            raise PlanError(f"flight_streams must be from 1 to {MOST_STREAMS}, but got {self.flight_streams}.")
        if self.sample_elements is not None and self.sample_elements < 1:
            raise PlanError(f"sample_elements must be at least 1, but got {self.sample_elements}.")
        if self.sample_seconds is not None and self.sample_seconds <= 0:
            raise PlanError(f"sample_seconds must be positive, but got {self.sample_seconds}.")
        if self.order_file is not None and self.reorder == "off":
            raise PlanError(
                f'order_file={os.fspath(self.order_file)!r} asks for another order of operators and reorder="off" for '
                "none: leave one of them out."
            )


@dataclass(frozen=True)
class IterOptions:
    """The arguments of one `iter_batches` call."""

    epochs: int | None = 1
    workers: Workers | AutoWorkers = Workers()
    format: Format = "numpy"
    device: str | None = None
    rank: int = 0
    world_size: int = 1
    order: Order = "relaxed"
    visitation: Visitation = "exactly_once"
    sharding: Sharding = "dynamic"
    on_error: OnError = "raise"
    prefetch_bytes: int = 256 * MIB
    job: str | None = None
    share: bool | str = False
    max_lag: int | None = None

    def __post_init__(self) -> None:
        settle(self)
        self._check_sharing()
        if self.epochs is not None and self.epochs < 1:
            raise PlanError(f"epochs must be at least 1 (or None for no end), but got {self.epochs}.")
        if (
            self.epochs is None
            and isinstance(self.workers, AutoWorkers)
            and isinstance(self.workers.objective, Deadline)
        ):
            raise PlanError("objective=Deadline(...) needs a job that ends: pass epochs=..., a whole number.")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank must be in [0, world_size), but got rank={self.rank}, world_size={self.world_size}.")
        if self.device is not None and self.format != "torch":
            raise PlanError(f'device={self.device!r} needs format="torch", but got format={self.format!r}.')
        if self.prefetch_bytes < 1:
            raise PlanError(f"prefetch_bytes must be positive, but got {self.prefetch_bytes}.")
        if self.sharding == "static" and isinstance(self.workers, AutoWorkers):
            raise PlanError('sharding="static" deals the data to fixed workers: pass workers=Workers(...).')

    def _check_sharing(self) -> None:
        """Raise `PlanError` for what a reader of a shared group cannot have."""
        lag = self.max_lag
        if self.share == "":
            raise PlanError("share must be True, False or the name of a group, but got ''.")
        if lag is not None and lag < 1:
            raise PlanError(f"max_lag must be at least 1 (or None), but got {lag}.")
        if not self.share:
            if lag is not None:
                raise PlanError(f"max_lag={lag} bounds how far readers of a shared group lag: pass share=True with it.")
            return
        if self.visitation == "exactly_once" and lag is None:
            raise PlanError(
                'a reader that shares may skip batches, which visitation="exactly_once" forbids: pass max_lag=..., '
                "with which the front waits for all readers, or leave visitation out."
            )
        if self.world_size > 1:
            raise PlanError(
                f"share={self.share!r} does not go with world_size={self.world_size}: ranks divide the batches of one "
                "job between them, and readers of a group each read all of them. Leave out one of the two."
            )
        if self.sharding != "dynamic" or self.job is not None:
            other = f"sharding={self.sharding!r}" if self.sharding != "dynamic" else f"job={self.job!r}"
            raise PlanError(f"share={self.share!r} does not go with {other}: the group deals its data out itself.")
