"""The service above the jobs of a cluster: a directory of shared groups, and who may read and keep what of buckets.

One detached actor, started by the first that needs it, restarted by Ray, with a journal beside Ray's session on its
node.  It is on nobody's way: groups are found by their actors' names, jobs go on with the quotas that they have, and
both tell it again now and then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import ray

from pecan_ray.errors import JournalError
from pecan_ray.job.cluster_io import ClusterIoRegistry, IoQuota, JobIo, SharedIo
from pecan_ray.job.share_directory import GroupRecord, ShareDirectory
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.cluster import named_actors, this_node
from pecan_ray.runtime.journal_file import JournalFile
from pecan_ray.runtime.share_messages import PREFIX, GroupStats

logger = logging.getLogger("pecan_ray.service")

SERVICE = "pecan:service"
MOST_LINES = 10_000
"""After so many the journal is written anew."""


class PecanService:
    """The directory; run as the named Ray actor `pecan:service` in the namespace `pecan`."""

    def __init__(self) -> None:
        self._directory = ShareDirectory()
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
            # One journal for both registries, whose lines are told apart by their first key.
            of_io = [line for line in lines if line.startswith('{"io')]
            unread = self._directory.replay([line for line in lines if not line.startswith('{"io')])
            unread += self._io.replay(of_io, time.monotonic())
            if unread:
                logger.warning("%d lines of the service's journal could not be read", unread)
            # Written anew, so that lines that nobody can read do not stay.
            self._journal.replace(self._written())
        except (JournalError, OSError) as error:
            logger.warning("the service keeps no journal: %s", error)

    async def note_group(self, record: GroupRecord) -> None:
        """Take what a group tells of itself."""
        self._write(self._directory.update(record))

    async def remove_group(self, name: str) -> None:
        """Forget a group that has ended."""
        self._write(self._directory.remove(name))

    async def groups(self) -> tuple[GroupRecord, ...]:
        """Return what is known of the groups that live: one whose process was lost has not said so."""
        living = set(await asyncio.to_thread(named_actors))
        for name in [name for name in self._directory.groups if f"{PREFIX}{name}" not in living]:
            self._write(self._directory.remove(name))
        return tuple(self._directory.groups.values())

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

    def _written(self) -> bytes:
        return (self._directory.written() + self._io.written()).encode()

    def _write(self, line: str) -> None:
        if not line or self._journal is None:
            return
        self._lines += 1
        try:
            if self._lines % MOST_LINES == 0:
                self._journal.replace(self._written())
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


def tell_service(service: Any, facts: GroupStats) -> None:
    """Tell the service how a group is doing."""
    readers = tuple(reader.reader for reader in facts.readers)
    service.note_group.remote(GroupRecord(facts.name, facts.pipeline, facts.fingerprint, facts.node, readers))
