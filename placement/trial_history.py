"""What the placement controller remembers: a value of some hundred bytes, which is pickled as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pecan_ray.placement.looks import FULL, LookSums
from pecan_ray.plan.windows import Deployment

# docs/decisions/placement.md#126-steer-by-the-load: from 5 to 640 s.
QUIET_S = 5.0
"""Workers go after so long a time in which fewer sufficed: two starts of local ones.  It doubles when one was wrong."""
MAX_QUIET_S = 2**7 * QUIET_S
"""It doubles seven times at most.  What a trial has shown holds for so long."""
HELD_S = 2**5 * QUIET_S
"""After decoding on the accelerator was given up it is not tried for so long, twice as long the next time, and so on:
each trial replaces all workers, which may take as long as the trial itself."""

TrialKind: TypeAlias = Literal["add", "fewer", "bill"]


@dataclass(frozen=True)
class PlacementTrial:
    """A deployment on trial: for what, and what ran before."""

    kind: TrialKind
    before: Deployment
    measure: float
    """Rows a second before it; for "bill", $ an hour over rows a second."""
    remote: int = 0
    """Remote workers without which it is none."""


@dataclass(frozen=True)
class Bound:
    """More workers of a side brought nothing: this holds until the rate has changed, or the room has grown."""

    count: float = math.inf
    rate: float = 0.0
    room: int = 0
    until: float = 0.0
    beside: int = 0
    """Workers of the other side."""

    def most(self, now: float, rate: float, room: int, beside: int) -> float:
        """Return how many workers are of use now."""
        # FULL twice: what drift explains on both sides, when it was measured and now, is no other rate.  Where
        # workers are lost, those that had been too many are needed.
        same = self.rate * FULL**2 < rate < self.rate / FULL**2
        holds = now < self.until and same and room <= self.room and beside >= self.beside
        return self.count if holds else math.inf


@dataclass(frozen=True)
class Floor:
    """The workers that have been needed for a demand."""

    least: Deployment
    demand: float
    until: float

    def workers(self, now: float, demand: float) -> Deployment:
        """Return the fewest workers for a demand, as far as was shown."""
        # A demand that has fallen by more than drift says nothing about what it needed before.
        return self.least if now < self.until and demand > FULL * self.demand else Deployment(0, 0)


@dataclass(frozen=True)
class TrialHistory:
    """What trials and removals have shown."""

    bounds: tuple[Bound, Bound] = (Bound(), Bound())
    measured_rates: tuple[float, float] = (math.inf, math.inf)
    """Rows a second of one worker of each side, where fewer were tried and the job was slower."""
    floor: Floor = Floor(Deployment(0, 0), 0.0, 0.0)
    bracket: tuple[int, int] = (-1, 0)
    """Numbers of local workers, below and above, beside which a row is dearer; at first none lie between."""


@dataclass(frozen=True)
class ControlTimes:
    """When, and for how long."""

    quiet_s: float = QUIET_S
    changed: float = 0.0
    """When other workers were asked for last."""
    held_since: float | None = None
    """Since when something shared, or the trainer's line for a CPU, holds the job up."""

    def longer(self) -> float:
        """Return the time of quiet after a removal that was wrong."""
        return min(MAX_QUIET_S, 2 * self.quiet_s)


@dataclass(frozen=True)
class Known:
    """Rates as they were seen last."""

    each: tuple[float, float] = (0.0, 0.0)
    """Rows a second of a local and of a remote worker that nothing holds back."""
    step_s: float = 0.0
    """The trainer's own time for a batch."""


@dataclass(frozen=True)
class AcceleratorUse:
    """What is known of decoding on the trainer's accelerator."""

    on: bool = False
    """Workers shall leave decoding to it."""
    began: float = 0.0
    """Since when this is so."""
    rate_before: float = 0.0
    """Rows a second that the trainer took without it, before it was tried last."""
    is_kept: bool = False
    """It is on, and a trial has shown that it is worth it."""
    held_s: float = HELD_S
    """After the next trial that is undone there is none for so long."""
    not_before: float = 0.0
    """It is not tried before that time."""
    measured_since: float = -math.inf
    """Since when the rate without it is measured."""


@dataclass(frozen=True)
class ControlState:
    """What the controller remembers."""

    running: Deployment | None = None
    """What ran during the looks."""
    looks: tuple[LookSums, ...] = ()
    missed_s: float = 0.0
    """Seconds in which the trainer waited beyond NO_WAIT_SHARE; what it does not use of that is set off."""
    known: Known = Known()
    stretch: LookSums = field(default_factory=LookSums)
    """All looks since workers came or went, from the last batch before that on; older ones count less and less."""
    calm_s: float = 0.0
    """Seconds without a wait that workers could end."""
    times: ControlTimes = ControlTimes()
    trial: PlacementTrial | None = None
    next_deployment: Deployment | None = None
    """What follows once all workers that were asked for are there."""
    removed_from: Deployment | None = None
    """What ran before workers went that were not needed; None: they were missed, or the bill has decided since."""
    trial_history: TrialHistory = TrialHistory()
    accelerator: AcceleratorUse = AcceleratorUse()
