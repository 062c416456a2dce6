"""What can be told about a job: for reports, progress and pages."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pecan_ray.job.messages import Placement, WorkerTotals
from pecan_ray.job.placement_comparison import PlacementComparison
from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.job.windows import ObservedWindow
from pecan_ray.placement import Prices
from pecan_ray.plan.splits import LeaseKey
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
class WorkerStats(WorkerTotals):
    """What one worker has done."""

    placement: Placement = field(kw_only=True)
    sent_bytes: int = 0
    """Of its batches as they travelled, before the operators that are left to the trainer, as trainers count them."""


@dataclass(frozen=True, kw_only=True)
class JobLosses:
    """Elements that were left out, epochs that were left, and ranks that held others up."""

    bad_elements: int = 0
    bad_estimated: int = 0
    """Bad elements that lay behind breaks in splits whose length is estimated."""
    bad_open_ends: int = 0
    """Breaks behind which nothing tells how many elements lay: each counts as one, so that there are at least so many
    bad elements."""
    left_epochs: int = 0
    """Epochs that the training loop has left before their ends: they are among `epochs`."""
    left_out_elements: int = 0
    """Elements of dropped remainders, and what could not be shared equally among trainers."""
    dropped_elements: int = 0
    """With ``visitation="at_most_once"``: elements that went with lost workers, and with those removed at once."""
    dropped_open_ends: int = 0
    """Splits of which the rest went with these workers, and of which nobody knows the length."""
    held_up: tuple[float, ...] = ()
    """With coordinated reads: seconds that others waited for each rank that lacked its batch of a round."""


@dataclass(frozen=True, kw_only=True)
class JobStaff:
    """Hosts and trainers of a job, the numbers of its workers, and what happened to them."""

    workers_lost: int = 0
    events: tuple[JobEvent, ...] = ()
    deployments: tuple[tuple[float, Deployment], ...] = ()
    """What ran from when on, in seconds since the job began."""
    remote_rates: tuple[float | None, ...] = ()
    """$ per hour of the remote workers of each deployment, by their nodes; None, or fewer: not known."""
    timeline: tuple[PlacementStep, ...] = ()
    """Every window that AutoPlacement saw, and what it decided."""
    windows: tuple[ObservedWindow, ...] = ()
    """What was measured while the numbers of workers were fixed."""
    hosts: int = 1
    cpus: float = 0.0
    """CPUs of these that the job may use; 0: not known."""
    cpus_per_worker: float = 0.0
    """What is reserved for a worker where AutoPlacement finds their numbers; 0 else."""
    trainers: int = 1
    accelerator: bool = False
    """Workers leave images to the trainers' accelerators."""


@dataclass(frozen=True)
class JobStats(JobLosses, JobStaff):
    """A job so far, as its controller sees it."""

    job: str
    seconds: float = 0.0
    epochs: int = 0
    elements: int = 0
    bytes: int = 0
    dropped: tuple[tuple[LeaseKey, tuple[Span, ...]], ...] = ()
    """Where data is visited at most once: what lost workers held, and those that were removed at once."""
    workers: dict[str, WorkerStats] = field(default_factory=dict)
    epoch_ends: tuple[float, ...] = ()
    """When each of the newest epochs was over, in seconds since the job began."""
    epochs_before: float = 0.0
    """When the epochs before `epoch_ends` were over, in seconds since the job began."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds that each operator took of an element in AutoOrder's sample; empty: not all were measured."""
    comparison: PlacementComparison | None = None
    """The deployments that AutoPlacement has measured; None where the numbers of workers are fixed."""
    prices: Prices | None = None
    """What the user has said that things cost; None: nothing."""
    order_given_up: str = ""
    """Why rows do not come in the order of the source any more; empty: they do, or never did."""
    fallback_reason: str = ""
    """Why the job went back to the user's order of operators; empty if it did not."""
    lost: str = ""
    """Why no more is known: the controller could not be asked."""


def part_of(whole: Any, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a value that one of its base classes declares, by their names."""
    return {one.name: getattr(whole, one.name) for one in fields(kind)}
