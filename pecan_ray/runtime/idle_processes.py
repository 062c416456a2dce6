"""The processes of a job that has ended: they wait for the next pass over its pipeline, but in nobody's way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

import ray

from pecan_ray.runtime.cluster import draining_nodes, has_pending_demand, this_node
from pecan_ray.runtime.worker_actors import WorkerActors
from pecan_ray.runtime.worker_owner import Keeping

logger = logging.getLogger("pecan_ray.controller")

MOST_IDLE_S = 60.0
"""Processes that nobody wants for so long end: the 3 to 5 s that a start takes are little after that."""
# Seconds between looks at the cluster: with two looks a job that finds no place waits a second for that of idle
# processes.
LOOK_S = 0.5
MOST_LOOKS = 2
"""Something waits for a place in the cluster at so many looks in a row: the idle workers give theirs away."""
ANSWER_S = 2.0
"""Processes that live answer within this time."""


# Why they wait, and when they end:
# docs/decisions/running-on-ray.md#172-a-pass-begins-in-the-processes-of-the-one-before
class IdleProcesses:
    """A controller's process between two jobs, its keeper and its workers."""

    def __init__(self, workers: WorkerActors, keeping: Keeping, names: Collection[str]) -> None:
        """`names`: of the workers that the next job is likely to ask for first; the others end."""
        self._workers, self._keeping, self._names = workers, keeping, names
        self._claimed = self._over = False
        self._ready = asyncio.ensure_future(self._finish())
        self._watch_task = asyncio.ensure_future(self._watch())

    async def _finish(self) -> bool:
        """Leave nothing of the job under way; return whether any worker waits for the next one."""
        finished = await self._workers.finish(self._names)
        if finished:
            await self._keeping.keep_idle(finished)
        return bool(finished)

    async def claim(self) -> bool:
        """Tell whether another job may begin in these processes, which wait for it from now on."""
        self._claimed = not self._over
        # Shielded, because a trainer that is gone while it waits must not cancel the end of the job before.
        if not self._claimed or not await asyncio.shield(self._ready):
            return False
        # The trainer may fail, or go, before it sends the job.
        ray.get_runtime_context().current_actor.watch.remote()
        try:
            return await asyncio.wait_for(self._keeping.has_idle(), ANSWER_S)
        except (ray.exceptions.RayError, asyncio.TimeoutError):
            # Processes that do not answer may not work either, and starting others takes 3 to 5 s alone.
            return False

    def end(self) -> None:
        """End this process, and the others with it, unless the next job is about to begin."""
        if not self._claimed:
            self._over = True
            ray.kill(ray.get_runtime_context().current_actor)

    async def _watch(self) -> None:
        """End these processes if they are idle for too long, or in somebody's way."""
        until, looks = time.monotonic() + MOST_IDLE_S, 0
        while not self._claimed:
            await asyncio.sleep(LOOK_S)
            # Of a task that comes and is placed at once, one look may tell.
            looks = looks + 1 if await asyncio.to_thread(_are_in_the_way) else 0
            useless = self._ready.done() and not self._ready.result()
            if useless or looks >= MOST_LOOKS or time.monotonic() > until:
                self.end()
                return


def _are_in_the_way() -> bool:
    """Tell whether something waits for a place that the idle workers may have, or their node is taken away."""
    try:
        return has_pending_demand() or this_node() in draining_nodes()
    except (ray.exceptions.RayError, RuntimeError) as error:
        logger.info("it is not known what waits for a place: %s", error)
        return False
