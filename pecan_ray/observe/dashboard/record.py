"""What a page tells of a job, live or past: values alone, from wherever they come."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.stats import JobEvent
from pecan_ray.plan.windows import Deployment


@dataclass(frozen=True)
class SeenWindow:
    """What was measured of a stretch of time."""

    seconds: float
    """When it ended, since the job began."""
    rate: float
    """Batches a second, of all trainers together."""
    waited: float | None
    """Share of the time in which trainers waited for input."""
    queue: float
    """Batches that waited at a trainer, mean."""


@dataclass(frozen=True)
class SeenDecision:
    """A decision about workers, and why."""

    seconds: float
    phase: str
    target: str
    reason: str


@dataclass(frozen=True)
class SeenWorker:
    """A worker of a job, and what it has done."""

    name: str
    placement: str
    node: str
    state: str
    elements: int
    batches: int
    threads: int
    remote_bytes: int = 0


@dataclass(frozen=True)
class SeenTrainer:
    """One rank."""

    rank: int
    node: str
    batches: int
    elements: int
    waited: float
    """Share of its time."""
    queued: int


@dataclass(frozen=True)
class PastRun:
    """What is known of a job since it is over."""

    ended: str
    """When, in words."""
    key: str = ""
    """The key by which its report is asked for; empty: its name is."""


@dataclass(frozen=True)
class JobLine:
    """A job in a list of jobs."""

    name: str
    pipeline: str
    seconds: float
    epoch: int
    batches: int
    elements: int
    running: Deployment
    """The workers that run, or ran at the end."""
    target: str = ""
    rate: float | None = None
    waited: float | None = None
    bad_elements: int = 0
    dollars: float | None = None
    error: str = ""
    past: PastRun | None = None
    """None: it runs."""


@dataclass(frozen=True)
class JobRecord:
    """All that a page about one job shows."""

    line: JobLine
    windows: tuple[SeenWindow, ...] = ()
    decision_history: tuple[SeenDecision, ...] = ()
    """Those that have changed something."""
    running: tuple[tuple[float, Deployment], ...] = ()
    """What ran from when on, in seconds since the job began."""
    cost: tuple[tuple[float, float], ...] = ()
    """Dollars by seconds; empty: no prices were given."""
    workers: tuple[SeenWorker, ...] = ()
    trainers: tuple[SeenTrainer, ...] = ()
    events: tuple[JobEvent, ...] = ()
    bad: str = ""
    """How many elements were left out, in words."""
    order_text: str = ""
    """What AutoOrder found, as JSON."""
    report: str = ""
    lost: str = ""
    """Why no more is known."""
