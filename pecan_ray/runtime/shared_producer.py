"""The actor of a group of sharing readers: what they call."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import ray

from pecan_ray.errors import ClusterError
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.cluster import local_selector, this_node
from pecan_ray.runtime.share_host import ShareHost
from pecan_ray.runtime.share_messages import PREFIX, GroupPlan, GroupStats, Joined, JoinRequest

logger = logging.getLogger("pecan_ray.share")

# Calls of readers wait in the actor for batches, a few of each: Ray would let those beyond stand in line, the
# calls that say that a reader lives among them.
MOST_CALLS = 100_000
COMES_S = 60.0
"""A group to which nobody sends a pipeline within this time ends."""


class SharedProducer:
    """Runs a pipeline for its readers; a detached, named Ray actor in the namespace `pecan`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._host: ShareHost | None = None
        self._ending = False
        # Those who have started it may be gone before they call.
        ray.get_runtime_context().current_actor.watch.remote()

    async def watch(self) -> None:
        """End where no pipeline comes."""
        started = time.monotonic()
        while self._host is None and time.monotonic() < started + COMES_S:
            await asyncio.sleep(0.1)
        if self._host is None:
            logger.warning("the shared group %s ends: nobody has sent its pipeline", self._name)
            ray.kill(ray.get_runtime_context().current_actor)

    async def place(self) -> tuple[str, int]:
        """Return the node and the process, so that a reader can see whether it may open its files."""
        return this_node(), os.getpid()

    async def open(self, plan: GroupPlan) -> None:
        """Begin with a pipeline, unless another reader has sent it."""
        if self._host is None:
            self._host = ShareHost(self._name, plan, self._end)

    async def join(self, request: JoinRequest) -> Joined | str:
        """Let a reader in; "unopened": the pipeline must be sent before, "ending": another group will follow."""
        if self._host is None:
            return "unopened"
        return "ending" if self._host.over else self._host.join(request)

    def _opened(self) -> ShareHost:
        if self._host is None:
            raise ClusterError(f"the shared group {self._name} has no pipeline yet.")
        return self._host

    async def take(self, reader: str) -> tuple[bytes, list[Any]]:
        """Return the next frame of a reader that has no pipe, and in a list the reference of a batch's columns."""
        return await self._opened().store_reader(reader).take()

    async def note_alive(self, reader: str) -> None:
        """A reader that has no pipe lives."""
        self._opened().store_reader(reader).last_seen = time.monotonic()

    async def leave(self, reader: str) -> None:
        """A reader wants no more."""
        self._opened().leave(reader)

    async def stats(self, run: bool) -> GroupStats:
        """Tell how the group is doing; with `run` also what its run reports."""
        host = self._opened()
        batches = host.run.batches if run else None
        # In a thread, because the report waits for the controller of the run.
        return host.stats(None if batches is None else await asyncio.to_thread(batches.report))

    async def scale(self, local: int, remote: int) -> None:
        """Change the numbers of workers, for all readers."""
        await asyncio.to_thread(self._opened().run.scale, local, remote)

    async def stop(self, force: bool) -> int:
        """End the group, unless it has readers and this is not forced; return how many it has."""
        readers = 0 if self._host is None else len(self._host.state.readers)
        if self._host is None:
            ray.kill(ray.get_runtime_context().current_actor)
        elif force or not readers:
            self._host.stop("`pecan stop` has asked for it")
        return readers

    def _end(self) -> None:
        if not self._ending:
            self._ending = True
            # Kept, because asyncio has no reference to a task that is under way.
            self._ended = asyncio.get_running_loop().create_task(self._ends())

    async def _ends(self) -> None:
        assert self._host is not None
        try:
            await asyncio.to_thread(self._host.run.close)
        finally:
            ray.kill(ray.get_runtime_context().current_actor)


def producer_of(group: str) -> Any:
    """Return the actor of a group; it is started on this node where there is none."""
    made = actor(
        SharedProducer,
        f"{PREFIX}{group}",
        local_selector(this_node()),
        get_if_exists=True,
        # Decision 44: readers come and go, also the one that has started it.
        lifetime="detached",
        num_cpus=0,
        max_restarts=0,
        max_concurrency=MOST_CALLS,
        enable_task_events=False,
    )
    return made.remote(group)
