"""A job's part in the division of the cluster's pipe and cache: it tells the service its speed, and takes its quota.

Whatever becomes of the service, the job goes on with the quota that it has.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import ray

from pecan_ray.cache_options import ClusterIo
from pecan_ray.job.cluster_io import REPORT_S, IoQuota, JobIo
from pecan_ray.job.events import RemoteIoSet
from pecan_ray.job.speed import JobSpeed
from pecan_ray.job.state import JobState
from pecan_ray.runtime.cache_node import pool_nodes
from pecan_ray.runtime.messages import Job
from pecan_ray.storage import dataset_of, is_remote

logger = logging.getLogger("pecan_ray.controller")

ANSWER_S = 10.0
"""The service may take so long to start, and to answer: an actor takes two to three seconds on a free machine."""
# Seconds that a job's end waits for the service. One that was not told gives the part away all the same, once the
# job has been silent (`cluster_io.SILENT_S`).
LEAVE_S = 2.0
BY_CLUSTER = ", its part of what the cluster's jobs share"


# Why jobs ask and the service does not call:
# docs/decisions/shared-cache-and-pipe.md#57-pipe-and-cache-divided-live
class IoSharing:
    """One job's part."""

    def __init__(
        self, job: Job, state: JobState, speed: Callable[[], JobSpeed], happened: Callable[[RemoteIoSet], None]
    ) -> None:
        """`speed`: tells how fast the job is lately; `happened`: lets the job know of its quota."""
        self._job, self._state, self._speed, self._happened = job, state, speed, happened
        self._service: Any = None
        self._quota: IoQuota | None = None
        self._pool_nodes = 1
        self._logged = False
        """The log says already that the service does not answer."""

    async def round(self) -> None:
        """Report, take what comes, and wait until it is time to do so again."""
        await asyncio.sleep(await self._report())

    async def leave(self) -> None:
        """Let others have this job's part, if the service can be told soon."""
        if self._service is not None:
            try:
                await asyncio.wait_for(_wait_for(self._service.leave_io.remote(self._job.spec.name)), LEAVE_S)
            except (ray.exceptions.RayError, asyncio.TimeoutError) as error:
                logger.info("job %s could not tell the service of its end: %s", self._job.spec.name, error)

    async def _report(self) -> float:
        """Report once; return after how many seconds to report again."""
        try:
            cache = self._job.config.cache
            if cache.spread and cache.source_bytes:
                self._pool_nodes = max(1, await asyncio.to_thread(pool_nodes, cache))
            report = self.report()
            if report is None:
                return REPORT_S
            if self._service is None:
                from pecan_ray.runtime.service import service_actor  # few jobs share, and no other one waits for it

                # Ray answers once the actor's name is registered, too late for the job's event loop.
                self._service = await asyncio.to_thread(service_actor)
            # Decision 57: the service never calls a job, so one that dies or hangs needs nobody's attention.
            quota: IoQuota = await asyncio.wait_for(_wait_for(self._service.share_io.remote(report)), ANSWER_S)
        except (ray.exceptions.RayError, asyncio.TimeoutError, ValueError) as error:
            if isinstance(error, ray.exceptions.ActorDiedError):
                self._service = None  # it was ended: another one is started
            if not self._logged:
                logger.warning(
                    "job %s reads on with the quota that it has, since the service does not answer: %s",
                    *(self._job.spec.name, error),
                )
            self._logged = True
            return REPORT_S
        self._logged = False
        self._take(quota)
        return quota.report_interval_s

    def _take(self, quota: IoQuota) -> None:
        before = self._quota
        if (
            before is None
            or before.cache_limits != quota.cache_limits
            or _quota_changed(before.bytes_per_s, quota.bytes_per_s)
        ):
            self._quota = quota
            self._happened(RemoteIoSet(quota.bytes_per_s, quota.cache_limits, self._pool_nodes, BY_CLUSTER))

    def report(self) -> JobIo | None:
        """Return what the job knows of itself; None before its sources have told what they read."""
        names = datasets_of(self._state)
        asked = self._job.config.remote_io
        if names is None or not isinstance(asked, ClusterIo):
            return None
        speed = self._speed()
        size = asked.dataset_bytes or speed.dataset_bytes
        return JobIo(
            job=self._job.spec.name,
            bytes_per_s=asked.bytes_per_s,
            cache_bytes=asked.cache_bytes,
            policy=asked.policy,
            source_bytes=self._job.config.cache.source_bytes,
            pool_nodes=self._pool_nodes,
            datasets=names,
            dataset_bytes=size,
            size_measured=asked.dataset_bytes is None,
            ideal_bytes_per_s=asked.ideal_bytes_per_s or speed.ideal_bytes_per_s,
            hit_share=speed.hit_share,
            remaining_bytes=None if size is None else self._remaining_epochs() * size,
            gpus=self._job.options.world_size,
        )

    def _remaining_epochs(self) -> float:
        ledger, end = self._state.ledger, self._state.spec.shape.end_epoch
        if end is None:
            return 1.0
        # A job's last splits may be taken while it runs. Zero bytes would count as not known (`JobIo`).
        return max(0.01, end - ledger.epoch - (ledger.queues.share_taken() or 0.0))


def datasets_of(state: JobState) -> tuple[str, ...] | None:
    """Return the datasets of object stores that a job reads, by its sources' first splits; None: not known yet."""
    listings = state.ledger.queues.listings
    if any(not len(listing) and not listing.complete for listing in listings):
        return None
    firsts = [listing[0] for listing in listings if len(listing)]
    paths = [split.files[0] if split.files else split.path for split in firsts]
    return tuple(sorted({dataset_of(path) for path in paths if is_remote(path)}))


def _quota_changed(before: float | None, now: float | None) -> bool:
    """Tell whether a quota has changed by enough to tell all workers."""
    if before is None or now is None:
        return before is not now
    return not math.isclose(before, now, rel_tol=0.02)


async def _wait_for(reference: Any) -> Any:
    return await reference
