"""What every placement mode knows: prices, trainers, threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pecan_ray.autoscaler.search import Begin
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment

OWNED = 100.0
"""Weight of a host that costs nothing, in remote workers: its time is still worth more than theirs."""
FIXED = Deployment(2, 2)
"""FastFlow as Pecan provisions it: two local workers, two remote ones (Pecan §6.1)."""


@dataclass(frozen=True)
class Setting:
    """The same for all modes."""

    prices: Prices
    clients: int
    threshold: float
    """T: a change of the batch time by less than this share is no change."""
    has_prices: bool = True
    """The prices are the user's: dollars may be told."""

    def per_hour(self, deployment: Deployment) -> float:
        """Return the weight of a second: c_a n_a + c_w n_w in $ per hour.

        A host without a price must not be left to starve: it weighs as much as a hundred remote workers.
        """
        # The last "or": if nothing has a price, an hour weighs 1, and the fastest deployment is the best one.
        host = self.prices.accelerator_host or OWNED * self.prices.remote_worker or 1.0
        return host * self.clients + self.prices.remote_per_hour(deployment.remote)

    def to_text(self, score: float) -> str:
        """Write what a batch costs: in dollars where prices were given, else as time of the trainers' hosts."""
        if self.has_prices:
            return f"${score / 3600:.3g}"
        return f"{score / self.per_hour(Deployment(0, 0)):.3g} s of the trainers' hosts"


SearchMaker: TypeAlias = Callable[[Setting], Begin]
