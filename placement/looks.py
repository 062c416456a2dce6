"""What the placement controller reads of a job, twice a second, and the sums over its last looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pecan_ray.placement.objective import NO_WAIT_SHARE
from pecan_ray.plan.windows import Deployment

LOOK_S = 1.0
"""A verdict rests on so many seconds since workers came or went: two looks of half a second."""
ROWS = 30
"""A rate rests on so many rows: with rows that differ as much as their mean, it is then right to 18 %."""
FULL = 0.9
"""Load up to which workers are given: the speed of workers drifts by about a tenth, as the papers' traces show."""
STEPS = 4
"""So many steps of the trainer say what it needs while it does not wait; one alone may be a pause."""


@dataclass(frozen=True)
class Observation:
    """One look at a job.  What cannot be measured is None; seconds, rows and steps are those since the look before."""

    dt: float
    """Seconds since the look before."""
    running: Deployment
    requested: Deployment
    """Workers that run, and those that were asked for and may still come beside them."""
    room: Deployment
    """Most workers that CPUs, memory, prices, other jobs and the user allow."""
    waited: float = 0.0
    """Seconds in which a trainer waited for a batch, the wait that is not over included."""
    rows: float = 0.0
    """Rows that trainers took."""
    steps: int = 0
    since_taken: float = 0.0
    """Seconds since a trainer took a batch last."""
    produced: tuple[float, float] = (0.0, 0.0)
    """Rows that local and remote workers made."""
    work_done: tuple[float, float] = (0.0, 0.0)
    """Seconds of local and of remote workers with work that nothing held back,"""
    blocked: tuple[float, float] = (0.0, 0.0)
    """and those in which finished batches were not taken."""
    busy_waiting: float | None = None
    """While the trainer waited: share of the workers without a finished batch."""
    own_s: float | None = None
    """Seconds of one thread for a row when nobody is in its way: CPU time, and the waiting that a sample saw."""
    threads: tuple[float, float] = (1.0, 1.0)
    """Threads of a local and of a remote worker."""
    lag: float | None = None
    """Share of its time in which the trainer's own thread stood in line for a CPU."""
    least: Deployment = field(default_factory=lambda: Deployment(0, 0))
    """Workers that the user wants at least."""
    start_remote_s: float = 0.0
    """Seconds that remote workers took to start."""
    required_rate: float = math.inf
    """Rows a second that are enough, by a deadline."""
    grain: float = 1.0
    """Rows that come at once: workers count a batch when it is finished."""


@dataclass(frozen=True)
class Look:
    """What one look adds to the sums."""

    dt: float
    waited: float
    steps: int
    produced: tuple[float, float]
    work_done: tuple[float, float]
    blocked: float

    @classmethod
    def of(cls, o: Observation) -> Look:
        """Return what an observation adds."""
        return cls(o.dt, o.waited, o.steps, o.produced, o.work_done, sum(o.blocked))


@dataclass(frozen=True)
class LookSums:
    """Sums over looks."""

    span: float
    waited: float
    rows: float
    """That workers made."""
    steps: int
    produced: tuple[float, float]
    busy_s_by_side: tuple[float, float]
    """Seconds of local and of remote workers that nothing held back."""
    blocked: float

    @classmethod
    def over(cls, looks: Sequence[Look]) -> LookSums:
        """Add looks up."""
        made = sum(one.produced[0] for one in looks), sum(one.produced[1] for one in looks)
        return cls(
            span=sum(one.dt for one in looks),
            waited=sum(one.waited for one in looks),
            rows=sum(made),
            steps=sum(one.steps for one in looks),
            produced=made,
            busy_s_by_side=(sum(one.work_done[0] for one in looks), sum(one.work_done[1] for one in looks)),
            blocked=sum(one.blocked for one in looks),
        )

    @property
    def wait(self) -> float:
        """Share of the time in which the trainer waited."""
        # A wait that is not over is counted from its beginning, which may lie before the looks.
        return min(1.0, self.waited / self.span)

    @property
    def work_done(self) -> float:
        """Worker seconds that nothing held back."""
        return sum(self.busy_s_by_side)

    @property
    def load(self) -> float:
        """Share of the workers' time in which nothing held them back."""
        busy = self.work_done + self.blocked
        return self.work_done / busy if busy > 0 else 0.0

    @property
    def can_decide(self) -> bool:
        """Whether these looks are long enough for a verdict."""
        # A trainer that waits says what it needs without a step.
        told = self.steps >= STEPS or self.waited > NO_WAIT_SHARE * self.span
        return self.span >= 2 * LOOK_S and told


@dataclass(frozen=True)
class Taken:
    """What the trainer did since workers came or went."""

    span: float = 0.0
    """Seconds since the last batch before that."""
    rows: float = 0.0
    waited: float = 0.0

    def add(self, o: Observation, keep_s: float) -> Taken:
        """Return it with one look more; what is older than `keep_s` counts less and less."""
        fades = min(1.0, keep_s / (self.span + o.dt))
        return Taken(fades * (self.span + o.dt), fades * (self.rows + o.rows), fades * (self.waited + o.waited))

    @property
    def demand(self) -> float:
        """Rows a second that it would take if it never waited."""
        return self.rows / max(1e-9, self.span - self.waited)


def drop_old_looks(looks: tuple[Look, ...], rows: float, span: float) -> tuple[Look, ...]:
    """Drop the oldest looks that a verdict on so many rows and seconds does not need: they would swallow a pause."""
    while len(looks) > 2 and (sums := LookSums.over(looks[1:])).can_decide and sums.rows >= rows and sums.span >= span:
        looks = looks[1:]
    return looks


def last_of(looks: tuple[Look, ...]) -> tuple[Look, ...]:
    """Return the looks of the last second."""
    span = 0.0
    for count, one in enumerate(reversed(looks), 1):
        span += one.dt
        # 1e-9: two looks of half a second are one, whatever their floats add up to.
        if span >= LOOK_S - 1e-9:
            return looks[-count:]
    return looks


@dataclass(frozen=True)
class NeedPeaks:
    """The highest need of a stretch in which nobody waited: only needs that no later one has reached are kept."""

    stable_s: float = 0.0
    """Length of the stretch so far."""
    peaks: tuple[tuple[float, float], ...] = ()
    """When in the stretch, and rows a second."""
    produced: float = 0.0
    """Rows that workers made in it, and"""
    taken: float = 0.0
    """that trainers took."""

    def add(self, o: Observation, need: float, keep_s: float) -> NeedPeaks:
        """Return the stretch with one look more; needs older than `keep_s` are forgotten."""
        now = self.stable_s + o.dt
        # Older needs below the new one can never be the highest again, so the list falls from its first entry
        # to its last.
        higher = tuple(peak for peak in self.peaks if peak[1] > need and peak[0] > now - keep_s)
        return NeedPeaks(now, (*higher, (now, need)), self.produced + sum(o.produced), self.taken + o.rows)

    def most(self, settled_s: float) -> float:
        """Return the highest need, after `settled_s` without the share of what is made that only fills a stock.

        Queues are bounded by bytes, and hold many small batches.  What drift explains is no stock.
        """
        need = self.peaks[0][1]
        # Decision 126: for minutes nothing holds back workers that only fill a queue of small batches.
        # What they made looked needed, and 12 of 16 workers stayed where six were.
        fills = self.stable_s >= settled_s and self.taken < FULL * self.produced
        # Workers that wait until a backlog is gone make less than is needed, and it hides that for long.
        drains = self.taken > self.produced > 0
        return need * self.taken / self.produced if fills or drains else need
