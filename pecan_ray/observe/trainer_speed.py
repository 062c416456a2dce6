"""How fast a run is by now, how long it has to go, and both in words."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pecan_ray.batch_limits import total_batches
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.job.saved_state import SavedState
from pecan_ray.options import IterOptions
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import num_batches
from pecan_ray.sampling.subsets import members
from pecan_ray.sources.memory import Arrays, Items

LATELY_S = 10.0
"""A pace is that of so many seconds: a checkpoint or an evaluation is forgotten soon, and single batches do not
show."""


@dataclass(frozen=True)
class TrainerSpeed:
    """How a trainer is doing lately."""

    batches: int
    """Batches in all."""
    total: int | None
    """Batches that there will be; None: not known."""
    per_s: float
    rows_per_s: float
    wait_share: float

    @property
    def left_s(self) -> float | None:
        """Seconds that are left at this pace; None where that is not known."""
        return None if self.total is None or not self.per_s else max(0, self.total - self.batches) / self.per_s


class RecentSpeed:
    """Measures the pace over the last seconds, from looks at how a trainer is doing."""

    def __init__(self, end_epoch: int | None, total: int | None) -> None:
        """`end_epoch`: number of the first epoch that does not come any more; None: there is none.

        `total`: batches that there will be; None: as many in each epoch as in those that are over.
        """
        self._end_epoch, self._total = end_epoch, total
        self._looks: deque[TrainerProgress] = deque([TrainerProgress()])
        self._epoch: int | None = None
        self._first = True

    @classmethod
    def of_job(cls, plan: Plan, options: IterOptions, saved: SavedState | None) -> RecentSpeed:
        """Begin to measure a job of a plan, which goes on from a state if there is one."""
        return cls(options.end_epoch, known_batches(plan, options, saved))

    def epoch(self, epoch: int, before: int) -> None:
        """Note that a batch of an epoch has come, and how many had come before."""
        if self._epoch is not None and epoch > self._epoch and self._first:
            self._first = False
            if self._total is None and self._end_epoch is not None:
                self._total = before * (self._end_epoch - self._epoch)
        self._epoch = epoch

    def leave(self) -> None:
        """Note that an epoch is left before its end: how many batches there will be is not known any more."""
        self._total, self._first = None, False

    def look(self, now: TrainerProgress) -> TrainerSpeed:
        """Return the pace since the oldest look that is not too old."""
        # The newest look that is old enough stays, as the beginning of the time that is measured.
        while len(self._looks) > 1 and now.elapsed_s - self._looks[1].elapsed_s >= LATELY_S:
            self._looks.popleft()
        then = self._looks[0]
        self._looks.append(now)
        seconds = max(now.elapsed_s - then.elapsed_s, 1e-9)
        # An estimate that was passed tells nothing any more.
        total = None if self._total is None or self._total < now.yielded else self._total
        return TrainerSpeed(
            now.yielded,
            total,
            (now.yielded - then.yielded) / seconds,
            (now.rows - then.rows) / seconds,
            min(1.0, max(0.0, now.waited_s - then.waited_s) / seconds),
        )


def known_batches(plan: Plan, options: IterOptions, saved: SavedState | None) -> int | None:
    """Return how many batches a trainer gets, where that is known without reading or listing anything."""
    known = all(isinstance(source, (Arrays, Items)) for source in plan.sources())
    if not known or options.share or options.sharding == "off":
        return None
    batches = num_batches(plan, members)
    return total_batches(options, None if batches is None else math.ceil(batches / options.world_size), saved)


def run_length(name: str, plan: Plan, options: IterOptions, saved: SavedState | None) -> int:
    """Return how many batches a trainer gets, of all epochs or of what a state has left.

    Raises TypeError where it is not known, as Python expects it of what has no length.
    """
    unknown = {
        "epochs=None has no end": options.epochs is None,
        "each of several ranks gets what it asks for": options.world_size > 1,
        "a reader that shares may begin in the middle of an epoch": bool(options.share),
        'sharding="off" gives every worker all data': options.sharding == "off",
        f'on_error="{options.on_error}" may leave elements out': options.on_error != "raise",
        f'visitation="{options.visitation}" may lose or repeat elements': options.visitation != "exactly_once",
    }
    batches = num_batches(plan, members) if not any(unknown.values()) else None
    if batches is not None and not isinstance(options.headspace, bool):
        batches = options.headspace
    wanted = None if options.share else total_batches(options, batches, saved)
    if wanted is None:
        why = next((text for text, is_so in unknown.items() if is_so), "its data would have to be read for that")
        raise TypeError(f"how many batches {name} gives is not known before its end: {why}")
    return wanted


def details(pace: TrainerSpeed, workers: str, dollars: float | None) -> str:
    """Say what stands behind the rate: elements, waiting, workers, and what has been paid so far."""
    paid = "" if dollars is None else f", ${dollars:.4f}"
    return f"{pace.rows_per_s:.0f} elements/s, waiting {pace.wait_share:.0%}, {workers}{paid}"


def to_str(pace: TrainerSpeed, workers: str, dollars: float | None) -> str:
    """Say all of it in one line, for logs."""
    of = "" if pace.total is None else f" of {pace.total}"
    left = "" if pace.left_s is None else f", {_clock_time(pace.left_s)} left"
    return f"{pace.batches}{of} batches, {pace.per_s:.1f}/s, {details(pace, workers, dollars)}{left}"


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
