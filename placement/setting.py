"""What every placement mode is told: prices, trainers, threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from numpy.typing import ArrayLike

from pecan_ray.autoscaler.search import Begin
from pecan_ray.placement.auto_settings import DEFAULT_SETTINGS, AutoSettings
from pecan_ray.placement.model import Vector
from pecan_ray.placement.objective import COST, Objective
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment

OWNED = 100.0
"""Weight of a host that costs nothing, in remote workers: its time is still worth more than theirs."""
FIXED = Deployment(2, 2)
"""FastFlow as Pecan provisions it: two local workers, two remote ones (Pecan §6.1)."""


@dataclass
class Aim:
    """What is wanted now: a deadline comes nearer while a job runs."""

    objective: Objective = COST


@dataclass(frozen=True)
class Setting:
    """The same for all modes."""

    prices: Prices
    clients: int
    threshold: float
    """T: a change of the batch time by less than this share is no change."""
    expected: Deployment | None = None
    """Where to start, if it is known beforehand."""
    fixed: Deployment = FIXED
    """The deployment of the mode that does not search."""
    auto: AutoSettings = DEFAULT_SETTINGS
    """Of our own search."""
    aim: Aim = field(default_factory=Aim)
    """What our own search looks for."""
    priced: bool = True
    """The prices are the user's: dollars may be told."""

    def per_hour(self, deployment: Deployment) -> float:
        """Return the weight of a second: c_a n_a + c_w n_w in $ per hour.

        A host without a price must not be left to starve: it weighs as much as a hundred remote workers.
        """
        host = self.prices.accelerator_host or OWNED * self.prices.remote_worker or 1.0
        return host * self.clients + self.prices.remote_per_hour(deployment.remote)

    @property
    def idle_per_hour(self) -> float:
        """Return the weight of the trainers' hosts alone."""
        return self.per_hour(Deployment(0, 0))

    def score(self, batch_s: ArrayLike, own_s: ArrayLike, per_hour: ArrayLike) -> Vector:
        """Return what deployments are ranked by: the least does best what is wanted."""
        return self.aim.objective.score(batch_s, own_s, per_hour, self.idle_per_hour)

    def spell(self, score: float) -> str:
        """Write what a batch costs: in dollars where prices were given, else as time of the trainers' hosts."""
        if self.priced:
            return f"${score / 3600:.3g}"
        return f"{score / self.idle_per_hour:.3g} s of the trainers' hosts"


SearchMaker: TypeAlias = Callable[[Setting], Begin]
