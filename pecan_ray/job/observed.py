"""What is measured of a job whose numbers of workers are fixed: nobody decides by it, but reports tell it."""

from __future__ import annotations

from collections import deque

from pecan_ray.job.policy_runner import MOST_STEPS
from pecan_ray.job.windows import ObservedWindow, WindowMeter
from pecan_ray.options import AutoWorkers
from pecan_ray.placement.policy import WINDOW_BATCHES
from pecan_ray.plan.windows import Deployment


class Observed:
    """Cuts the steps of all trainers into windows."""

    def __init__(self, trainers: int) -> None:
        # Windows as mode "auto" reports them (decision 9), so that pages show both alike.
        self.meter = WindowMeter(trainers, WINDOW_BATCHES["auto"], AutoWorkers().window_s)
        self.windows: deque[ObservedWindow] = deque(maxlen=MOST_STEPS)

    def look(self, running: Deployment, seconds: float) -> None:
        """Keep the window if one has ended."""
        window = self.meter.close()
        if window is not None and running.workers and not window.invalid_reason():
            self.windows.append(ObservedWindow(seconds, window, running))
