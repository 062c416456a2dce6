"""Where the time of a run goes, as the program sees it that trains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunTime:
    """Seconds since `iter_batches()` was called, by what the program did; each second counts once."""

    ray_s: float = 0.0
    """Until Ray was there."""
    controller_s: float = 0.0
    """Until the job's controller, or the shared group, had let this trainer in."""
    order_s: float = 0.0
    """Spent on the plan and on AutoOrder's sample."""
    first_batch_s: float = 0.0
    """Waiting for the first batch: for workers, and for what they make first."""
    waited_s: float = 0.0
    """Waiting for all other batches."""
    converted_s: float = 0.0
    """Converting batches to the format and bringing them to the device."""
    trained_s: float = 0.0
    """In the loop's own code."""

    @property
    def start_s(self) -> float:
        """Until the first batch was there, without what the loop's own code did before it asked."""
        return self.ray_s + self.controller_s + self.order_s + self.first_batch_s

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.start_s + self.waited_s + self.converted_s + self.trained_s

    @property
    def running_s(self) -> float:
        """Without the start."""
        return self.total_s - self.start_s
