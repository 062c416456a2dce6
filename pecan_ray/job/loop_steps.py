"""The steps of a training loop, from one batch in hand to the next, as its trainer's state measures them."""

from __future__ import annotations

from pecan_ray.job.lockstep import MOST_TRAINERS
from pecan_ray.job.windows import StepTotals

WARM_UP = 3
"""Steps of a trainer are measured after so many batches: the first ones compile and allocate."""


class LoopSteps:
    """Sums over the steps of one trainer."""

    def __init__(self, world_size: int) -> None:
        self.totals = StepTotals()
        self._alone = not 1 < world_size <= MOST_TRAINERS
        self._last_taken: float | None = None
        """When the loop had its last batch; None: what it does until the next one is no step."""
        self._ready_when_requested = 0
        self._in_line_since: float | None = None
        """When the loop began to wait for the next rows while later ones were here; None: it does not."""
        self.in_line_s = 0.0
        """Seconds of all these waits."""

    def note_request(self, ready: int) -> None:
        """Note that the loop asks for a batch, and how many are here."""
        self._ready_when_requested = ready

    def note_wait(self, now: float, *, in_line: bool) -> None:
        """Note that the loop waits; `in_line`: while rows behind the next ones are here."""
        if in_line and self._in_line_since is None:
            self._in_line_since = now

    def note_taken(self, number: int, asked: float, now: float) -> None:
        """Note that the loop has the batch of a number, for which it had asked at some time."""
        if number > WARM_UP and self._last_taken is not None:
            self.totals = self.totals.step(
                now - self._last_taken, now - asked, self._ready_when_requested, alone=self._alone
            )
        else:
            self.totals = self.totals.after_skipped_step(now - asked)
        self._last_taken = now
        if self._in_line_since is not None:
            self.in_line_s, self._in_line_since = self.in_line_s + now - self._in_line_since, None

    def pause(self) -> None:
        """Note that the loop begins anew: until its next batch it waits for what a pipeline takes to fill."""
        self._last_taken = None
