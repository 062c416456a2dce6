"""A deadline as a pace: how long a batch may take on average, so that a job ends in time.

    longest batch time = what is left of the time * share of it that steps take / batches that are left

The share is below 1 where the trainer also evaluates and writes checkpoints.  A little is kept in reserve.
"""

from __future__ import annotations

from pecan_ray.job.windows import StepTotals

RESERVE = 0.03
"""Share of the time that is left over: a pace is measured to about so much."""
FEWEST_LEFT = 50
"""With fewer batches to go nothing that is changed pays any more."""
KNOWN_FROM = 0.1
"""Where the length of an epoch is not known, this share of it tells."""
SHORTEST_S = 1e-6
"""The pace that is wanted when the time is over: as fast as can be."""


class DeadlineBudget:
    """What a job with a deadline must keep to."""

    def __init__(self, deadline_s: float, epochs: int, epoch_batches: int | None) -> None:
        """`deadline_s`: since the job began; `epoch_batches`: of each trainer, where known beforehand."""
        self._deadline_s, self._epochs, self._epoch_batches = deadline_s, epochs, epoch_batches
        self._totals: dict[int, StepTotals] = {}
        self._since: float | None = None
        """When the first steps were told, and how many seconds of steps these were."""
        self._before = 0.0
        self._batches_estimated = epoch_batches is None
        self._longest_s: float | None = None
        self._logged: list[str] = []
        if self._batches_estimated:
            self._logged.append(
                f"the job shall end within {deadline_s:.0f} s, but how many batches it has is not known yet: until a "
                "part of the first epoch has shown it, the cheapest workers are looked for"
            )

    def report(self, rank: int, totals: StepTotals, seconds: float) -> None:
        """Take over a trainer's totals."""
        self._totals[rank] = totals
        # The share of steps counts from here, because the start of workers is no evaluation and no checkpoint.
        if self._since is None and totals.batches:
            self._since, self._before = seconds, totals.seconds

    def longest_s(self, seconds: float, epochs: float) -> float | None:
        """Return the longest mean time of a batch from now on; None as long as it is not known.

        `epochs`: so many are done, with the share of the one that runs where that is known.
        """
        done = min((totals.batches for totals in self._totals.values()), default=0)
        if self._batches_estimated and epochs >= KNOWN_FROM and done:
            if self._epoch_batches is None:
                self._logged.append(f"an epoch has about {done / epochs:.0f} batches: the pace is known from now on")
            # Estimated anew with each look: the share of the epoch becomes more exact as it goes on.
            self._epoch_batches = max(1, round(done / epochs))
        if self._epoch_batches is None:
            return None
        left = self._epochs * self._epoch_batches - done
        if left < FEWEST_LEFT:
            return self._longest_s
        time = (1 - RESERVE) * (self._deadline_s - seconds) * self._share_of_steps(seconds)
        if time <= 0 and (self._longest_s is None or self._longest_s > SHORTEST_S):
            self._logged.append(f"the deadline of {self._deadline_s:.0f} s is over, and {left} batches are left")
        self._longest_s = max(SHORTEST_S, time / left)
        return self._longest_s

    def _share_of_steps(self, seconds: float) -> float:
        """Return which share of the time trainers step, not evaluate."""
        if self._since is None or seconds <= self._since:
            return 1.0
        # The slowest trainer holds up the others.
        steps = max(totals.seconds for totals in self._totals.values()) - self._before
        return min(1.0, steps / (seconds - self._since)) if steps > 0 else 1.0

    def take_messages(self) -> list[str]:
        """Return what must be told, each thing once."""
        message, self._logged = self._logged, []
        return message
