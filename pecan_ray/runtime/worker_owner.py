"""What keeps a job's workers: a process of its own that owns them, so that they do not end with the controller's.

Ray ends an actor with the process that has made it, whatever it does: one that waits for a place, one that hangs in
native code, and one that is being started.  This process does nothing else, and ends when the controller is gone for
good.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from typing import Any

import ray

from pecan_ray.errors import ClusterError
from pecan_ray.job.registration import RESTART_S
from pecan_ray.runtime.actors import actor
from pecan_ray.runtime.calls import PAUSE_S
from pecan_ray.runtime.cluster import NAMESPACE, local_selector, this_node
from pecan_ray.runtime.worker_actor import WorkerActorSpec, make_worker

ORPHAN_S = RESTART_S + 30.0
"""A controller that has not come again after so long is given up, as its trainers have before."""
NAME_FREE_S = 30.0
"""The workers of a job of the same name that has just ended are gone within this time: one that hangs is killed after
`worker_actors.DEAD_S`."""
MOST_CALLS = 10_000
"""A controller may start so many workers at a time."""


# Why workers are not detached:
# docs/decisions/restart-and-journal.md#41-workers-outlive-their-controller
class WorkerOwner:
    """Starts workers for a job's controller, and owns them; run as a named Ray actor in the namespace `pecan`."""

    def __init__(self, job: str) -> None:
        self._controller = ray.get_actor(f"pecan:{job}:controller", namespace=NAMESPACE)
        self._generation = 0
        self._workers: dict[str, asyncio.Future[Any]] = {}
        """Their handles, as soon as Ray has made them: it ends an actor of which nobody has a handle."""
        self._expected: WorkerActorSpec | None = None
        """The worker that is being started before a controller has asked for it."""
        self._specs: dict[str, WorkerActorSpec] = {}
        """How these workers were made last."""
        self._idle: set[str] = set()
        """Those that have done all of a job, and wait for the next one."""
        ray.get_runtime_context().current_actor.watch.remote()

    async def watch(self) -> None:
        """End, with all workers, once the controller is gone for good."""
        lost: float | None = None
        while lost is None or time.monotonic() < lost + ORPHAN_S:
            try:
                # Decision 41: one call is always open, because it fails at once when the controller is lost.
                await self._controller.wait_until_lost.remote()
                lost = None
            except ray.exceptions.ActorUnavailableError:
                # Ray is starting it again.
                lost = time.monotonic() if lost is None else lost
                await asyncio.sleep(PAUSE_S)
            except ray.exceptions.RayActorError:
                # It has ended while it was idle, or is being ended: a new one is made.
                break
        ray.kill(ray.get_runtime_context().current_actor)

    async def begin(self, generation: int) -> tuple[int, list[str]]:
        """Work for the controller's process of that generation from now on, and for none before it.

        Returns this process's id, and all workers that it was asked for.
        """
        # A late call of a process before must not let that one start workers again.
        self._generation = max(self._generation, generation)
        # A controller that is started again knows its workers: it asks for none that was only expected.
        await self._settle(None)
        if self._workers:
            await asyncio.wait(self._workers.values())
        return os.getpid(), list(self._workers)

    async def expect(self, worker_actor_spec: WorkerActorSpec) -> None:
        """Start a worker that the controller will ask for, unless it has asked for one: it starts as slowly as that."""
        if not self._workers:
            # Decision 67: a guess, of which the controller knows nothing: no event, no state, nothing in its journal.
            self._expected = worker_actor_spec
            self._workers[worker_actor_spec.started.worker] = asyncio.ensure_future(self._create(worker_actor_spec))

    async def keep_idle(self, names: list[str]) -> None:
        """Keep these workers for the controller's next job, and end the others."""
        self._idle = set(names)
        for name in self._workers.keys() - self._idle:
            await self._end(name)

    async def has_idle(self) -> bool:
        """Tell whether workers wait for the next job, and all of them live."""
        handles = [self._workers[name].result() for name in self._idle]
        # Only an answer shows that a process lives.
        await asyncio.gather(*(handle.placed.remote() for handle in handles))
        return bool(handles)

    async def _end(self, name: str) -> None:
        made = self._workers.pop(name)
        await asyncio.wait([made])
        if made.exception() is None:
            ray.kill(made.result())

    async def _settle(self, asked: WorkerActorSpec | None) -> None:
        """End the worker that was expected, if it is another one than what is asked for first."""
        expected, self._expected = self._expected, None
        if expected is not None and expected != asked:
            await self._end(expected.started.worker)

    async def start(self, generation: int, worker_actor_spec: WorkerActorSpec) -> tuple[Any, int]:
        """Start a worker, unless it was; return its handle and this process's id."""
        name = worker_actor_spec.started.worker
        if generation < self._generation:
            raise ClusterError(f"{name} is not started: another process is the job's controller now.")
        await self._settle(worker_actor_spec)
        if name in self._idle:
            self._idle.discard(name)
            if not await self._taken_on(worker_actor_spec):
                await self._end(name)
        if name not in self._workers:
            self._workers[name] = asyncio.ensure_future(self._create(worker_actor_spec))
        try:
            # Shielded, because a second call for the same worker waits for the same future.
            return await asyncio.shield(self._workers[name]), os.getpid()
        except ray.exceptions.RayError:
            # So that the next call for this worker starts it anew.
            self._workers.pop(name, None)
            raise

    async def _taken_on(self, wanted: WorkerActorSpec) -> bool:
        """Give a worker that waits the next job, if it is what that asks for."""
        made = self._specs[wanted.started.worker]
        # Ray cannot give an actor other CPUs, nodes or threads once it is made.
        if replace(made, started=wanted.started, job=wanted.job) != wanted:
            return False
        self._specs[wanted.started.worker] = wanted
        try:
            await self._workers[wanted.started.worker].result().take.remote(wanted.started, wanted.job)
        except ray.exceptions.RayActorError:
            return False
        return True

    async def _create(self, worker_actor_spec: WorkerActorSpec) -> Any:
        self._specs[worker_actor_spec.started.worker] = worker_actor_spec
        until = time.monotonic() + NAME_FREE_S
        while True:
            try:
                return await asyncio.to_thread(make_worker, worker_actor_spec, self._controller)
            except ray.exceptions.ActorAlreadyExistsError:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(PAUSE_S)


def worker_owner_of(job: str, controller: str) -> Any:
    """Return the keeper of a job whose controller has that id, on this node; it is started where there is none."""
    made = actor(
        WorkerOwner,
        f"pecan:{job}:keeper-{controller}",
        local_selector(this_node()),
        get_if_exists=True,
        # Decision 41: it outlives the process that starts it, be that the trainer or the controller; `watch` ends it.
        lifetime="detached",
        # Without CPUs, so that it never waits for a place on the controller's node.
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=MOST_CALLS,
        enable_task_events=False,
    )
    return made.remote(job)


class Keeping:
    """A controller's way to the keeper of its workers."""

    def __init__(self, job: str, actor: str) -> None:
        """`actor`: the controller's id; one that Ray starts again finds the keeper that it had."""
        self._job, self._actor = job, actor
        self.generation = 0
        self._handle = self._found()

    def _found(self) -> Any:
        return worker_owner_of(self._job, self._actor)

    async def begin(self) -> tuple[int, list[str]]:
        """Have it work for this process alone; return its process id, and all workers that it was asked for."""
        found: tuple[int, list[str]] = await self._ask("begin", self.generation)
        return found

    async def start(self, worker_actor_spec: WorkerActorSpec) -> tuple[Any, int]:
        """Start a worker, unless it was; return its handle, and the id of the process that owns it."""
        made: tuple[Any, int] = await self._ask("start", self.generation, worker_actor_spec)
        return made

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Call it, again where its process was lost, and another one takes its place."""
        while True:
            try:
                return await getattr(self._handle, method).remote(*arguments)
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(PAUSE_S)
            except ray.exceptions.RayActorError:
                await asyncio.sleep(PAUSE_S)
                self._handle = await asyncio.to_thread(self._found)

    async def keep_idle(self, names: list[str]) -> None:
        """Have it keep these workers for the next job, and end the others."""
        await self._ask("keep_idle", names)

    async def has_idle(self) -> bool:
        """Tell whether workers wait for the next job, and all of them live; raises RayError where it does not."""
        return bool(await self._handle.has_idle.remote())

    def end(self) -> None:
        """End it, with all workers."""
        ray.kill(self._handle)
