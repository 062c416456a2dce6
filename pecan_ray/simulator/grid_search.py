"""The cheapest deployment, found by trying all of them: what a policy is measured against.

A deployment is simulated with its workers at work from the start, without a policy; its first batches are left out.
The pace without noise is a lower bound of what a simulation can show, so deployments whose bound is dearer than
the best one simulated need not be simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.contention import DeploymentTimeTable, epoch_costs
from pecan_ray.simulator.flow import NEVER, Flow, SimulatedFeed
from pecan_ray.simulator.noise import Services, StepTimes, generator
from pecan_ray.simulator.workload import Workload

WARM = 500
"""Batches that are left out, in which queues fill."""
MEASURED = 3000
"""Batches behind them over which the pace is measured."""
SLACK = 0.01
"""Share by which a simulation may be faster than its bound, by chance."""


@dataclass(frozen=True)
class DeploymentCost:
    """A deployment and what it takes in the long run."""

    deployment: Deployment
    batch_s: float
    epoch_cost: float


class Evaluator:
    """Simulates deployments of one workload, each once, all with the same random numbers."""

    def __init__(self, workload: Workload, seed: int = 0, measured: int = MEASURED) -> None:
        self.workload, self._seed, self._measured = workload, seed, measured
        self._table = DeploymentTimeTable(workload)
        self._known: dict[Deployment, DeploymentCost] = {}

    @property
    def simulated(self) -> int:
        """How many deployments were simulated."""
        return len(self._known)

    def price(self, deployment: Deployment) -> DeploymentCost:
        """Return what a deployment takes and costs."""
        if deployment not in self._known:
            batch_s = self._measure(deployment)
            cost = self.workload.epoch_cost(batch_s, deployment.remote)
            self._known[deployment] = DeploymentCost(deployment, batch_s, cost)
        return self._known[deployment]

    def _measure(self, deployment: Deployment) -> float:
        workload = self.workload
        noise = workload.noise
        rng = generator(self._seed, "services")
        services = Services(rng, noise.batch_cv, noise.drift_sd, noise.drift_batches)
        held = deployment.local * workload.local.buffer + deployment.remote * workload.remote.buffer
        feed = SimulatedFeed(services, workload.clients * workload.client_buffer + held)
        flow = Flow(
            workload.trainer,
            feed,
            StepTimes(generator(self._seed, "steps"), workload.trainer.step_cv),
            clients=workload.clients,
            batches_per_epoch=workload.batches_per_epoch,
        )
        step_s, local_s, remote_s, _ = self._table.at(deployment.local, deployment.remote)
        flow.step_s = step_s
        for worker in range(deployment.workers):
            local = worker < deployment.local
            feed.join(worker, local_s if local else remote_s, 0.0, remote=not local)
        flow.advance(NEVER, WARM)
        started, paused = flow.done, flow.paused
        flow.advance(NEVER, self._measured)
        return (flow.done - started - (flow.paused - paused)) / self._measured

    def optimal(self) -> DeploymentCost:
        """Return the cheapest deployment of all that are allowed."""
        local, remote = np.meshgrid(
            np.arange(self.workload.max_local + 1), np.arange(self.workload.max_remote + 1), indexing="ij"
        )
        local, remote = local.ravel()[1:], remote.ravel()[1:]
        bounds = epoch_costs(self.workload, local, remote)
        best: DeploymentCost | None = None
        for place in np.argsort(bounds, kind="stable"):
            if best is not None and bounds[place] * (1 - SLACK) > best.epoch_cost:
                break
            priced = self.price(Deployment(int(local[place]), int(remote[place])))
            if best is None or priced.epoch_cost < best.epoch_cost:
                best = priced
        assert best is not None
        return best
