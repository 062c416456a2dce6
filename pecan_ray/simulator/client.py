"""What a client tells the policy: windows cut from the totals of its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pecan_ray.plan.windows import Window
from pecan_ray.simulator.flow import Flow, Totals

LEAST_BATCHES = 10
"""Of a window that is closed for its age."""
FROM_STOCK, STOCK_LEFT = 0.1, 0.5
"""A stock of ready batches that shrinks by less than the first share of a window's batches, and of which more than the
second share (or all but one batch) is left, varies by chance."""


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


class Meter:
    """Cuts the totals of a job's clients into windows."""

    def __init__(self, flow: Flow, rule: ClientRule, batches: int, places: int, remote_cpu: float) -> None:
        self._flow, self._rule, self._batches = flow, rule, rule.window_batches or batches
        self._places, self._remote_cpu = places, remote_cpu
        self._begun: list[Totals] = []
        self._worked = 0.0
        self.since = 0.0
        """When the window began."""
        self._stock = 0.0
        self._skip = 0
        self._remote_seconds = 0.0
        self.restart(0.0)

    def restart(self, now: float) -> None:
        """Begin a window."""
        self._begun = [replace(client.totals) for client in self._flow.clients]
        self.since, self._remote_seconds, self._worked = now, 0.0, self._flow.feed.worked
        self._stock = self._flow.stock(now, self._places)

    def touch(self, now: float) -> None:
        """Workers came or went."""
        self._skip = self._rule.discard or 0
        self.restart(now)

    def account(self, seconds: float, remote: int) -> None:
        """Note how many remote workers were there for how long."""
        self._remote_seconds += seconds * remote

    def _have(self) -> int:
        return min(part.batches for part in self._parts())

    def _parts(self) -> list[Totals]:
        return [client.totals.since(begun) for client, begun in zip(self._flow.clients, self._begun, strict=True)]

    def lacking(self) -> int:
        """Return how many more batches the window (or what is skipped before it) needs."""
        return max(1, (self._skip or self._batches) - self._have())

    def lacking_at_deadline(self) -> int:
        """Return how many more batches a window needs that is closed for its age."""
        return max(0, LEAST_BATCHES - self._have())

    def deadline(self) -> float:
        """Return when the window ends for its age; never if it does not."""
        return math.inf if self._rule.window_s is None or self._skip else self.since + self._rule.window_s

    def close(self, now: float, spoilt: bool = False) -> Window | None:
        """Return the window if it is complete, and begin the next one; `spoilt`: workers drain, or are awaited."""
        parts = self._parts()
        least = min(part.batches for part in parts)
        if self._skip:
            if least >= self._skip:
                self._skip = 0
                self.restart(now)
            return None
        aged = now >= self.deadline() and least >= LEAST_BATCHES
        if least < self._batches and not aged:
            return None
        stock, utilization = self._stock, self._utilization()
        self.restart(now)
        lost = stock - self._stock if self._rule.corrects else 0.0
        touched = spoilt and self._rule.discard is None
        return window_of(parts, touched, utilization, lost=lost, stock=stock, places=self._places)

    def _utilization(self) -> float | None:
        """Return how much of their CPUs the remote workers used; None where there was none."""
        if self._remote_seconds <= 0:
            return None
        return min(1.0, (self._flow.feed.worked - self._worked) / self._remote_seconds) * self._remote_cpu


def window_of(
    parts: list[Totals],
    touched: bool,
    cpu: float | None,
    *,
    lost: float = 0.0,
    stock: float = 0.0,
    places: float = math.inf,
) -> Window:
    """Return the window of several clients: their means, averaged (Pecan §5.1).

    `lost`: batches by which each client's stock has shrunk, from `stock`; `places`: the most that it can hold.
    """
    clients = len(parts)
    times = [part.seconds / delivered(part.batches, lost, stock) for part in parts]
    variances = [
        max(0.0, part.squares / part.batches - (part.seconds / part.batches) ** 2) / part.batches for part in parts
    ]
    own = sum((part.seconds - part.waited) / part.batches for part in parts)
    return Window(
        batch_time=sum(times) / clients,
        # Little's law: the mean queue is what all batches together lay in it, over the time of the window.
        queue_size=min(places, sum(part.queued / part.seconds for part in parts) / clients),
        batches=min(part.batches for part in parts),
        wait_time=min(sum(times), max(0.0, sum(times) - own)) / clients,
        stderr=math.sqrt(sum(variances)) / clients,
        cpu=cpu,
        touched=touched or any(part.pauses for part in parts),
    )


def delivered(batches: int, lost: float, stock: float) -> float:
    """Return how many batches the workers brought during a window, as the live client counts them."""
    by_chance = min(FROM_STOCK * batches, max(1.0, (1 - STOCK_LEFT) * stock))
    return max(1.0, batches - lost) if lost > by_chance else batches
