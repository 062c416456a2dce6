"""User options, as small frozen dataclasses that validate their values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pecan_ray.cache_options import MIB, Cache, ClusterIo, check_remote_io
from pecan_ray.errors import PlanError
from pecan_ray.plan.deadline import Deadline
from pecan_ray.plan.option_types import settle
from pecan_ray.plan.prices import Prices

EngineName: TypeAlias = Literal["python", "tensorflow"]
Format: TypeAlias = Literal["numpy", "torch", "tf", "jax"]
Order: TypeAlias = Literal["relaxed", "strict"]
OnError: TypeAlias = Literal["raise", "skip", "quarantine"]
Sharding: TypeAlias = Literal["dynamic", "off", "static"]
Visitation: TypeAlias = Literal["exactly_once", "at_most_once", "zero_or_more"]
TransportChoice: TypeAlias = Literal["auto", "ring", "flight", "object_store"]
SplitChoice: TypeAlias = Literal["auto", "off", "always"]
ReorderMode: TypeAlias = Literal["strict", "safe", "pecan", "off"]

PlacementMode: TypeAlias = Literal[
    "auto", "pecan", "pecan-code", "pecan-cost", "cachew", "cachew-code", "collocated", "fastflow"
]

ObjectiveName: TypeAlias = Literal["cost", "no_wait"]


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
    """The search: "auto", or a search of the papers (Pecan §5.1, Cachew §4.3) for comparison."""
    objective: ObjectiveName | Deadline = "cost"
    """The goal: the cheapest workers ("cost"; without `prices` as "no_wait"), the fewest workers with which the
    trainer waits for less than 2 % of its time ("no_wait"), or the fewest with which the job ends by a `Deadline`.
    The last two need mode "auto"."""
    prices: Prices | None = None
    """None: reports contain no costs, and the papers' modes use the cost ratio of Pecan's experiments."""
    threshold: float = 0.03
    """Changes of the batch time below this share are ignored."""
    max_local: int | None = None
    """Maximum number of workers on the trainers' nodes; None: as many as fit on their CPUs."""
    max_remote: int | None = None
    """Maximum number of workers on other nodes; None: as many as fit on the CPUs of the current nodes.  Set it if
    Ray's autoscaler adds nodes."""
    min_local: int = 0
    min_remote: int = 0
    max_per_hour: float | None = None
    """Budget in $ per hour, trainers' nodes included; needs `prices`."""
    max_local_cpu_fraction: float | None = None
    """Maximum share of a trainer's node that local workers use."""
    fast_removal: bool = False
    """Remove workers at once and drop, but count, their elements.  Needs ``visitation="at_most_once"``."""
    window_batches: int | None = None
    """Batches per window, after which the papers' modes decide and "auto" reports; None: the mode's default."""
    window_s: float = 5.0
    """In mode "auto" a window also ends after this time, if it has some batches."""
    patience_s: float = 180.0
    """Seconds that a remote worker may wait for a node before AutoPlacement continues without it."""
    accelerator: bool | Literal["always"] = False
    """Whether photographs may be decoded on the trainer's GPU (python engine, `pecan_ray.images`, mode "auto"), which
    changes pixels by a few levels.  True: while that makes training faster; "always": from the start, by PyTorch on the
    CPU where there is no GPU."""

    def __post_init__(self) -> None:
        settle(self)
        if self.objective != "cost" and self.mode != "auto":
            raise PlanError(f"objective={self.objective!r} is only known to mode='auto', but got mode={self.mode!r}.")
        self._check_numbers()
        if not 0 <= self.threshold < 1:
            raise PlanError(f"threshold must be a share in [0, 1), but got {self.threshold}.")
        self._check_budget()
        if not 0 <= (self.max_local_cpu_fraction or 0.0) <= 1:
            raise PlanError(f"max_local_cpu_fraction must be a share in [0, 1], but got {self.max_local_cpu_fraction}.")
        for name in ("window_s", "patience_s"):
            if not getattr(self, name) > 0:
                raise PlanError(f"{name} must be positive, but got {getattr(self, name)}.")
        check_least(self, {"window_batches": (2, "at least 2")})

    def _check_numbers(self) -> None:
        """Raise `PlanError` for numbers of workers that cannot be."""
        for side in ("local", "remote"):
            least, most = getattr(self, f"min_{side}"), getattr(self, f"max_{side}")
            if least < 0 or (most is not None and most < least):
                raise PlanError(f"min_{side} must be from 0 to max_{side}, but got {least} and {most}.")
        if self.max_local == self.max_remote == 0:
            raise PlanError("max_local=0 and max_remote=0 leave no worker: raise one of them.")

    def _check_budget(self) -> None:
        """Raise `PlanError` for a budget that cannot be kept."""
        if self.max_per_hour is None:
            return
        if self.prices is None:
            raise PlanError(
                f"max_per_hour={self.max_per_hour} is a budget in $ and needs prices: pass "
                "prices=Prices(accelerator_host=..., remote_worker=...) of pecan_ray.placement, in $ per hour."
            )
        if not 0 <= self.max_per_hour < math.inf:
            raise PlanError(f"max_per_hour must be a number of $ >= 0, but got {self.max_per_hour!r}.")


CONFIG_BOUNDS: Mapping[str, tuple[float, str]] = {
    # A trainer reports, and a worker speaks, every second or so: five of them may be late.
    "trainer_timeout_s": (5, "at least 5"),
    "worker_timeout_s": (5, "at least 5"),
    "hung_after_s": (5, "at least 5"),
    "storage_patience_s": (0, "0 or more"),
    "placement_warning_s": (0, "0 or more"),
    "threads_per_worker": (1, "at least 1"),
    "ring_bytes": (MIB, "at least 1 MiB"),
    "sample_elements": (1, "at least 1"),
}
"""The least that fields of `Config` may be, and how that is said."""


def check_least(options: object, bounds: Mapping[str, tuple[float, str]]) -> None:
    """Raise `PlanError` for a field that is less than its bound; None is no number."""
    for name, (least, words) in bounds.items():
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise PlanError(f"{name} must be {words}, but got {value}.")


@dataclass(frozen=True, kw_only=True)
class WorkerConfig:
    """Workers, and where they run."""

    cpus_per_worker: float = 1.0
    """CPUs that Ray reserves for a worker (`num_cpus` of its actor)."""
    threads_per_worker: int | None = None
    """Threads of a worker.  None: the number of its CPUs at first (local workers share those of their node), later
    tuned for speed while the job runs (python engine)."""
    remote_labels: Mapping[str, str] = field(default_factory=dict)
    """Label selector for remote workers; empty: nodes with ``pecan-role=remote`` if there are any, else all nodes
    without a trainer."""
    placement_warning_s: float = 5.0
    """Seconds that a worker may wait for a node before the log names the missing resources."""

    def _check_worker(self) -> None:
        if not 0 < self.cpus_per_worker < math.inf:
            raise PlanError(f"cpus_per_worker must be positive and finite, but got {self.cpus_per_worker}.")


@dataclass(frozen=True, kw_only=True)
class TransportConfig:
    """How batches travel."""

    ring_bytes: int = 512 * MIB
    """Maximum bytes of finished batches that wait for the trainer in a worker, and of elements in progress if the
    worker tunes its threads."""
    transport: TransportChoice = "auto"
    """Transport of batches; one that does not work between two nodes is replaced by one that does."""
    split_pipeline: SplitChoice = "auto"
    """Whether the last operators of remote workers (casts to float, normalizations) run where batches arrive, so that
    smaller ones travel.  "auto": where it saves time or money, by the sizes of rows, the CPU time of the operators, the
    speed of the link and `prices`; "off": never; "always": wherever fewer bytes travel then.  Python engine."""


@dataclass(frozen=True, kw_only=True)
class ReadingConfig:
    """What is read, and what is kept of it."""

    remote_io: float | ClusterIo | None = None
    """Maximum bytes per second that all workers of a job together read from object stores, in equal shares.  None: no
    limit.  A `ClusterIo`: this job's share of a limit for all jobs of the cluster."""
    cache: Cache = field(default_factory=Cache)
    """Caches of `autocache` points and of object stores."""
    hedged_reads: bool = True
    """Send a second request for a read of an object store that takes longer than other recent reads, and use the first
    response.  At most 5 % of the requests, and of the bytes, are sent twice."""
    storage_patience_s: float = 300.0
    """Seconds for which reads from a storage or mount that fails or does not answer are retried.  After that the job
    ends, whatever `on_error` says.  The trainer's own process uses the value of its last `iter_batches` or `peek`."""

    def _check_reading(self) -> None:
        if not isinstance(self.remote_io, ClusterIo):
            check_remote_io(self.remote_io)


@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """What happens when something fails."""

    error_budget: float = 0.01
    """Maximum share of bad elements among those processed with ``on_error="skip"`` or ``"quarantine"``; 10 are always
    allowed."""
    quarantine_path: str | None = None
    """File for quarantined elements; None: ``pecan-quarantine-<job>.jsonl`` in the working directory."""
    trainer_timeout_s: float = 60.0
    """After this time without a message from a trainer the job ends, unless Ray knows that the trainer's process
    exists: then the job waits for it.  Trainers report every second (each of N > 100 trainers every N / 100 s), and
    the timeout is at least three times that interval."""
    worker_timeout_s: float = 60.0
    """After this time without a message a worker is killed, and its work is reassigned."""
    hung_after_s: float = 1800.0
    """A worker that processes or reads one element for longer than this is killed and replaced.  An element on which
    two workers have hung is left out, or ends the job, as `on_error` says.  Loading the pipeline may always take 300
    s.  `math.inf`: no limit."""
    journal: str | os.PathLike[str] | None = None
    """Folder of the controller's journal, from which a restarted controller recovers.  None: a folder of Ray's session
    on the controller's node.  ``s3://...`` or ``gs://...``: as None, with a copy there for ``journal_state``, about a
    second behind.  "off": no journal; the job ends with its controller."""

    def _check_failure(self) -> None:
        where = "" if self.journal is None else os.fspath(self.journal)
        if "://" in where and not re.fullmatch(r"(s3|gs)://[^/]+(/.*)?", where):
            raise PlanError(f"journal must be a folder, s3://BUCKET/... or gs://BUCKET/..., but got {where!r}.")
        if not 0 <= self.error_budget <= 1:
            raise PlanError(f"error_budget must be a share in [0, 1], but got {self.error_budget}.")


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """The order of operators."""

    reorder: ReorderMode = "safe"
    """What AutoOrder may change to make the pipeline faster.  "strict": only changes that keep the sample's results
    equal.  "safe": also rewrites of known operators (one warp, partial decoding) within documented bounds, and
    exchanges that change results by a small share of the effect of the exchanged operators.  "pecan": the order of
    Pecan's Algorithm 2, by data volume alone; values may change.  "off": nothing."""
    reorder_exchanges: bool = True
    """False: operators are never exchanged; `map(keep_position=True)` keeps a single one in place."""
    reorder_rewrites: bool = True
    """False: operators are never rewritten."""
    sample_elements: int | None = None
    """Elements that AutoOrder runs as a sample, in a separate process; None: 300."""
    sample_seconds: float | None = None
    """Maximum CPU time of the sample; three seconds of waiting count as one, and on a busy machine 15 times as long
    may pass on the clock.  None: 20 s, and at most 2 % of the job if `sample_elements` is None and the number of
    elements is known."""
    order_file: str | os.PathLike[str] | None = None
    """File with a fixed order of operators, written by `pecan explain --save`; no sample is run."""
    order_folder: str | os.PathLike[str] | None = None
    """Folder of the orders that AutoOrder has found, so that later jobs of the same pipeline need no sample.  None:
    ``pecan_ray/orders`` in the user's cache folder; "": orders are not stored."""

    def _check_order(self) -> None:
        if self.sample_seconds is not None and not 0 < self.sample_seconds <= 86_400:
            raise PlanError(f"sample_seconds must be positive, and a day at most, but got {self.sample_seconds}.")
        if self.order_file is not None and self.reorder == "off":
            raise PlanError(
                f'order_file={os.fspath(self.order_file)!r} asks for another order of operators and reorder="off" for '
                "none: leave one of them out."
            )


@dataclass(frozen=True, kw_only=True)
class SharingConfig:
    """Groups that share."""

    share_window_bytes: int = 256 * MIB
    """Maximum bytes of batches that a shared group keeps for slow readers; at least one batch must fit."""
    share_disk_bytes: int = 0
    """Maximum bytes of unread batches that a shared group moves to the system's temporary folder when the window in
    memory is full."""
    share_linger_s: float = 10.0
    """A shared group without readers ends after this time."""
    share_patience_s: float = 60.0
    """With `max_lag`, readers wait for so long for one that reads nothing, and then go on; it reads the rest of its
    epoch by a job of its own.  Ranks of a trial, which cannot do that, are waited for half an hour at least.
    `math.inf`: no limit."""

    def _check_sharing(self) -> None:
        if not self.share_patience_s > 0:
            raise PlanError(f"share_patience_s must be positive, but got {self.share_patience_s}.")
        if not self.share_linger_s >= 0 or self.share_window_bytes < 1 or self.share_disk_bytes < 0:
            raise PlanError(
                "share_linger_s and share_disk_bytes must be 0 or more and share_window_bytes positive, but got "
                f"{self.share_linger_s}, {self.share_disk_bytes} and {self.share_window_bytes}."
            )


@dataclass(frozen=True, kw_only=True)
class ShownConfig:
    """What is shown."""

    progress: bool | None = None
    """Show a bar in any case, or nothing; None: a bar on a terminal and in a notebook, a line a minute elsewhere."""
    report_folder: str | os.PathLike[str] | None = None
    """Folder to which a job writes its report at its end, for `pecan report` and the dashboard.  None:
    ``pecan_ray/jobs`` in the user's cache folder; "": no report is written."""


@dataclass(frozen=True, kw_only=True)
class Config(ShownConfig, SharingConfig, OrderConfig, FailureConfig, ReadingConfig, TransportConfig, WorkerConfig):
    """Settings of a pipeline, all with defaults.

    Sizes are in bytes, times in seconds.
    """

    def __post_init__(self) -> None:
        settle(self)
        check_least(self, CONFIG_BOUNDS)
        self._check_worker()
        self._check_reading()
        self._check_failure()
        self._check_order()
        self._check_sharing()


@dataclass(frozen=True)
class PipelineSettings:
    """What a pipeline runs with, whatever its operators and a run of it are."""

    name: str
    engine: EngineName
    seed: int
    config: Config


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """How far a run goes."""

    epochs: int | None = 1
    first_epoch: int = 0
    """Number of the first of them; of a run that goes on from a state, of the first run's."""
    epoch_batches: int | None = None
    """Batches of an epoch, of each rank, at most; None: all."""
    steps: int | None = None
    """Batches of each rank from the first run on; None: all."""

    @property
    def end_epoch(self) -> int | None:
        """Number of the first epoch that does not come any more; None: there is none."""
        return None if self.epochs is None else self.first_epoch + self.epochs


@dataclass(frozen=True, kw_only=True)
class GroupReading:
    """With whom a run reads."""

    job: str | None = None
    share: bool | str = False
    max_lag: int | None = None


@dataclass(frozen=True, kw_only=True)
class IterOptions(GroupReading, RunLength):
    """The arguments of one `iter_batches` call."""

    workers: Workers | AutoWorkers = Workers()
    format: Format = "numpy"
    device: str | None = None
    rank: int = 0
    world_size: int = 1
    order: Order | None = None
    """None: that of the source, where it can be kept (`pecan_ray.job.row_order`)."""
    visitation: Visitation = "exactly_once"
    sharding: Sharding = "dynamic"
    on_error: OnError = "raise"
    prefetch_bytes: int = 256 * MIB
    coordinated: bool = False
    headspace: bool | int = False

    def __post_init__(self) -> None:
        settle(self)
        self._check_sharing()
        if self.headspace is not False and self.headspace < 1:
            raise PlanError(f"headspace must be True, False or batches of an epoch >= 1, but got {self.headspace}.")
        if self.coordinated:
            self._check_rounds()
        self._check_end()
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise PlanError(f"rank must be in [0, world_size), but got rank={self.rank}, world_size={self.world_size}.")
        if self.device is not None and self.format != "torch":
            raise PlanError(f'device={self.device!r} needs format="torch", but got format={self.format!r}.')
        if self.prefetch_bytes < 1:
            raise PlanError(f"prefetch_bytes must be positive, but got {self.prefetch_bytes}.")
        if self.sharding == "static" and isinstance(self.workers, AutoWorkers):
            raise PlanError('sharding="static" deals the data to fixed workers: pass workers=Workers(...).')

    def _check_end(self) -> None:
        """Raise `PlanError` for a number of epochs that cannot be, or that a deadline lacks."""
        check_least(self, dict.fromkeys(("epochs", "epoch_batches", "steps"), (1, "at least 1 (or None for no end)")))
        if self.share and (self.epoch_batches or self.steps):
            raise PlanError("epoch_batches and steps are not for a reader that shares: leave its loop by break.")
        objective = self.workers.objective if isinstance(self.workers, AutoWorkers) else None
        if self.epochs is None and isinstance(objective, Deadline):
            raise PlanError("objective=Deadline(...) needs a job that ends: pass epochs=..., a whole number.")

    def _check_rounds(self) -> None:
        """Raise `PlanError` for what does not go with coordinated reads."""
        rejected = {
            f"share={self.share!r}": (bool(self.share), "readers of a group each read all batches, and have no rounds"),
            f"order={self.order!r}": (
                self.order == "strict",
                "rounds are used in the order in which workers finish them",
            ),
            f"sharding={self.sharding!r}": (
                self.sharding != "dynamic",
                "what is left of the buckets of all workers becomes rounds, which any of them may make",
            ),
            f"visitation={self.visitation!r}": (
                self.visitation == "zero_or_more",
                "a round is used once every rank has its batch, and given back by all where one has not",
            ),
        }
        for option, (is_so, why) in rejected.items():
            if is_so:
                raise PlanError(f"coordinated=True does not go with {option}: {why}. Leave out one of the two.")

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
        else:
            self._check_reader(lag)

    def _check_reader(self, lag: int | None) -> None:
        """Raise `PlanError` for what does not go with a group."""
        if self.visitation == "exactly_once" and lag is None:
            raise PlanError(
                'a reader that shares may skip batches, which visitation="exactly_once" forbids: pass max_lag=..., '
                "with which the front waits for all readers, or leave visitation out."
            )
        if self.world_size > 1 and (lag is None or self.job is None):
            raise PlanError(
                f"share={self.share!r} with world_size={self.world_size} needs max_lag=..., because a rank that skips "
                "would have fewer batches than the others, and job=..., a name of their trial on which its ranks agree."
            )
        if self.sharding != "dynamic" or (self.job is not None and self.world_size == 1):
            other = f"sharding={self.sharding!r}" if self.sharding != "dynamic" else f"job={self.job!r}"
            raise PlanError(f"share={self.share!r} does not go with {other}: the group deals its data out itself.")
