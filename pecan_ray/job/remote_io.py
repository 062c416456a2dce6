"""What the workers of a job may read of object stores together, and each of them: an equal share.

Shares are dealt anew when workers come and go, and when the quota changes.  One that ends what it has begun keeps its
share to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan_ray.job import events
from pecan_ray.job.instructions import Instructions, LimitRemoteIo

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState


class RemoteIoShares:
    """The part of a job that deals its quota of remote reads."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._dealt: tuple[float | None, int] = (None, 0)
        """The quota, and how often workers had come and gone, when shares were dealt last."""
        self._told: dict[str, float | None] = {}
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.RemoteIoSet: self._on_set,
        }

    def _on_set(self, event: events.RemoteIoSet, now: float, done: Instructions) -> None:
        quota, self._job.fleet.remote_io = event.bytes_per_s, event.bytes_per_s
        said = "no longer bounded" if quota is None else f"at most {quota / 1e6:,.4g} MB/s from now on"
        self._job.tell("remote io", f"reads of object stores: {said}", now)

    def deal(self, done: Instructions) -> None:
        """Tell the workers that run what each may read, where it is not what they know."""
        fleet = self._job.fleet
        if self._dealt == (fleet.remote_io, fleet.changes):
            return
        self._dealt = fleet.remote_io, fleet.changes
        running = [worker.name for worker in fleet.workers.values() if worker.running]
        share = None if fleet.remote_io is None else fleet.remote_io / max(1, len(running))
        # One that has just begun knows what it was started with, which may have changed meanwhile.
        done += [LimitRemoteIo(name, share) for name in running if self._told.get(name, math.nan) != share]
        self._told = dict.fromkeys(running, share)

    def again(self) -> None:
        """Tell all of them anew: the controller may have been lost before it did."""
        self._dealt, self._told = (None, -1), {}
