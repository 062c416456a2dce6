"""The deployments that our search may ask for, and what the model expects of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pecan_ray.autoscaler.search import DeploymentLimits
from pecan_ray.placement.evidence import Reading
from pecan_ray.placement.model import Model, Vector
from pecan_ray.plan.windows import Deployment

LEAST_STEP = 0.1
"""The least step of the trainer that may be hoped for, in the model's units of time."""
LEAST_SUPPLY = 1e-9
"""The least supply of workers that is feared, in batches per unit of time."""


@dataclass(frozen=True)
class Candidates:
    """Deployments that may be asked for, and what an hour of each costs."""

    local: Vector
    remote: Vector
    price: Vector
    fresh: NDArray[np.bool_]
    """Those that were not measured, and may be better than those that were."""

    @property
    def workers(self) -> Vector:
        """Number of workers in all."""
        return self.local + self.remote

    def __getitem__(self, place: int) -> Deployment:
        return Deployment(int(self.local[place]), int(self.remote[place]))


def likely_time(model: Model, options: Candidates) -> tuple[Vector, Vector]:
    """Predict batch times, and the trainer's own part of them, in seconds."""
    step, _, supply, _ = model.predict(options.local, options.remote)
    supply = np.clip(supply, LEAST_SUPPLY, model.source)
    return model.unit * np.maximum(step, 1 / supply), model.unit * step


def hoped_time(model: Model, options: Candidates, optimism: float) -> tuple[Vector, Vector]:
    """Predict batch times, and the trainer's own part of them, in seconds, with credit for what is uncertain.

    Times are infinite where nothing is left to hope for.

    Workers do not speed the trainer's own step up: no deployment is hoped to be faster than it is without them.
    """
    step, step_sd, supply, supply_sd = model.predict(options.local, options.remote)
    alone, alone_sd = model.predict(np.zeros(1), np.zeros(1))[:2]
    floor = max(LEAST_STEP, float(alone[0] - optimism * alone_sd[0]))
    step = np.maximum(step - optimism * step_sd, floor)
    supply = np.clip(supply + optimism * supply_sd, LEAST_SUPPLY, model.source)
    time = model.unit * np.maximum(step, 1 / supply)
    return np.where(options.fresh, time, np.inf), model.unit * step


def with_more_workers(options: Candidates, best: Reading, time: Vector, own: Vector) -> tuple[Vector, Vector]:
    """Bound the times that are hoped for where a single worker is the best so far: more spare a trainer its wait.

    They do not speed its own step up, which hardly anything disturbs, however vague the model is.  Beside several
    workers the step is no bound: others may show how much these disturb it.
    """
    if best.deployment.workers > 1:
        return time, own
    more = (options.local >= best.deployment.local) & (options.remote >= best.deployment.remote)
    floor = np.where(more, best.own_time or 0.0, 0.0)
    return np.maximum(time, floor), np.maximum(own, floor)


def smallest_of(options: Candidates, cost: Vector, tie: float) -> int:
    """Return which costs least; of those that cost nearly the same, the one with the fewest workers."""
    equal = np.flatnonzero(cost <= cost.min() * (1 + tie))
    return int(min(equal, key=lambda place: (options.workers[place], cost[place])))


def phase_of(old: Deployment, new: Deployment) -> str:
    """Name a move by its greater part."""
    if abs(new.remote - old.remote) >= abs(new.local - old.local):
        return "scale_remote" if new.remote > old.remote else "remove_remote"
    return "add_local" if new.local > old.local else "remove_local"


def ladder(least: int, most: int, near: int) -> list[int]:
    """Return the counts worth considering: all small ones, all near the present one, else steps of 3 %."""
    counts = {least, most, *range(least, min(most, 64) + 1), *range(max(least, near - 8), min(most, near + 8) + 1)}
    rung = 64
    while rung < most:
        counts.add(max(rung, least))
        rung += max(1, rung // 32)
    return sorted(counts)


def on_one_side(limits: DeploymentLimits, workers: int) -> Deployment:
    """Return so many workers on one side alone: the remote one, if there is one."""
    if limits.max_remote:
        return limits.clamp(limits.min_local, workers - limits.min_local)
    return limits.clamp(workers, 0)
