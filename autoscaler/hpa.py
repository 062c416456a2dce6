"""The Horizontal Pod Autoscaler of Kubernetes, the baseline that Cachew is compared with (Cachew §6.1).

desired = ceil(current * utilization / target), unless the ratio is within 10 % of 1.  A rise is limited to the double
(or four workers); a fall waits until every window of the last `stabilization_windows` agreed with it.
"""

from __future__ import annotations

import math
from collections import deque

from pecan_ray.errors import PlanError
from pecan_ray.plan.windows import Decision, Deployment, Window

# Kubernetes' default policy for scaling up: the double, or four pods, whichever is more.
LEAST_STEP_UP = 4
"""A rise to so many workers is allowed whatever the current number is."""


class HorizontalPodAutoscaler:
    """Decides how many workers run by their CPU utilization (`Window.cpu`), blind to what the trainer sees."""

    def __init__(
        self,
        *,
        target: float = 0.8,
        tolerance: float = 0.1,
        max_workers: int = 64,
        min_workers: int = 1,
        stabilization_windows: int = 5,
    ) -> None:
        if not 0 < target <= 1:
            raise PlanError(f"target must be a CPU utilization in (0, 1], but got {target!r}.")
        if not 0 <= tolerance < 1:
            raise PlanError(f"tolerance must be a share in [0, 1), but got {tolerance!r}.")
        if min_workers < 1 or max_workers < min_workers:
            raise PlanError(f"1 <= min_workers <= max_workers must hold, but got {min_workers} and {max_workers}.")
        if stabilization_windows < 1:
            raise PlanError(f"stabilization_windows must be at least 1, but got {stabilization_windows}.")
        self._target, self._tolerance = target, tolerance
        self._least, self._most = min_workers, max_workers
        self._recent: deque[int] = deque(maxlen=stabilization_windows)
        self._desired = min_workers

    @property
    def converged(self) -> bool:
        """Return whether the recommendations of the whole stabilization window agree."""
        return len(self._recent) == self._recent.maxlen and len(set(self._recent)) == 1

    def decide(self, window: Window, workers: int) -> Decision:
        """Return how many workers shall run; `workers` ran during the window."""
        running = Deployment(0, workers).workers
        invalid_reason = window.invalid_reason() or ("it has no CPU utilization" if window.cpu is None else "")
        if invalid_reason or window.cpu is None or running == 0:
            invalid_reason = invalid_reason or "no worker ran"
            return self._decision(
                f"keep {self._desired} workers: the window is thrown away, {invalid_reason}.", "discarded"
            )
        ratio = window.cpu / self._target
        desired = running
        if abs(ratio - 1) > self._tolerance:
            # A broken counter may report anything: bound the product before it becomes an integer.
            desired = math.ceil(min(running * ratio, 2.0 * max(running, self._most)) - 1e-9)
        desired = min(max(desired, self._least), max(2 * running, LEAST_STEP_UP), self._most)
        if not self._recent:
            # What runs counts as the first recommendation, or the very first window could take workers away.
            self._recent.append(running)
        self._recent.append(desired)
        # Going down follows the highest recommendation of the stabilization window, going up the newest.
        self._desired = max(self._least, min(max(desired, *self._recent), max(running, desired), self._most))
        phase = "converged" if self._desired == running else "scale_remote" if desired > running else "remove_remote"
        return self._decision(
            f"CPU utilization {window.cpu:.0%} of {running} workers where {self._target:.0%} is wanted: "
            f"{desired} desired, {self._desired} after stabilization.",
            phase,
        )

    def _decision(self, reason: str, phase: str) -> Decision:
        return Decision(Deployment(0, self._desired), phase, reason)
