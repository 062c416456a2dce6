"""What the windows of one deployment say together, for reports and for bids: nothing is decided by it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from pecan_ray.plan.windows import Deployment, Window

KEPT = 20
"""Newest windows of a deployment that count: a hundred seconds of windows of five."""
SHORTEST_STEP = 1e-3
"""A trainer that seems to do nothing but wait has this share of the batch time to itself: no clock tells less apart."""


@dataclass(frozen=True)
class Reading:
    """The mean of windows."""

    deployment: Deployment
    batch_time: float
    """Seconds."""
    wait: float | None
    """Of batch_time, the seconds in which the trainer waited; None: not measured."""
    error: float
    """Relative standard error of batch_time."""
    windows: int

    @property
    def own_time(self) -> float | None:
        """Seconds of the trainer's own step, more than 0."""
        if self.wait is None:
            return None
        return max(self.batch_time - self.wait, SHORTEST_STEP * self.batch_time)


def pooled(deployment: Deployment, windows: Sequence[Window]) -> Reading:
    """Return the mean of windows of one deployment; its error is what they claim, or show, whichever is greater."""
    weights = [window.batches for window in windows]
    times = [window.batch_time for window in windows]
    batch_time = fmean(times, weights)
    waits = [window.wait_time for window in windows if window.wait_time is not None]
    wait = min(fmean(waits, weights), batch_time) if len(waits) == len(windows) else None
    claimed = math.hypot(*(window.stderr / window.batch_time for window in windows)) / len(windows)
    # Batches of one window resemble each other, so what windows claim of their own error may be too little.
    shown = stdev(times) / batch_time / math.sqrt(len(times)) if len(times) > 1 else 0.0
    return Reading(deployment, batch_time, wait, max(claimed, shown), len(windows))
