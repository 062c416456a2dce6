"""Which deployments of a job were compared, and why the others lost: from the windows that its policy saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pecan_ray.job.policy_runner import PlacementStep
from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.objective import DeploymentComparison, DeploymentEstimate, rank
from pecan_ray.plan.windows import Deployment


@dataclass(frozen=True)
class DeploymentMeasurement:
    """A deployment that ran, as it was measured last."""

    comparison: DeploymentComparison
    seconds: float
    """The newest of its windows ended so long after the job began."""


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


def compare(timeline: Sequence[PlacementStep], policy: AutoPlacement, *, stopped: bool = False) -> PlacementComparison:
    """Compare the deployments of a timeline by what their newest windows say; `stopped`: the policy decides no more."""
    seen = usable(timeline)
    setting, each = policy.setting, policy.state.known.each
    estimates = [
        DeploymentEstimate.of(at, [step.window for step in steps], setting.per_hour(at)) for at, steps in seen.items()
    ]
    estimates = [replace(one, per_hour=setting.with_transfer(one.deployment, one.batch_s, each)) for one in estimates]
    rivals = [
        DeploymentMeasurement(one, seen[one.projected.deployment][-1].seconds)
        for one in rank(policy.objective, estimates)
    ]
    return PlacementComparison(policy.objective.most_wait, policy.objective.longest_s, tuple(rivals), stopped)
