"""What came of a job: where it ended, when, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.job import SimulatedJobState, Snapshot, Turn
from pecan_ray.simulator.workload import Workload


@dataclass(frozen=True)
class BatchTotals:
    """Batches of all clients: produced = consumed + queued + lost."""

    produced: int
    consumed: int
    queued: int
    lost: int


@dataclass(frozen=True, kw_only=True)
class OutcomeCosts:
    """What a job cost, in $."""

    epoch_cost: float
    """$ of an epoch, at the pace that the job had once the policy had converged."""
    convergence_cost: float
    """$ until the policy had converged."""
    cost: float
    """$ in all."""


@dataclass(frozen=True, kw_only=True)
class Outcome(OutcomeCosts):
    """One job."""

    workload: str
    timeline: tuple[Turn, ...]
    final: Deployment
    """What the policy asked for last."""
    settled: Deployment
    """Where it settled last, which differs while it searches anew; what it asked for last if it never settled."""
    running: Deployment
    converged: Snapshot | None
    """When the policy had converged for the first time; None: never."""
    converged_to: Deployment
    """Where that was; what it asked for last if it never was."""
    end: Snapshot
    batch_s: float
    """Mean time of a batch after that (of the whole job, if it never was), pauses left out."""
    starved_share: float
    """Share of that time in which the accelerators had no batch."""
    remote: float
    """Mean of the remote workers that were paid for in that time."""
    received_share: float
    """Share of the batches in that time that remote workers made."""
    killed: int
    flows: BatchTotals


def outcome_of(job: SimulatedJobState) -> Outcome:
    """Sum a job up."""
    workload, end = job.spec.workload, job.snapshot()
    # A job that ended as it converged counts as a whole.
    converged, converged_to = job.converged or (None, job.target)
    since = converged if converged and converged.batches < end.batches else Snapshot()
    batches, seconds = max(1, end.batches - since.batches), end.seconds - since.seconds
    batch_s = (seconds - (end.paused - since.paused)) / batches
    remote = (end.remote_seconds - since.remote_seconds) / seconds if seconds else 0.0
    return Outcome(
        workload=workload.name,
        timeline=tuple(job.timeline),
        final=job.target,
        settled=job.settled or job.target,
        running=job.last_running or job.running(),
        converged=converged,
        converged_to=converged_to,
        end=end,
        batch_s=batch_s,
        starved_share=(end.starved - since.starved) / seconds if seconds else 0.0,
        remote=remote,
        received_share=(end.received - since.received) / (batches * workload.clients),
        epoch_cost=workload.epoch_cost(batch_s, remote),
        convergence_cost=cost_until(workload, converged or end),
        cost=cost_until(workload, end),
        killed=job.killed,
        flows=BatchTotals(
            job.flow.feed.produced,
            workload.clients * job.flow.consumed,
            len(job.flow.feed.ready),
            job.flow.feed.lost,
        ),
    )


def cost_until(workload: Workload, until: Snapshot) -> float:
    """Return $ from the beginning to a moment: c_a n_a t + c_w times the remote workers' time."""
    if until.seconds <= 0:
        return 0.0
    per_hour = workload.epoch_cost(3600.0 / workload.batches_per_epoch, until.remote_seconds / until.seconds)
    return per_hour * until.seconds / 3600


def mean(outcomes: Sequence[Outcome], value: Callable[[Outcome], float]) -> float:
    """Return the mean of a quantity over runs."""
    return fmean(value(outcome) for outcome in outcomes)
