"""Which deployments of a job were compared, and why the others lost: from the windows that its policy saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.placement import AutoPlacement, DeploymentComparison, DeploymentEstimate, rank
from pecan_ray.placement.window_mean import KEPT, Reading, pooled
from pecan_ray.plan.windows import Deployment


@dataclass(frozen=True)
class DeploymentMeasurement:
    """A deployment that ran, as it was measured last."""

    comparison: DeploymentComparison
    windows: int
    """Windows that count,"""
    seconds: float
    """the newest of them so long after the job began."""
    error: float
    """Relative standard error of the time of a batch."""


@dataclass(frozen=True)
class PlacementComparison:
    """What ran, best first, and what it was compared by."""

    most_wait: float
    """Share of its time that the trainer may wait."""
    longest_s: float
    """Longest mean time of a batch that ends in time; infinite without a deadline."""
    others: tuple[DeploymentMeasurement, ...]
    stopped: bool = False
    """The numbers of workers were fixed since."""


def usable(timeline: Sequence[PlacementStep]) -> dict[Deployment, list[PlacementStep]]:
    """Return the steps of a timeline that have measured something, by what ran."""
    seen: dict[Deployment, list[PlacementStep]] = {}
    for step in timeline:
        # Decision 9: what was measured while workers came or went belongs to no deployment.
        if not step.window.invalid_reason() and step.decision.phase != "discarded":
            seen.setdefault(step.deployment, []).append(step)
    return seen


def measured(seen: Mapping[Deployment, Sequence[PlacementStep]]) -> dict[Deployment, Reading]:
    """Return what the newest windows of each deployment say together."""
    return {at: pooled(at, [step.window for step in steps[-KEPT:]]) for at, steps in seen.items()}


def compare(timeline: Sequence[PlacementStep], policy: AutoPlacement, *, stopped: bool = False) -> PlacementComparison:
    """Compare the deployments of a timeline by what their newest windows say; `stopped`: the policy decides no more."""
    seen = usable(timeline)
    readings = measured(seen)
    projected = [
        DeploymentEstimate(at, reading.batch_time, reading.own_time, policy.per_hour(at))
        for at, reading in readings.items()
    ]
    rivals = []
    for one in rank(policy.objective, projected):
        at = one.projected.deployment
        rivals.append(DeploymentMeasurement(one, readings[at].windows, seen[at][-1].seconds, readings[at].error))
    return PlacementComparison(policy.objective.most_wait, policy.objective.longest_s, tuple(rivals), stopped)
