"""What has been measured of each deployment: windows pooled into readings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median, median_low

from pecan_ray.plan.windows import Deployment, Window

KEPT = 20
"""Newest windows of a deployment that count."""
COUNTED = 1.0
"""Batches by which the count of a window may be off: one that came just before its end, or just after."""
IN_LINE = 0.05
"""A window whose time differs from the median's by less than this share is in line with it,"""
SURELY = 3.0
"""or by less than so many of its own errors."""
SHORTEST_STEP = 1e-3
"""A trainer that seems to do nothing but wait has this share of the batch time to itself: no clock tells less apart."""


@dataclass(frozen=True)
class Reading:
    """What the windows of one deployment say together."""

    deployment: Deployment
    batch_time: float
    """Seconds."""
    wait: float | None
    """Of batch_time, the seconds in which the trainer waited; None: not measured."""
    error: float
    """Relative standard error of batch_time."""
    wait_error: float
    """Standard error of wait_share."""
    windows: int
    spread: float
    """Relative difference between the slowest and the fastest window."""
    queue: float
    """Batches waiting at the client."""
    queue_error: float
    """Standard error of queue."""

    @property
    def own_time(self) -> float | None:
        """Seconds of the trainer's own step, more than 0."""
        if self.wait is None:
            return None
        return max(self.batch_time - self.wait, SHORTEST_STEP * self.batch_time)

    @property
    def wait_share(self) -> float:
        """Share of the time in which the trainer waited; 0 where it was not measured."""
        return 0.0 if self.wait is None else self.wait / self.batch_time


class Evidence:
    """The windows of every deployment that was measured."""

    def __init__(self) -> None:
        self._windows: dict[Deployment, list[Window]] = {}

    def add(self, deployment: Deployment, window: Window) -> None:
        """Note a window."""
        kept = self._windows.setdefault(deployment, [])
        kept.append(window)
        del kept[:-KEPT]

    def renew(self, deployment: Deployment, windows: Sequence[Window]) -> None:
        """Let newer windows stand for the deployment, in place of older ones."""
        self._windows[deployment] = list(windows)[-KEPT:]

    def complete(self, other: Evidence) -> None:
        """Take over the deployments that only the other one knows."""
        self._windows = {**other._windows, **self._windows}

    def drop(self, deployment: Deployment) -> None:
        """Forget one deployment."""
        del self._windows[deployment]

    def forget(self) -> Evidence:
        """Drop everything: it was measured of another trainer, or of other workers.  Returns it."""
        forgotten = Evidence()
        forgotten._windows, self._windows = self._windows, {}
        return forgotten

    def __contains__(self, deployment: object) -> bool:
        return deployment in self._windows

    def windows(self, deployment: Deployment) -> list[Window]:
        """Return the windows of one deployment, the oldest first."""
        return list(self._windows[deployment])

    def all_windows(self) -> Iterator[Window]:
        """Return the windows of all deployments."""
        return chain.from_iterable(self._windows.values())

    def reading(self, deployment: Deployment) -> Reading:
        """Pool the windows of one deployment."""
        return pooled(deployment, self._windows[deployment], self.noise())

    def readings(self) -> list[Reading]:
        """Pool the windows of each deployment, in order of first measurement."""
        noise = self.noise()
        return [pooled(deployment, windows, noise) for deployment, windows in self._windows.items()]

    def noise(self) -> float:
        """Return the relative spread of single windows, from deployments that were measured repeatedly."""
        repeated = [windows for windows in self._windows.values() if len(windows) > 2] or [
            windows for windows in self._windows.values() if len(windows) > 1
        ]
        spreads = [spread_of([window.batch_time for window in agreeing(windows)]) for windows in repeated]
        return median(spreads) if spreads else 0.0


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of their mean; 0 for less than two."""
    if len(values) < 2:
        return 0.0
    count = len(values)
    mean = math.fsum(value / count for value in values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(count * (count - 1))  # without overflow


def spread_of(times: Sequence[float]) -> float:
    """Return the relative standard deviation of single windows; 0 for less than two."""
    return standard_error(times) * math.sqrt(len(times)) / fmean(times)


def claimed_error(window: Window) -> float:
    """Return the relative error of its batch time that a window itself claims."""
    return window.stderr / window.batch_time


def counted_error(windows: Sequence[Window]) -> float:
    """Return the relative error of their mean time that comes from where one window ends and the next begins.

    Where the trainer waits, batches come one by one: how many came is known to one at best.  That says nothing about
    the rest of the time.
    """
    waited = sum((window.wait_time or 0.0) * window.batches for window in windows)
    batches = sum(window.batches for window in windows)
    return min(COUNTED / batches, waited / sum(window.batch_time * window.batches for window in windows))


def agreeing(windows: Sequence[Window]) -> list[Window]:
    """Leave out, of three windows or more, those whose time is out of line: something else happened.

    The newer half says what the line is, if as many agree with it: the first windows of a deployment may live on what
    others have piled up, or wait for what is not yet under way.
    """
    if len(windows) < 3:
        return list(windows)
    usual = median(max(claimed_error(window), counted_error([window])) for window in windows)
    for judges in (windows[len(windows) // 2 :], windows):
        middle = median_low(window.batch_time for window in judges)
        most = max(IN_LINE, SURELY * usual) * middle
        kept = [window for window in windows if abs(window.batch_time - middle) <= most]
        if 2 * len(kept) >= len(windows):
            return kept
    # Hardly two agree: the middle half of them.
    left_out = len(windows) // 4
    return sorted(windows, key=lambda window: window.batch_time)[left_out : len(windows) - left_out]


def pooled(deployment: Deployment, windows: Sequence[Window], noise: float = 0.0) -> Reading:
    """Return what windows of one deployment say together: the mean of those that agree.

    The error is the greatest of what the windows say of themselves, what they show, and what repeated windows of
    other deployments show (`noise`).
    """
    kept = agreeing(windows)
    weights = [window.batches for window in kept]
    times = [window.batch_time for window in kept]
    batch_time = fmean(times, weights)
    waits = [window.wait_time for window in kept if window.wait_time is not None]
    wait = min(fmean(waits, weights), batch_time) if len(waits) == len(kept) else None
    claimed = math.hypot(*map(claimed_error, kept)) / len(kept)
    claimed = max(claimed, counted_error(kept))
    # Two windows say little about their spread: with fewer than four, the other deployments are asked as well.
    shown = max(noise if len(kept) < 4 else 0.0, spread_of(times)) / math.sqrt(len(kept))
    queues = [window.queue_size for window in kept]
    shares = [(window.wait_time or 0.0) / window.batch_time for window in kept]
    return Reading(
        deployment,
        batch_time,
        wait,
        error=max(claimed, shown),
        wait_error=max(claimed, standard_error(shares)),
        windows=len(windows),
        spread=(max(times) - min(times)) / batch_time,
        queue=fmean(queues),
        queue_error=standard_error(queues),
    )
