"""From the steps of trainers to windows of batches: for the papers' policies and for reports; live and simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pecan_ray.job.lockstep import KEPT_STEPS, SampledStep, merged, own_share, should_sample
from pecan_ray.plan.windows import LEAST_BATCHES, Deployment, Window


@dataclass(frozen=True)
class StepTotals:
    """Sums over the steps of a trainer since its job began; a step is from one batch in hand to the next."""

    batches: int = 0
    seconds: float = 0.0
    squares: float = 0.0
    """Sum of the squares of the steps' seconds."""
    waited: float = 0.0
    """Of the seconds, those in which the trainer waited for a batch."""
    queued: float = 0.0
    """Sum of the batches that lay ready when the trainer asked."""
    waited_last: float = 0.0
    """Seconds in which the trainer waited for the batch that it has in hand."""
    sampled: tuple[SampledStep, ...] = ()
    """The last steps that were looked at singly, to be laid beside those of other trainers."""

    def since(self, before: StepTotals) -> StepTotals:
        """Return the sums of what came after."""
        return StepTotals(
            self.batches - before.batches,
            self.seconds - before.seconds,
            self.squares - before.squares,
            self.waited - before.waited,
            self.queued - before.queued,
            sampled=tuple(one for one in self.sampled if one.number >= before.batches),
        )

    def after_skipped_step(self, waited: float) -> StepTotals:
        """Return the sums after a step that does not count: the next one begins with its batch in hand."""
        return replace(self, waited_last=waited)

    def step(self, seconds: float, waited: float, queued: float, *, alone: bool = False) -> StepTotals:
        """Return the sums with one more step; `alone`: there are no other trainers to lay it beside."""
        number, total = self.batches, self.seconds + seconds
        sampled = self.sampled
        if not alone and should_sample(number, total, number + 1):
            sampled = (*sampled[1 - KEPT_STEPS :], SampledStep(number, self.waited_last, seconds - waited))
        return StepTotals(
            number + 1,
            total,
            self.squares + seconds * seconds,
            self.waited + waited,
            self.queued + queued,
            waited,
            sampled,
        )


@dataclass(frozen=True)
class ObservedWindow:
    """A window, and what ran meanwhile."""

    seconds: float
    """Since the job began."""
    window: Window
    deployment: Deployment


class WindowMeter:
    """Cuts the running totals of all trainers of a job into windows.

    Workers that come or go end the window under way: it is thrown away, as are the batches after that which the papers
    do not measure.
    """

    def __init__(self, trainers: int, batches: int, seconds: float = math.inf, discarded: int = 0) -> None:
        """Measure windows.

        Args:
            trainers: Number of trainers.
            batches: A window ends after so many batches of every trainer,
            seconds: or after so long, if every trainer has taken some.
            discarded: Batches of every trainer that are not measured after workers came or went.
        """
        self._trainers, self._batches, self._seconds = trainers, batches, seconds
        self._discarded, self._skip = discarded, 0
        self._latest: dict[int, StepTotals] = {}
        self._open_steps: dict[int, StepTotals] = {}
        self._sampled: dict[int, tuple[SampledStep, ...]] = {}
        """Of the window, what reports no longer hold."""

    def add(self, rank: int, totals: StepTotals) -> None:
        """Take over a trainer's totals."""
        self._latest[rank] = totals
        self._open_steps.setdefault(rank, totals)
        if self._trainers > 1:
            self._sampled[rank] = merged(self._sampled.get(rank, ()), totals.sampled)
        if self._skip and len(self._latest) == self._trainers and self.batches >= self._skip:
            self._begin()

    @property
    def batches(self) -> int:
        """Batches that every trainer has taken since the window, or what is left out before it, began."""
        return min(
            (totals.batches - self._open_steps[rank].batches for rank, totals in self._latest.items()), default=0
        )

    @property
    def still_missing(self) -> int:
        """Batches that are still to come until the window ends, or begins."""
        return max(1, (self._skip or self._batches) - self.batches)

    @property
    def skip_batches(self) -> bool:
        """Return whether batches are left out now, since workers came or went."""
        return self._skip > 0

    def touch(self) -> None:
        """Note that workers came, went or died: what is measured now belongs to no deployment."""
        self._begin()
        self._skip = self._discarded

    def close(self) -> Window | None:
        """Return the window if it is complete, and begin the next one."""
        old = all(
            totals.seconds - self._open_steps[rank].seconds >= self._seconds for rank, totals in self._latest.items()
        )
        return self.cut() if self.batches >= (LEAST_BATCHES if old else self._batches) else None

    def cut(self) -> Window | None:
        """Return what was measured so far, complete or not, and begin the next window; None: nothing was."""
        if self._skip or len(self._latest) < self._trainers or self.batches < 1:
            return None
        parts = [
            replace(totals, sampled=self._sampled.get(rank, ())).since(self._open_steps[rank])
            for rank, totals in self._latest.items()
        ]
        self._begin()
        return window_of(parts)

    def _begin(self) -> None:
        self._open_steps = dict(self._latest)
        self._sampled.clear()
        self._skip = 0


def window_of(parts: Sequence[StepTotals]) -> Window:
    """Return the window of several trainers: their means, averaged (Pecan §5.1, several clients).

    What one of them waits for another is no work of its own: see `pecan_ray.job.lockstep`.
    """
    trainers = len(parts)
    times = [part.seconds / part.batches for part in parts]
    share = own_share([part.sampled for part in parts]) if trainers > 1 else None
    owns = [(part.seconds - part.waited if share is None else part.seconds * share) / part.batches for part in parts]
    waits = [time - own for time, own in zip(times, owns, strict=True)]
    variances = [
        max(0.0, part.squares / part.batches - (part.seconds / part.batches) ** 2) / part.batches for part in parts
    ]
    return Window(
        batch_time=sum(times) / trainers,
        queue_size=sum(part.queued / part.batches for part in parts) / trainers,
        batches=min(part.batches for part in parts),
        wait_time=min(sum(times), max(0.0, sum(waits))) / trainers,
        stderr=math.sqrt(sum(variances)) / trainers,
    )
