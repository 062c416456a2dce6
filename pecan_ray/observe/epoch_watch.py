"""How long an epoch takes that the workers, and not the trainer, make as long as it is."""

from __future__ import annotations

from pecan_ray.job.messages import TrainerProgress

LEAST_WAITING = 0.8
"""Share of an epoch in which the trainer must wait for batches: else it says more about the trainer."""

LEAST_S = 2.0
"""Seconds of an epoch: a shorter one is made as long as it is by pauses, as of a worker that is replaced (1 s)."""


class EpochWatch:
    """Measures the first epoch behind another one, from the last batch before it to its own last one."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._started: TrainerProgress | None = None
        """How the trainer was doing when the epoch before was over; None: there was none."""
        self._last = TrainerProgress()
        self.over = False
        """Whether it was measured, or another one says nothing new."""

    @property
    def ended_s(self) -> float:
        """Seconds since the job began at the last batch that was noted."""
        return self._last.elapsed_s

    def batch(self, epoch: int, progress: TrainerProgress) -> float | None:
        """Note a batch, and how the trainer is doing with it; return the seconds of an epoch that is over with it."""
        found = None
        if self._epoch is not None and epoch != self._epoch:
            found = self.end()
            self._started = self._last
        self._epoch, self._last = epoch, progress
        return found

    def leave(self) -> None:
        """Note that the epoch is left: neither is it a whole one, nor does the next one begin where one has ended."""
        self._epoch = self._started = None

    def end(self) -> float | None:
        """Return the seconds of the epoch whose last batch was noted, if it was measured."""
        if self.over or self._started is None:
            return None
        self.over = True
        seconds = self._last.elapsed_s - self._started.elapsed_s
        waited = self._last.waited_s - self._started.waited_s
        return seconds if seconds >= LEAST_S and waited >= LEAST_WAITING * seconds else None
