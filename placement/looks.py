"""What the placement controller reads of a job, twice a second, and the sums over its last looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pecan_ray.placement.objective import NO_WAIT_SHARE
from pecan_ray.plan.windows import Deployment

LOOK_S = 1.0
"""A verdict rests on so many seconds since workers came or went: two looks of half a second."""
ROWS = 30
"""A rate rests on so many rows: with rows that differ as much as their mean, it is then right to 18 %."""
FULL = 0.9
"""Load up to which workers are given: the speed of workers drifts by about a tenth, as the papers' traces show."""
STEPS = 4
"""Steps of the trainer that say what it needs while it does not wait; one alone may be a pause."""


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
    """Seconds of local and of remote workers with work that nothing held back."""
    blocked: tuple[float, float] = (0.0, 0.0)
    """Seconds in which finished batches of local and of remote workers were not taken."""
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
    paid: tuple[float, ...] = ()
    """$ per hour of the remote workers that run, by the nodes that they are on."""
    overpaid: bool = False
    """These are more than was forecast: cheap nodes had no room."""
    remote_row_bytes: float = 0.0
    """Bytes of a row as remote workers send it; 0: none has come."""
    row_transfer: float = 0.0
    """What these cost: $ an hour for a row a second."""
    accelerator: bool | None = None
    """Workers leave decoding to the trainer's accelerator; None: they never may."""


class LookSums(NamedTuple):
    """What was seen in some time: in one look, or in many, added up."""

    span: float = 0.0
    """Seconds."""
    waited: float = 0.0
    taken: float = 0.0
    """Rows that trainers took."""
    steps: float = 0.0
    made_local: float = 0.0
    made_remote: float = 0.0
    """Rows that workers of each side made."""
    busy_local: float = 0.0
    busy_remote: float = 0.0
    """Seconds of workers of each side that nothing held back."""
    blocked: float = 0.0

    @classmethod
    def of(cls, o: Observation) -> LookSums:
        """Return one look."""
        return cls(o.dt, o.waited, o.rows, o.steps, *o.produced, *o.work_done, sum(o.blocked))

    @classmethod
    def over(cls, looks: Sequence[LookSums], share: float = 1.0) -> LookSums:
        """Return such a share of what looks add up to."""
        return cls(*(share * sum(column) for column in zip(*looks, strict=True)))

    def add(self, look: LookSums, keep_s: float) -> LookSums:
        """Return them with one look more; what is older than `keep_s` counts less and less."""
        return LookSums.over((self, look), min(1.0, keep_s / (self.span + look.span)))

    @property
    def rows(self) -> float:
        """Rows that workers made."""
        return self.made_local + self.made_remote

    @property
    def wait(self) -> float:
        """Share of the time in which the trainer waited."""
        # A wait that is not over is counted from its beginning, which may lie before the looks.
        return min(1.0, self.waited / self.span)

    @property
    def demand(self) -> float:
        """Rows a second that the trainer would take if it never waited."""
        return self.taken / max(1e-9, self.span - self.waited)

    @property
    def work_done(self) -> float:
        """Worker seconds that nothing held back."""
        return self.busy_local + self.busy_remote

    @property
    def load(self) -> float:
        """Share of the workers' time in which nothing held them back."""
        busy = self.work_done + self.blocked
        return self.work_done / busy if busy > 0 else 0.0

    @property
    def can_decide(self) -> bool:
        """Return whether these looks are long enough for a verdict."""
        # A trainer that waits says what it needs without a step.
        told = self.steps >= STEPS or self.waited > NO_WAIT_SHARE * self.span
        return self.span >= 2 * LOOK_S and told


def drop_old_looks(looks: tuple[LookSums, ...], rows: float, span: float) -> tuple[LookSums, ...]:
    """Drop the oldest looks that a verdict on so many rows and seconds does not need: they would swallow a pause."""
    while len(looks) > 2 and (sums := LookSums.over(looks[1:])).can_decide and sums.rows >= rows and sums.span >= span:
        looks = looks[1:]
    return looks
