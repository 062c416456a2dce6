"""What can be told about a job: for reports, progress and pages."""

from __future__ import annotations

from dataclasses import dataclass, field

from pecan_ray.job.messages import Placement
from pecan_ray.job.placement_comparison import PlacementComparison
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.windows import ObservedWindow
from pecan_ray.placement import Prices
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.plan.stage_seconds import StageSeconds
from pecan_ray.plan.windows import Deployment
from pecan_ray.sampling.spans import Span


@dataclass(frozen=True)
class JobEvent:
    """Something worth telling in the report."""

    seconds: float
    """Since the job began."""
    kind: str
    text: str


@dataclass(frozen=True)
class WorkerStats:
    """What one worker has done."""

    placement: Placement
    elements: int = 0
    batches: int = 0
    threads: int = 0
    remote_bytes: int = 0
    """Read of object stores, and"""
    node_bytes: int = 0
    """of its node's disk instead."""
    stages: StageSeconds = field(default_factory=StageSeconds)
    """What its threads have done with their time."""
    hedged: int = 0
    """Reads of object stores that it has asked for twice, and"""
    hedges_won: int = 0
    """those that the second request has answered first."""
    sent_bytes: int = 0
    """Of its batches as they travel: before the operators that are left to the trainer."""
    peak_memory_bytes: int = 0
    """Most memory that its process has had; 0: not known."""


@dataclass(frozen=True)
class JobStats:
    """A job so far, as its controller sees it."""

    job: str
    seconds: float = 0.0
    epochs: int = 0
    elements: int = 0
    bytes: int = 0
    bad_elements: int = 0
    bad_estimated: int = 0
    bad_open_ends: int = 0
    left_epochs: int = 0
    """So many of the epochs the training loop has left before their ends."""
    left_out_elements: int = 0
    dropped: tuple[tuple[LeaseKey, tuple[Span, ...]], ...] = ()
    """Where data is visited at most once: what lost workers held, and those that were removed at once,"""
    dropped_elements: int = 0
    """so many elements,"""
    dropped_open_ends: int = 0
    """and the rest of so many splits whose length nobody knows."""
    workers_lost: int = 0
    workers: dict[str, WorkerStats] = field(default_factory=dict)
    events: tuple[JobEvent, ...] = ()
    timeline: tuple[PlacementStep, ...] = ()
    windows: tuple[ObservedWindow, ...] = ()
    """What was measured while the numbers of workers were fixed."""
    deployments: tuple[tuple[float, Deployment], ...] = ()
    remote_rates: tuple[float | None, ...] = ()
    """$ per hour of the remote workers of each, by the nodes that they were on; None, or fewer: not known."""
    epoch_ends: tuple[float, ...] = ()
    """When each of the newest epochs was over, in seconds since the job began, and"""
    epochs_before: float = 0.0
    """when those before them were."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds that each operator took of an element in AutoOrder's sample; empty: not all were measured."""
    comparison: PlacementComparison | None = None
    """The deployments that AutoPlacement has measured; None where the numbers of workers are fixed."""
    prices: Prices | None = None
    """What the user has said that things cost; None: nothing."""
    hosts: int = 1
    cpus: float = 0.0
    """CPUs of these that the job may use; 0: not known."""
    cpus_per_worker: float = 0.0
    """What is reserved for a worker where AutoPlacement finds their numbers; 0 else."""
    trainers: int = 1
    held_up: tuple[float, ...] = ()
    """For so many seconds other ranks waited for each one that lacked its batch of a round; empty: no rounds."""
    order_given_up: str = ""
    """Why rows do not come in the order of the source any more; empty: they do, or never did."""
    fallback_reason: str = ""
    """Why the job went back to the user's order of operators; empty if it did not."""
    lost: str = ""
    """Why no more is known: the controller could not be asked."""
