"""What the scaling policies read and answer: windows of measurements, deployments, decisions.

A window is a fact, so it is never refused when it is made: a clock that jumped gives a window with a defect, which
the policies throw away.  Deployments and decisions are answers of ours and are checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pecan_ray.errors import PlanError

Removal: TypeAlias = Literal["drain", "fast"]

LEAST_BATCHES = 2
"""A window of one batch has no interval between batches: its time says nothing."""
MOST_BATCHES = 10**12
"""A window of more batches is a broken counter, not a trainer."""
SHORTEST_S = 1e-9
"""A shorter batch time is a broken clock, not a trainer: a call of Python takes 50 times as long."""
LONGEST_S = 1e7
"""A longer batch time, of four months, is a broken clock, not a trainer."""


@dataclass(frozen=True)
class Window:
    """What was measured since the last decision."""

    batch_time: float
    """Seconds to get and process one batch, mean over the window, averaged over clients."""
    queue_size: float
    """Batches waiting at the client, mean."""
    batches: int
    wait_time: float | None = None
    """Of batch_time, the seconds in which the trainer waited for input; None: not measured."""
    stderr: float = 0.0
    """Standard error of batch_time, in seconds."""
    cpu: float | None = None
    """Mean CPU utilization of the workers, 1.0 = all of their CPUs busy; None: not measured."""
    touched: bool = False
    """Workers came, went or died during the window."""

    def invalid_reason(self) -> str:
        """Say why the window cannot be used; empty if it can."""
        if not LEAST_BATCHES <= self.batches <= MOST_BATCHES:
            return f"the window holds {self.batches} batches, where {LEAST_BATCHES} are the least to measure by"
        if not SHORTEST_S <= self.batch_time <= LONGEST_S:
            return f"its batch time of {self.batch_time} s is no duration"
        if not 0 <= self.queue_size < math.inf:
            return f"its queue size of {self.queue_size} is no length"
        if not 0 <= self.stderr < math.inf:
            return f"its standard error of {self.stderr} s is no error"
        # A thousandth more, because both are sums that were rounded.
        if self.wait_time is not None and not 0 <= self.wait_time <= self.batch_time * 1.001:
            return f"its wait time of {self.wait_time} s does not fit into a batch time of {self.batch_time} s"
        if self.cpu is not None and not 0 <= self.cpu < math.inf:
            return f"its CPU utilization of {self.cpu} is no share"
        return "workers came or went during it" if self.touched else ""


@dataclass(frozen=True, order=True)
class Deployment:
    """What was running meanwhile, or shall run: totals over all clients."""

    local: int
    """Workers on the hosts of the trainers."""
    remote: int
    """Workers on other nodes."""

    def __post_init__(self) -> None:
        for name in ("local", "remote"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise PlanError(f"Deployment({name}=...) must be a whole number >= 0, but got {value!r}.")

    @property
    def workers(self) -> int:
        """Number of workers in all."""
        return self.local + self.remote

    def __str__(self) -> str:
        return f"{self.local} local + {self.remote} remote"


@dataclass(frozen=True)
class Decision:
    """What shall run from now on, and why."""

    target: Deployment
    phase: str
    """Mode "auto": add_local, add_remote, accelerator, remove, trial, back, measure or converged.  The papers' modes:
    scale_remote, scale_local, add_local, remove_local, add_remote, remove_remote, settle_for_less, converged or
    discarded.  Any: failed.
    """
    reason: str
    """One sentence with the numbers in it."""
    removal: Removal = "drain"
    """How workers that are too many leave: after the splits they hold, or at once (at-most-once visitation only)."""
    accelerator: bool = False
    """Workers leave decoding to the trainer's accelerator."""

    @property
    def workers(self) -> int:
        """Number of workers in all, for policies that do not place them."""
        return self.target.workers
