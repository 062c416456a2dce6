"""Workers as Ray actors: started where the job wants them, followed to their ends, and ended for certain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from pecan_ray.errors import ClusterError, PecanError, WorkerStartError
from pecan_ray.job.events import Event, JobFailed, WorkerLost, WorkerPlaced, WorkerReady, WorkerUnplaced
from pecan_ray.job.instructions import StartWorker
from pecan_ray.runtime.cluster import alive_nodes, local_selector, remote_selector, why_unplaced
from pecan_ray.runtime.job_tasks import Failed, JobTasks
from pecan_ray.runtime.messages import Job, WorkerInfo
from pecan_ray.runtime.worker import worker_actor

logger = logging.getLogger("pecan_ray.controller")

DEAD_S = 10.0
"""A process that was ended and still runs after this time hangs: it is ended by a signal."""
REASON_S = 2.0
"""What is in the way of workers without a place is looked up once in this time for all of them."""


@dataclass
class WorkerActor:
    """A worker's actor."""

    name: str
    handle: Any = None
    """None: Ray has not made it yet."""
    node: str = ""
    pid: int = 0
    ended: bool = False
    """Its process is known to be gone, or has done all that it was asked."""
    killed: bool = False


class WorkerActors:
    """All workers of a job that were started."""

    def __init__(
        self,
        job: Job,
        controller: Any,
        happened: Callable[[Event], None],
        met: Callable[[WorkerInfo], None],
        failed: Failed,
    ) -> None:
        self._job, self._controller, self._happened, self._met = job, controller, happened, met
        self._actors: dict[str, WorkerActor] = {}
        self._tasks = JobTasks(failed)
        self._reasons: dict[tuple[tuple[str, str], ...], tuple[float, str]] = {}
        self._looking = asyncio.Lock()
        """Guards the reasons: one look at the cluster serves all that wait for the same."""
        self.trainer_nodes: tuple[str, ...] = ()

    def start(self, instruction: StartWorker) -> None:
        """Start a worker and follow it."""
        host, labels = instruction.host, self._job.config.remote_labels
        selector = local_selector(host) if host else remote_selector(self.trainer_nodes, labels)
        actor = self._actors[instruction.worker] = WorkerActor(instruction.worker)
        self._tasks.begin(f"following {actor.name}", self._follow, actor, instruction, selector)

    def _create(self, actor: WorkerActor, instruction: StartWorker, selector: Mapping[str, str]) -> None:
        """Have Ray make a worker's actor: it answers once the name is registered, too late for the job's event loop."""
        job, config = self._job, self._job.config
        try:
            made = worker_actor(job.options.world_size).options(
                name=instruction.worker,
                num_cpus=config.cpus_per_worker if instruction.reserve else 0,
                label_selector=selector,
            )
        except (TypeError, ValueError) as error:
            raise ClusterError(
                f"Ray refuses the labels {dict(selector)} with which nodes are chosen for {instruction.worker}: "
                f"{error}. Correct Config(remote_labels=...)."
            ) from error
        actor.handle = made.remote(instruction.worker, job, self._controller, instruction.sharing)
        if actor.killed:
            ray.kill(actor.handle)

    async def _follow(self, actor: WorkerActor, instruction: StartWorker, selector: Mapping[str, str]) -> None:
        """Follow a worker from its placement to its end."""
        try:
            await asyncio.to_thread(self._create, actor, instruction, selector)
            if actor.killed:
                return
            placed = asyncio.ensure_future(actor.handle.placed.remote())
            placed.add_done_callback(lambda future: future.cancelled() or future.exception())
            while not (await asyncio.wait([placed], timeout=self._job.config.placement_warning_s))[0]:
                if actor.killed:
                    return
                self._happened(WorkerUnplaced(actor.name, await self._reason(selector)))
            actor.node, actor.pid = placed.result()
            self._happened(WorkerPlaced(actor.name, actor.node, actor.pid))
            await actor.handle.set_up.remote()
            self._met(WorkerInfo(actor.name, actor.node, actor.pid, actor.handle, instruction.placement))
            self._happened(WorkerReady(actor.name))
            await actor.handle.run.remote()
        except ray.exceptions.RayActorError as error:
            actor.ended = True
            if not actor.killed:
                await self._tell_of_death(actor, error)
        except ray.exceptions.RayTaskError as error:
            self._happened(JobFailed(error.cause if isinstance(error.cause, PecanError) else error))
        except (ray.exceptions.RayError, OSError) as error:
            if not actor.killed:
                self._happened(WorkerLost(actor.name, "process", f"Ray cannot reach it: {error}"))

    async def _tell_of_death(self, actor: WorkerActor, error: ray.exceptions.RayActorError) -> None:
        if error.actor_init_failed:
            self._happened(JobFailed(WorkerStartError(f"{actor.name} could not be set up: {error}")))
            return
        alive = await asyncio.to_thread(alive_nodes)
        if actor.node and actor.node not in alive:
            self._happened(WorkerLost(actor.name, "node", f"its node {actor.node} is gone"))
        else:
            self._happened(WorkerLost(actor.name, "process", "its process died"))

    async def _reason(self, selector: Mapping[str, str]) -> str:
        """Return what is in the way of workers with a selector; asked once for all that wait."""
        key = tuple(sorted(selector.items()))
        async with self._looking:
            looked, reason = self._reasons.get(key, (0.0, ""))
            if not reason or time.monotonic() - looked > REASON_S:
                cpus = self._job.config.cpus_per_worker
                reason = await asyncio.to_thread(why_unplaced, selector, cpus, self._job.spec.name)
                self._reasons[key] = time.monotonic(), reason
        return reason

    def drain(self, name: str) -> None:
        """Let a worker finish what it has begun to send."""
        actor = self._actors.get(name)
        if actor is not None and actor.handle is not None:
            # Its death is told by the call that follows it.
            actor.handle.drain.remote().future().add_done_callback(lambda future: future.exception())

    def use_users_order(self, name: str) -> None:
        """Let a worker run the user's order of operators from now on; one that Ray is yet to make is given no other."""
        actor = self._actors.get(name)
        if actor is not None and actor.handle is not None and not actor.killed:
            actor.handle.use_users_order.remote().future().add_done_callback(lambda future: future.exception())

    def kill_all(self) -> None:
        """End all of them."""
        for name in self._actors:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a worker's process, also one that does not react."""
        actor = self._actors.get(name)
        if actor is None or actor.killed:
            return
        actor.killed = True
        if actor.handle is None:
            return  # it is killed as soon as it is made
        ray.kill(actor.handle)
        if actor.pid and not actor.ended:
            self._tasks.begin(f"making sure of the end of {actor.name}", self._make_sure, actor)

    async def _make_sure(self, actor: WorkerActor) -> None:
        """A frozen process does not end when Ray asks it to: end it by a signal."""
        await asyncio.sleep(DEAD_S)
        if actor.ended:
            return
        task: Any = ray.remote(num_cpus=0, label_selector=local_selector(actor.node), max_retries=0)(end_process)
        try:
            if await task.remote(actor.pid, actor.name):
                logger.warning("%s did not end when it was asked to: process %d was killed", actor.name, actor.pid)
        except ray.exceptions.RayError as error:
            logger.info("%s could not be looked at: %s", actor.name, error)

    def stop(self) -> None:
        """Follow no worker any more."""
        self._tasks.cancel()


def end_process(pid: int, actor: str) -> bool:
    """Kill the process of an actor on this node; False if it is gone, or the number belongs to another process."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read().decode(errors="replace")
        if not title.startswith("ray::"):
            return False
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True
