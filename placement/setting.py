"""What every placement mode knows: prices, trainers, threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pecan_ray.autoscaler.search import DeploymentLimits, Search
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment

OWNED = 100.0
"""Weight of a host that costs nothing, in remote workers: its time is still worth more than theirs."""


@dataclass(frozen=True)
class Setting:
    """The same for all modes."""

    prices: Prices
    clients: int
    threshold: float
    """T: a change of the batch time by less than this share is no change."""
    paid: tuple[float, ...] = ()
    """$ per hour of the remote workers that run, by the nodes that they are on."""
    batch_transfer: float = 0.0
    """What a batch of remote workers costs on its way: $ an hour for a batch a second."""

    def with_transfer(self, deployment: Deployment, batch_s: float, each: tuple[float, float]) -> float:
        """Return the weight of a second, and of what remote workers send in it.

        Args:
            deployment: What runs.
            batch_s: Seconds in which each trainer takes a batch.
            each: Rows a second of a local and of a remote worker, of which their shares of a batch follow.
        """
        local, remote = deployment.local * each[0], deployment.remote * each[1]
        share = remote / (local + remote) if local + remote else float(deployment.remote > 0)
        return self.per_hour(deployment) + share * self.clients * self.batch_transfer / batch_s

    def per_hour(self, deployment: Deployment) -> float:
        """Return the weight of a second: c_a n_a + c_w n_w in $ per hour.

        A host without a price must not be left to starve: it weighs as much as a hundred remote workers.
        """
        # The last "or": if nothing has a price, an hour weighs 1, and the fastest deployment is the best one.
        host = self.prices.accelerator_host or OWNED * self.prices.remote_worker or 1.0
        return host * self.clients + self.prices.remote_per_hour(deployment.remote, self.paid)


SearchMaker: TypeAlias = Callable[[Setting, Deployment, DeploymentLimits], Search]
