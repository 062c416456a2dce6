"""What a client tells a policy of the papers: windows, cut as live ones are."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pecan_ray.job.windows import WindowMeter
from pecan_ray.plan.windows import LEAST_BATCHES, Window
from pecan_ray.simulator.flow import Flow


@dataclass(frozen=True)
class ClientRule:
    """How windows are cut."""

    window_batches: int | None = None
    """Batches of a window; None: what the policy asks for."""
    window_s: float | None = 5.0
    """A window ends after this time too, if it holds some batches; None: it does not."""
    discard: int = 0
    """Batches that are not measured after workers came or went."""
    patience_s: float = 180.0
    """How long a worker without a node counts as awaited: without batches to discard, windows meanwhile are dropped."""
    counts_draining: bool = False
    """A worker that finishes its last split is one of those that run, until it has gone."""


LIVE = ClientRule()
"""Windows of reports."""
RELEASED = ClientRule(window_s=None, discard=150, counts_draining=True)
"""The client of Cachew and Pecan: 150 batches are thrown away after each change (Cachew §4.3)."""

HPA = "hpa"
"""The Horizontal Pod Autoscaler, by CPU utilization of remote workers: a baseline beside the modes of AutoPlacement."""
X = 500
"""Batches of a window of the papers' client (Pecan §5.1)."""
T = 0.03
"""Share by which a batch time must change to count as changed (Pecan §5.1)."""


def released(window: int = X) -> ClientRule:
    """Return the client of the papers, with windows of a given length."""
    return replace(RELEASED, window_batches=window)


def client_of(mode: str, window: int = X) -> ClientRule:
    """Return the client that a mode is run with: the papers' with theirs, ours with our own."""
    if mode == HPA:  # Cachew compares with it, in windows of the length that its driver asks for
        return RELEASED
    return LIVE if mode == "auto" else released(window)


class SimulatedMeter:
    """Cuts the totals of a job's simulated clients into windows."""

    def __init__(self, flow: Flow, rule: ClientRule, batches: int, remote_cpu: float) -> None:
        self._flow, self._rule = flow, rule
        self._remote_cpu = remote_cpu
        age = math.inf if rule.window_s is None else rule.window_s
        self._meter = WindowMeter(len(flow.clients), rule.window_batches or batches, age, rule.discard)
        self._skip = False
        self._work_done = self._remote_seconds = self.since = 0.0
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Begin a window, which began at that time."""
        self._report()
        self._meter.cut()
        self.since, self._remote_seconds, self._work_done = now, 0.0, self._flow.feed.work_done

    def touch(self, now: float) -> None:
        """Workers came or went."""
        self.restart(now)
        self._meter.touch()
        self._skip = self._rule.discard > 0

    def account(self, seconds: float, remote: int) -> None:
        """Note how many remote workers were there for how long."""
        self._remote_seconds += seconds * remote

    def _report(self) -> None:
        for rank, client in enumerate(self._flow.clients):
            self._meter.add(rank, client.totals)

    def still_missing(self) -> int:
        """Return how many more batches the window (or what is skipped before it) needs."""
        self._report()
        return self._meter.still_missing

    def batches_missing_at_deadline(self) -> int:
        """Return how many more batches a window needs that is closed for its age: it ends with a batch."""
        self._report()
        return max(1, LEAST_BATCHES - self._meter.batches)

    def deadline(self) -> float:
        """Return when the window ends for its age; never if it does not."""
        return math.inf if self._rule.window_s is None or self._skip else self.since + self._rule.window_s

    def close(self, now: float, spoilt: bool = False) -> Window | None:
        """Return the window if it is complete, and begin the next one; `spoilt`: workers drain, or are awaited."""
        self._report()
        if self._skip:
            if not self._meter.skip_batches:
                self._skip = False
                self.restart(now)
            return None
        window = self._meter.close()
        if window is None:
            return None
        cpu = self._utilization()
        self.restart(now)
        return replace(window, cpu=cpu, touched=spoilt and not self._rule.discard)

    def cut(self, now: float) -> Window:
        """Return what was measured since the last window, complete or not; one without batches if nothing was."""
        self._report()
        window = self._meter.cut()
        self.restart(now)
        return window or Window(0.0, 0.0, 0)

    def _utilization(self) -> float | None:
        """Return how much of their CPUs the remote workers used; None where there was none."""
        if self._remote_seconds <= 0:
            return None
        return min(1.0, (self._flow.feed.work_done - self._work_done) / self._remote_seconds) * self._remote_cpu
