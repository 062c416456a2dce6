"""The policies behind one face: AutoPlacement as it is, those that only count remote workers, a fixed deployment."""

from __future__ import annotations

from typing import Protocol

from pecan_ray.autoscaler import Autoscaler, HorizontalPodAutoscaler
from pecan_ray.autoscaler.search import PATIENCE
from pecan_ray.placement import AutoPlacement
from pecan_ray.plan.windows import Decision, Deployment, Window
from pecan_ray.simulator.client import HPA
from pecan_ray.simulator.workload import Workload


class Driver(Protocol):
    """What the simulator asks; the live controller asks the same of `AutoPlacement`."""

    @property
    def start(self) -> Deployment:
        """What to launch before anything was measured."""

    @property
    def window_batches(self) -> int:
        """Batches that a window should hold."""

    @property
    def converged(self) -> bool:
        """Return whether the search is over."""

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        """Return what shall run next."""


class FixedDeployment:
    """A deployment that stays."""

    window_batches = 500
    converged = True

    def __init__(self, deployment: Deployment) -> None:
        self.start = deployment

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        """Return the same again."""
        return Decision(self.start, "converged", f"{self.start} are fixed.")


class RemoteOnly:
    """An autoscaler of remote workers."""

    def __init__(self, policy: Autoscaler | HorizontalPodAutoscaler, window_batches: int = 100) -> None:
        self._policy = policy
        self.window_batches = window_batches
        self.start = Deployment(0, 1)

    @property
    def converged(self) -> bool:
        """Return whether scaling is over."""
        return self._policy.converged

    def decide(self, window: Window, deployment: Deployment) -> Decision:
        """Return what shall run next."""
        return self._policy.decide(window, deployment.remote)


def placement(
    workload: Workload,
    mode: str,
    threshold: float = 0.03,
) -> AutoPlacement:
    """Return AutoPlacement for a workload, within what it allows."""
    return AutoPlacement(
        mode,
        workload.prices,
        workload.clients,
        threshold,
        max_local=workload.max_local,
        max_remote=workload.max_remote,
        patience=PATIENCE,
    )


def driver_of(workload: Workload, mode: str, threshold: float = 0.03) -> AutoPlacement | RemoteOnly:
    """Return the policy of a mode: AutoPlacement's, or the baseline `HPA`, which looks at no batch time."""
    if mode == HPA:
        return RemoteOnly(HorizontalPodAutoscaler(max_workers=workload.max_remote))
    return placement(workload, mode, threshold)
