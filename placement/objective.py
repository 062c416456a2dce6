"""What a user wants, as an order of deployments: the cheapest of those that do it.

    score(batch, own) = batch * (c_a n_a + c_w n_w)      where batch <= longest(own)
                        MISSED * batch * c_a n_a         elsewhere

    longest(own)      = min( own / (1 - most_wait), longest_s )

`own` is the trainer's own time of a batch, beside the workers that disturb it.  What does not do what is wanted comes
behind all that does, and is ranked by its time alone: the nearest to it is the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pecan_ray.errors import PlanError
from pecan_ray.plan.windows import Deployment

MISSED = 1000.0
"""A deployment that misses what is wanted counts as so many times as dear: no price makes it the better one."""
NO_WAIT_SHARE = 0.02
"""Share of its time that a trainer may wait for input which is not to wait."""

Miss: TypeAlias = Literal["", "waits", "late"]


@dataclass(frozen=True)
class Objective:
    """What deployments are compared by."""

    most_wait: float = 1.0
    """Share of its time that the trainer may wait."""
    longest_s: float = math.inf
    """Longest mean time of a batch: what is left of the time, for each batch that is left."""

    def __post_init__(self) -> None:
        if not 0 <= self.most_wait <= 1:
            raise PlanError(f"Objective(most_wait=...) must be a share in [0, 1], but got {self.most_wait!r}.")
        if not self.longest_s > 0:
            raise PlanError(f"Objective(longest_s=...) must be above 0 seconds, but got {self.longest_s!r}.")

    def longest(self, own_s: ArrayLike) -> NDArray[np.float64]:
        """Return the longest time of a batch that does what is wanted, beside a step of the trainer's own."""
        own = np.asarray(own_s, dtype=float)
        waiting = own / (1 - self.most_wait) if self.most_wait < 1 else np.full_like(own, np.inf)
        return np.minimum(waiting, self.longest_s)

    def score(
        self, batch_s: ArrayLike, own_s: ArrayLike, per_hour: ArrayLike, idle_per_hour: float
    ) -> NDArray[np.float64]:
        """Return what deployments are ranked by, the least first; `idle_per_hour` is the price without workers."""
        batch = np.asarray(batch_s, dtype=float)
        done = batch <= self.longest(own_s)
        return np.where(done, batch * np.asarray(per_hour, dtype=float), MISSED * batch * idle_per_hour)

    def miss(self, batch_s: float, own_s: float | None) -> Miss:
        """Say in which way a deployment misses what is wanted; a trainer whose wait is unknown does not wait."""
        if batch_s > self.longest_s:
            return "late"
        return "waits" if own_s is not None and batch_s > float(self.longest(own_s)) else ""


COST = Objective()
"""The cheapest."""
NO_WAIT = Objective(most_wait=NO_WAIT_SHARE)
"""The cheapest of those where the trainer does not wait."""


@dataclass(frozen=True)
class Foreseen:
    """A deployment, and what is known or expected of it."""

    deployment: Deployment
    batch_s: float
    own_s: float | None
    """The trainer's own part of a batch; None: not measured."""
    per_hour: float
    """What an hour of it costs, or weighs where there are no prices."""


@dataclass(frozen=True)
class ComparedDeployment:
    """A deployment beside the best one, and why it lost."""

    foreseen: Foreseen
    miss: Miss
    dearer: float
    """Cost of a batch over that of the best deployment, less 1."""

    @property
    def wait_share(self) -> float | None:
        """Share of the time in which the trainer waits; None: not measured."""
        own = self.foreseen.own_s
        return None if own is None else max(0.0, 1 - own / self.foreseen.batch_s)


def rank(objective: Objective, foreseen: Sequence[Foreseen], idle_per_hour: float) -> list[ComparedDeployment]:
    """Return deployments in the order in which the objective prefers them; of equal ones the smallest is first."""
    if not foreseen:
        return []
    batch = np.array([one.batch_s for one in foreseen])
    own = np.array([one.batch_s if one.own_s is None else one.own_s for one in foreseen])
    scores = objective.score(batch, own, [one.per_hour for one in foreseen], idle_per_hour)
    misses = [objective.miss(one.batch_s, one.own_s) for one in foreseen]
    order = sorted(
        range(len(foreseen)),
        key=lambda place: (bool(misses[place]), scores[place], foreseen[place].deployment.workers),
    )
    best = foreseen[order[0]]
    least = best.batch_s * best.per_hour
    return [
        ComparedDeployment(one, misses[place], one.batch_s * one.per_hour / least - 1 if least else 0.0)
        for place, one in ((place, foreseen[place]) for place in order)
    ]
