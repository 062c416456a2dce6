"""What a user wants, as an order of deployments: the cheapest of those that do it.

    cost(batch) = batch * (c_a n_a + c_w n_w)        where batch <= min( own / (1 - most_wait), longest_s )

`own` is the trainer's own time of a batch, beside the workers that disturb it.  What does not do what is wanted comes
behind all that does, and is ranked by its time alone: the nearest to it is the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from pecan_ray.plan.windows import Deployment, Window

# docs/decisions/placement.md#156-a-wait-counts-by-its-seconds: gradient accumulation waits for 1 to 3 % by
# chance, so this share alone adds no worker.
NO_WAIT_SHARE = 0.02
"""Share of its time that a trainer may wait for input which is not to wait."""

KEPT = 20
"""Newest windows of a deployment that count: a hundred seconds of windows of five."""

Miss: TypeAlias = Literal["", "waits", "late"]


@dataclass(frozen=True)
class Objective:
    """What deployments are compared by."""

    most_wait: float = 1.0
    """Share of its time that the trainer may wait."""
    longest_s: float = math.inf
    """Longest mean time of a batch: what is left of the time, for each batch that is left."""

    def miss(self, batch_s: float, own_s: float | None) -> Miss:
        """Say in which way a deployment misses what is wanted; a trainer whose wait is unknown does not wait."""
        if batch_s > self.longest_s:
            return "late"
        return "waits" if own_s is not None and batch_s * (1 - self.most_wait) > own_s else ""


COST = Objective()
"""The cheapest."""
NO_WAIT = Objective(most_wait=NO_WAIT_SHARE)
"""The cheapest of those where the trainer does not wait."""


@dataclass(frozen=True)
class DeploymentEstimate:
    """A deployment, and what is known or expected of it."""

    deployment: Deployment
    batch_s: float
    own_s: float | None
    """The trainer's own part of a batch; None: not measured."""
    per_hour: float
    """What an hour of it costs, or weighs where there are no prices."""
    error: float = 0.0
    """Relative standard error of batch_s."""
    windows: int = 0
    """Windows that count."""

    @classmethod
    def of(cls, deployment: Deployment, windows: Sequence[Window], per_hour: float) -> DeploymentEstimate:
        """Return the mean of the newest windows of a deployment; its error is what they claim, or show, if more."""
        windows = windows[-KEPT:]
        weights = [window.batches for window in windows]
        times = [window.batch_time for window in windows]
        batch_s = fmean(times, weights)
        waits = [window.wait_time for window in windows if window.wait_time is not None]
        own_s = max(0.0, batch_s - fmean(waits, weights)) if len(waits) == len(windows) else None
        claimed = math.hypot(*(window.stderr / window.batch_time for window in windows)) / len(windows)
        # Batches of one window resemble each other, so what windows claim of their own error may be too little.
        shown = stdev(times) / batch_s / math.sqrt(len(times)) if len(times) > 1 else 0.0
        return cls(deployment, batch_s, own_s, per_hour, max(claimed, shown), len(windows))


@dataclass(frozen=True)
class DeploymentComparison:
    """A deployment beside the best one, and why it lost."""

    projected: DeploymentEstimate
    miss: Miss
    cost_increase: float
    """Cost of a batch over that of the best deployment, less 1."""

    @property
    def wait_share(self) -> float | None:
        """Share of the time in which the trainer waits; None: not measured."""
        own = self.projected.own_s
        return None if own is None else max(0.0, 1 - own / self.projected.batch_s)


def rank(objective: Objective, projected: Sequence[DeploymentEstimate]) -> list[DeploymentComparison]:
    """Return deployments in the order in which the objective prefers them; of equal ones the smallest is first."""

    def place(one: DeploymentComparison) -> tuple[bool, float, int]:
        seen = one.projected
        # A miss has no cost that could be compared: the nearest to what is wanted is the fastest.
        return bool(one.miss), seen.batch_s if one.miss else _cost(seen), seen.deployment.workers

    compared = [DeploymentComparison(one, objective.miss(one.batch_s, one.own_s), 0.0) for one in projected]
    compared.sort(key=place)
    least = _cost(compared[0].projected) if compared else 0.0
    return [replace(one, cost_increase=_cost(one.projected) / least - 1 if least else 0.0) for one in compared]


def _cost(one: DeploymentEstimate) -> float:
    return one.batch_s * one.per_hour
