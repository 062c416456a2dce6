"""The service above the jobs of a cluster: who may read and keep what of buckets.

One detached actor, started by the first that needs it, restarted by Ray, with a journal beside Ray's session on its
node.  It is on nobody's way: jobs go on with the quotas that they have, and tell it again now and then.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import ray

from pecan_ray.errors import JournalError
from pecan_ray.job.cluster_io import ClusterIoRegistry, IoQuota, JobIo, SharedIo
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.cluster import this_node
from pecan_ray.runtime.journal_file import JournalFile

logger = logging.getLogger("pecan_ray.service")

SERVICE = "pecan:service"
MOST_LINES = 10_000
"""After so many the journal is written anew: some megabytes, which are read at a restart."""


class PecanService:
    """Divides pipe and cache; run as the named Ray actor `pecan:service` in the namespace `pecan`."""

    def __init__(self) -> None:
        self._io = ClusterIoRegistry()
        self._logged = ""
        """What was said last of quotas that could not be decided."""
        self._lines = 0
        self._journal: JournalFile | None = None
        node: Any = ray._private.worker._global_node
        folder = Path(node.get_session_dir_path()) / "pecan-journals"
        actor = ray.get_runtime_context().get_actor_id()
        try:
            self._journal = JournalFile(folder / f"{actor}.service")
            lines = self._journal.read().decode(errors="replace").splitlines()
            if unread := self._io.replay(lines, time.monotonic()):
                logger.warning("%d lines of the service's journal could not be read", unread)
            # Written anew, so that lines that nobody can read do not stay.
            self._journal.replace(self._io.written().encode())
        except (JournalError, OSError) as error:
            logger.warning("the service keeps no journal: %s", error)

    async def share_io(self, report: JobIo) -> IoQuota:
        """Take what a job tells of its speed; return what it may read and keep."""
        now = time.monotonic()
        for job in self._io.timed_out(now):
            logger.warning("job %s is not heard any more: others have its part of the pipe and the cache", job)
            self._write(self._io.remove(job))
        self._write(self._io.update(report, now))
        quota = self._io.quota(report.job, now)
        if self._io.last_error not in ("", self._logged):
            logger.error("quotas stay as they are: %s", self._io.last_error)
        # Once for each reason, and not with each report.
        self._logged = self._io.last_error
        return quota

    async def leave_io(self, job: str) -> None:
        """Let others have the part of a job that has ended."""
        self._write(self._io.remove(job))

    async def io(self) -> tuple[SharedIo, int]:
        """Return what is divided, and among how many jobs."""
        return self._io.shared, len(self._io.jobs)

    async def place(self) -> tuple[str, int]:
        """Return the node and the process."""
        return this_node(), os.getpid()

    async def close(self) -> None:
        """Remove the journal: the service is about to be ended."""
        if self._journal is not None:
            self._journal.remove()
            self._journal = None

    def _write(self, line: str) -> None:
        if not line or self._journal is None:
            return
        self._lines += 1
        try:
            if self._lines % MOST_LINES == 0:
                self._journal.replace(self._io.written().encode())
            else:
                self._journal.append(f"{line}\n".encode())
        except OSError as error:
            # A journal that lacks a line would bring about another state, so none is better.
            logger.warning("the service's journal cannot be written, so it keeps none: %s", error)
            self._journal.close()
            self._journal = None


def service_actor() -> Any:
    """Return the service; it is started where there is none."""
    made = actor(
        PecanService,
        SERVICE,
        {},
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=1000,
        enable_task_events=False,
    )
    return made.remote()
