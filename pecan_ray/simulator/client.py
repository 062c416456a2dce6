"""What a client tells the policy: windows, cut as live ones are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pecan_ray.job.windows import LEAST_BATCHES, StepTotals, WindowMeter
from pecan_ray.plan.windows import Window
from pecan_ray.simulator.flow import Flow


@dataclass(frozen=True)
class ClientRule:
    """How windows are cut."""

    window_batches: int | None = None
    """Batches of a window; None: what the policy asks for."""
    window_s: float | None = 5.0
    """A window ends after this time too, if it holds some batches; None: it does not."""
    discard: int | None = None
    """Batches that are not measured after workers came or went; None: the window ends there and is thrown away, as are
    those during which workers drain or are awaited."""
    pauses: bool = True
    """Leave out steps that are far out of line, and mark their window as touched."""
    patience_s: float = 180.0
    """How long a worker without a node counts as awaited."""
    corrects: bool = True
    """What the stock of ready batches has lost is taken out of a window: the batch time is the one that lasts."""
    counts_draining: bool = False
    """A worker that finishes its last split is one of those that run, until it has gone."""


LIVE = ClientRule()
"""Our client."""
RELEASED = ClientRule(window_s=None, discard=150, pauses=False, corrects=False, counts_draining=True)
"""The client of Cachew and Pecan: 150 batches are thrown away after each change (Cachew §4.3)."""

X = 500
"""Batches of a window of the papers' client (Pecan §5.1)."""
T = 0.03
"""Share by which a batch time must change to count as changed (Pecan §5.1)."""


def released(window: int = X) -> ClientRule:
    """Return the client of the papers, with windows of a given length."""
    return replace(RELEASED, window_batches=window)


def client_of(mode: str, window: int = X) -> ClientRule:
    """Return the client that a mode is run with: the papers' with theirs, ours with our own."""
    return LIVE if mode == "auto" else released(window)


class SimulatedMeter:
    """Cuts the totals of a job's simulated clients into windows."""

    def __init__(self, flow: Flow, rule: ClientRule, batches: int, remote_cpu: float) -> None:
        self._flow, self._rule, self._batches = flow, rule, rule.window_batches or batches
        self._remote_cpu = remote_cpu
        self._begun: list[StepTotals] = []
        self._worked = 0.0
        self.since = 0.0
        """When the window began."""
        self._skip = 0
        self._remote_seconds = 0.0
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Begin a window."""
        self._begun = self._totals()
        age = math.inf if self._rule.window_s is None else self._rule.window_s
        self._meter = WindowMeter(len(self._begun), self._batches, age)
        self._report(self._begun)
        self.since, self._remote_seconds, self._worked = now, 0.0, self._flow.feed.worked

    def touch(self, now: float) -> None:
        """Workers came or went."""
        self._skip = self._rule.discard or 0
        self.restart(now)

    def account(self, seconds: float, remote: int) -> None:
        """Note how many remote workers were there for how long."""
        self._remote_seconds += seconds * remote

    def _totals(self) -> list[StepTotals]:
        totals = [client.totals for client in self._flow.clients]
        return totals if self._rule.corrects else [replace(one, ready=0.0) for one in totals]

    def _report(self, totals: list[StepTotals]) -> None:
        for rank, one in enumerate(totals):
            self._meter.add(rank, one)

    def _have(self) -> int:
        return min(now.batches - then.batches for now, then in zip(self._totals(), self._begun, strict=True))

    def lacking(self) -> int:
        """Return how many more batches the window (or what is skipped before it) needs."""
        return max(1, (self._skip or self._batches) - self._have())

    def lacking_at_deadline(self) -> int:
        """Return how many more batches a window needs that is closed for its age: it ends with a batch."""
        return max(1, LEAST_BATCHES - self._have())

    def deadline(self) -> float:
        """Return when the window ends for its age; never if it does not."""
        return math.inf if self._rule.window_s is None or self._skip else self.since + self._rule.window_s

    def close(self, now: float, spoilt: bool = False) -> Window | None:
        """Return the window if it is complete, and begin the next one; `spoilt`: workers drain, or are awaited."""
        if self._skip:
            if self._have() >= self._skip:
                self._skip = 0
                self.restart(now)
            return None
        self._report(self._totals())
        if spoilt and self._rule.discard is None:
            self._meter.drain()
        window = self._meter.close()
        if window is None:
            return None
        cpu = self._utilization()
        self.restart(now)
        return replace(window, cpu=cpu)

    def _utilization(self) -> float | None:
        """Return how much of their CPUs the remote workers used; None where there was none."""
        if self._remote_seconds <= 0:
            return None
        return min(1.0, (self._flow.feed.worked - self._worked) / self._remote_seconds) * self._remote_cpu
