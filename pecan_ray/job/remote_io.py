"""What the workers of a job may read of object stores together, and each of them: an equal share.

Shares are dealt anew when workers come and go, and when the quota changes.  One that ends what it has begun keeps its
share to its end.  With their shares workers are told what nodes may keep of each dataset, where somebody divides that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import Instructions, LimitRemoteIo
from pecan_ray.job.messages import DatasetRooms
from pecan_ray.job.room import StorageLimits

TOLD_FROM = 0.8
"""Of two quotas that somebody renews every second, the ratio from which on the job's story tells of the second."""


# Why shares are equal: docs/decisions/shared-cache-and-pipe.md#51-a-quota-before-the-request
class RemoteIoShares:
    """The part of a job that deals its quota of remote reads."""

    def __init__(self, job: JobCore) -> None:
        self._job = job
        self._assigned = StorageLimits(), 0
        """The limits, and how often workers had come and gone, when shares were dealt last."""
        self._last_sent: dict[str, tuple[float | None, DatasetRooms]] = {}
        self._logged: tuple[float | None, str] = (None, "")
        """The quota of which the job's story tells last, and who had set it."""
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.RemoteIoSet: self._on_set,
        }

    def _on_set(self, event: events.RemoteIoSet, now: float, done: Instructions) -> None:
        quota = event.bytes_per_s
        self._job.worker_table.limits = StorageLimits(quota, event.cache_limits, event.pool_nodes)
        if event.why and not self._is_substantial_change(quota, event.why):
            return
        self._logged = quota, event.why
        message = "no longer bounded" if quota is None else f"at most {quota / 1e6:,.4g} MB/s from now on"
        self._job.tell("remote io", f"reads of object stores: {message}{event.why}", now)

    def _is_substantial_change(self, quota: float | None, why: str) -> bool:
        """Tell whether a quota that is renewed again and again has changed by much since it was told."""
        before, by = self._logged
        if quota is None or before is None or why != by:
            return (quota, why) != (before, by)
        return not TOLD_FROM < quota / before < 1 / TOLD_FROM

    def distribute_shares(self, done: Instructions) -> None:
        """Tell the workers that run what each may read, and its node keep, where it is not what they know."""
        worker_table = self._job.worker_table
        limits = worker_table.limits
        if self._assigned == (limits, worker_table.changes):
            return
        self._assigned = limits, worker_table.changes
        running = [worker.name for worker in worker_table.workers.values() if worker.running]
        share = None if limits.remote_io is None else limits.remote_io / max(1, len(running))
        # One that has just begun knows what it was started with, which may have changed meanwhile.
        told = share, limits.cache_limits
        done += [LimitRemoteIo(name, *told) for name in running if self._last_sent.get(name) != told]
        self._last_sent = dict.fromkeys(running, told)

    def resend(self) -> None:
        """Tell all of them anew: the controller may have been lost before it did."""
        self._assigned, self._last_sent = (StorageLimits(), -1), {}
