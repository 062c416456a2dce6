"""What controller, workers and clients say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pecan_ray.engines.contract import BadElement, SpansByKey
from pecan_ray.engines.counting import OpCount
from pecan_ray.job.windows import StepTotals
from pecan_ray.options import Config, EngineName, IterOptions
from pecan_ray.plan.shape import PlanShape


@dataclass(frozen=True)
class Job:
    """One run of a pipeline, as registered with its controller."""

    name: str
    plan: bytes
    """The plan, pickled by cloudpickle."""
    sources: bytes
    """Its sources alone: the controller lists them, and needs no framework that the functions import."""
    shape: PlanShape
    engine: EngineName
    seed: int
    options: IterOptions
    config: Config
    look_again: bool = False
    """The trainer looks at the order of operators again after the first epoch."""
    ordered: bool = True
    """The order of operators is known; if not, workers start meanwhile, and begin when it is."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker that has started."""

    name: str
    node_id: str
    pid: int
    placement: str
    """ "local" or "remote"."""
    handle: Any = field(compare=False)
    """Its Ray actor handle."""


@dataclass(frozen=True)
class WorkerStats:
    """What a worker did since it started."""

    elements: int = 0
    batches: int = 0
    bytes: int = 0
    threads: int = 0
    """At work now."""
    counts: Mapping[str, OpCount] = field(default_factory=dict)
    """What went into and came out of operators in the first epoch, where the order is looked at again."""


@dataclass(frozen=True)
class Acknowledgement:
    """Batches that a client has received from one worker since its last report."""

    worker: str
    spans: SpansByKey
    batches: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class ClientReport:
    """What a client tells its controller, several times a second at most."""

    rank: int
    acks: tuple[Acknowledgement, ...] = ()
    settled: tuple[str, ...] = ()
    """Lost workers from which nothing more will be accepted."""
    given_back: SpansByKey | None = None
    given_back_batches: int = 0
    bad: tuple[BadElement, ...] = ()
    broken: tuple[str, ...] = ()
    """Workers whose stream broke."""
    notes: tuple[str, ...] = ()
    """How batches travel: for the job's events."""
    yielded: int = 0
    """Batches handed to the trainer since the job began."""
    waited_s: float = 0.0
    """Seconds in which the trainer waited for a batch since the job began."""
    elapsed_s: float = 0.0
    queued: int = 0
    steps: StepTotals = field(default_factory=StepTotals)


@dataclass(frozen=True)
class Orders:
    """What the controller answers."""

    epoch: int = 0
    allowed: int = 0
    """Batches of this epoch that the client may use, where several trainers share the job."""
    finished: bool = False
    running: int = 0
    """Workers that run."""
    met: int = 0
    """Workers that have come up since the job began;"""
    newcomers: tuple[bytes, ...] = ()
    """of these, the running ones that the client did not know: each a `WorkerInfo`, pickled."""
    settle: tuple[str, ...] = ()
    """Lost workers about which this client must settle."""
    closing: bool = False
    """Everything of this epoch is given out: acknowledge at once."""
    keep: int | None = None
    """Keep only so many batches of this epoch, and give back the rest."""
    error: BaseException | None = None
    wanted: dict[str, int] = field(default_factory=dict)
    """Numbers of workers that the controller aims at, by placement."""


@dataclass(frozen=True)
class Event:
    """Something worth telling in the report."""

    seconds: float
    """Since the job began."""
    kind: str
    text: str
