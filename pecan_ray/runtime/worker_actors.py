"""Workers as Ray actors: started where the job wants them, followed to their ends, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from pecan_ray.errors import PecanError, WorkerStartError
from pecan_ray.job.events import (
    Event,
    JobFailed,
    NodesLeave,
    WorkerLost,
    WorkerPending,
    WorkerPlaced,
    WorkerReady,
    WorkerRestored,
)
from pecan_ray.job.instructions import LimitRemoteIo, ReattachWorker
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.job.worker_table import WorkerRecord
from pecan_ray.options import AutoWorkers
from pecan_ray.runtime.actor_place import place_of
from pecan_ray.runtime.actors import task
from pecan_ray.runtime.cluster import (
    NAMESPACE,
    alive_nodes,
    draining_nodes,
    end_idle,
    labels_of,
    labels_of_nodes,
    local_selector,
    named_actors,
    remote_selector,
    this_node,
    why_no_placement,
)
from pecan_ray.runtime.exit_reason import why_it_died, why_it_ended
from pecan_ray.runtime.job_tasks import Failed, JobTasks
from pecan_ray.runtime.messages import Job, WorkerInfo
from pecan_ray.runtime.price_tiers import sort_by_price
from pecan_ray.runtime.worker_actor import WorkerActorSpec, make_worker, worker_actor_spec
from pecan_ray.runtime.worker_owner import Keeping

logger = logging.getLogger("pecan_ray.controller")

KILLED_BY_JOB = "`ray.kill`"
"""Stands in Ray's error about an actor that did not end by itself.  Decision 237: a worker whose stream broke is killed
at once, and Ray tells whether its process had ended before."""
DEAD_S = 10.0
"""A process that was ended and still runs after this time hangs: it is ended by a signal."""
MOST_FLUSH_S = 8.0
"""A worker ends its writing sooner by itself, unless its process is frozen."""
FINISH_S = 5.0
"""A worker that is done with a job says so within this time, or ends."""
REASON_S = 2.0
"""What is in the way of workers without a place is looked up once in this time for all of them: the look reads the
cluster's state."""


@dataclass
class WorkerActor:
    """A worker's actor."""

    name: str
    handle: Any = None
    """None: Ray has not made it yet."""
    host: str = ""
    """The one node that it may run on; empty: several."""
    node: str = ""
    pid: int = 0
    owner: int = 0
    """The process that owns it; 0: the controller's."""
    ended: bool = False
    """Its process is known to be gone, or has done all that it was asked."""
    killed: bool = False


class WorkerActors:
    """All workers of a job that were started."""

    def __init__(
        self,
        job: Job,
        pickled: bytes,
        controller: Any,
        keeping: Keeping | None,
        happened: Callable[[Event], None],
        met: Callable[[WorkerInfo], None],
        failed: Failed,
    ) -> None:
        """`pickled`: the job; `keeping`: what owns the workers; None: this process does, and they end with it."""
        self._job, self._pickled, self._controller, self._keeping = job, pickled, controller, keeping
        self._happened, self._met = happened, met
        workers = job.spec.workers
        self._prices = workers.prices if isinstance(workers, AutoWorkers) else None
        self._found: dict[str, Any] = {}
        """Handles of workers that another process has started."""
        self._actors: dict[str, WorkerActor] = {}
        self._tasks = JobTasks(failed)
        self._reason_texts: dict[tuple[tuple[str, str], ...], tuple[float, str]] = {}
        self._lookup_lock = asyncio.Lock()
        """Guards the reasons: one look at the cluster serves all that wait for the same."""
        self.trainer_nodes: tuple[str, ...] = ()

    def start(self, instruction: StartWorker) -> None:
        """Start a worker and follow it."""
        host, labels = instruction.host, self._job.config.remote_labels
        selector = local_selector(host) if host else remote_selector(self.trainer_nodes, labels)
        actor = self._actors[instruction.worker] = WorkerActor(instruction.worker, host=host)
        preferred = [] if host else sort_by_price(selector, self._prices, labels_of_nodes())
        wanted = worker_actor_spec(instruction, selector, self._job, self._pickled, preferred)
        following = self._start(actor, wanted)
        self._tasks.begin(f"following {actor.name}", self._wait_for_end, actor, following)

    def find(self, names: Iterable[str]) -> None:
        """Look for workers that another process has started, which `reattach_worker` is about to be called for.

        Trainers must not hear of one before there is a handle: so this waits for Ray.
        """
        for name in names:
            with contextlib.suppress(ValueError):  # it is gone
                self._found[name] = ray.get_actor(name, namespace=NAMESPACE)

    def reattach_worker(self, instruction: ReattachWorker) -> None:
        """Follow a worker that another process has started."""
        handle = self._found.pop(instruction.worker, None)
        actor = WorkerActor(instruction.worker, handle, node=instruction.node, pid=instruction.pid)
        self._actors[actor.name] = actor
        if handle is not None:
            self._met(WorkerInfo(actor.name, actor.node, actor.pid, handle, instruction.placement))
        self._tasks.begin(f"following {actor.name}", self._wait_for_end, actor, self._go_on(actor))

    async def _create(self, actor: WorkerActor, wanted: WorkerActorSpec) -> None:
        """Have Ray make a worker's actor: it answers once the name is registered, too late for the job's event loop."""
        if self._keeping is not None:
            actor.handle, actor.owner = await self._keeping.start(wanted)
        else:
            actor.handle = await asyncio.to_thread(make_worker, wanted, self._controller)
        # The job may have let it go while Ray made it.
        if actor.killed:
            ray.kill(actor.handle)

    async def _start(self, actor: WorkerActor, wanted: WorkerActorSpec) -> None:
        """Follow a worker from its placement to the end of its work."""
        await self._create(actor, wanted)
        if actor.killed:
            return
        placed = asyncio.ensure_future(actor.handle.placed.remote())
        # A worker that is killed meanwhile is not waited for: asyncio would log its error as one that nobody has seen.
        placed.add_done_callback(lambda future: future.cancelled() or future.exception())
        # Decision 172: idle processes of another job end where a worker finds no place, so they are asked at once.
        if wanted.cpus and (await asyncio.to_thread(place_of, actor.handle, wanted.selector, wanted.cpus))[0] == "no":
            await asyncio.to_thread(end_idle, self._job.spec.name)
        while not (await asyncio.wait([placed], timeout=self._job.config.placement_warning_s))[0]:
            if actor.killed:
                return
            has_place, message = await asyncio.to_thread(place_of, actor.handle, wanted.selector, wanted.cpus)
            self._happened(WorkerPending(actor.name, message or await self._reason(wanted.selector), has_place))
        actor.node, actor.pid = placed.result()
        price = None if self._prices is None or actor.host else self._prices.at(labels_of(actor.node))
        # Before `set_up`, so that a worker which freezes there can be ended by its process id.
        self._happened(WorkerPlaced(actor.name, actor.node, actor.pid, price))
        await actor.handle.set_up.remote()
        # Before the job hears that it is ready: trainers are told of it then, and need the handle.
        self._met(WorkerInfo(actor.name, actor.node, actor.pid, actor.handle, wanted.started.placement))
        self._happened(WorkerReady(actor.name))
        await actor.handle.run.remote()

    async def _go_on(self, actor: WorkerActor) -> None:
        """Follow a worker that works already to the end of its work."""
        try:
            if actor.handle is not None and self._keeping is not None:
                actor.owner, _ = await self._keeping.begin()
                await actor.handle.placed.remote()
        except ray.exceptions.RayActorError:
            actor.handle = None
        if actor.handle is None:
            actor.ended = True
            why = await asyncio.to_thread(why_it_ended, actor.name)
            # Decision 41: blamed on nobody, because nobody saw how it ended.
            self._happened(WorkerLost(actor.name, "restart", why or "it ended while the job had no controller"))
            return
        self._happened(WorkerRestored(actor.name))
        # The call of the process before is under way there: another one waits for the same end.
        await actor.handle.run.remote()

    async def _wait_for_end(self, actor: WorkerActor, life: Awaitable[None]) -> None:
        """Follow a worker to its end, and tell of it."""
        try:
            await life
        except ray.exceptions.ActorUnavailableError as error:
            if not actor.killed:
                self._happened(WorkerLost(actor.name, "stream", f"Ray cannot reach it: {error}"))
        except ray.exceptions.RayActorError as error:
            actor.ended = True
            if not actor.killed or not (error.actor_init_failed or KILLED_BY_JOB in str(error)):
                await self._tell_of_death(actor, error)
        except ray.exceptions.RayTaskError as error:
            self._happened(JobFailed(error.cause if isinstance(error.cause, PecanError) else error))
        except ray.exceptions.ActorUnschedulableError:  # for the labels of a node that lives, and stays, Ray waits
            await self._tell_of_node(actor)
        except (ray.exceptions.RayError, OSError) as error:
            if not actor.killed:
                self._happened(WorkerLost(actor.name, "stream", f"Ray cannot reach it: {error}"))

    async def _tell_of_death(self, actor: WorkerActor, error: ray.exceptions.RayActorError) -> None:
        # A constructor that has failed would fail in the next worker, too.
        if error.actor_init_failed:
            self._happened(JobFailed(WorkerStartError(f"{actor.name} could not be set up: {error}")))
            return
        alive = await asyncio.to_thread(alive_nodes)
        # First, because a keeper that dies takes all workers with it, whatever they were at (decision 41).
        if self._keeping is not None and (await self._keeping.begin())[0] != actor.owner:
            self._happened(WorkerLost(actor.name, "restart", "the process that kept the job's workers died"))
        elif actor.node and actor.node not in alive:
            self._happened(WorkerLost(actor.name, "node", f"its node {actor.node} is gone"))
        else:
            # What a process has written lies in the log folder of its own node.
            why = await asyncio.to_thread(why_it_died, str(error), actor.pid if actor.node == this_node() else None)
            self._happened(WorkerLost(actor.name, "process", why))

    async def _tell_of_node(self, actor: WorkerActor) -> None:
        """Tell that a worker cannot be placed on the one node that it is for, which is gone, or about to go."""
        leaving = await asyncio.to_thread(draining_nodes) if actor.host else {}
        if actor.killed:
            return
        if actor.host in leaving:
            self._happened(NodesLeave(tuple(leaving.items())))  # so that no other one is asked for
            self._happened(WorkerLost(actor.name, "node", f"its node {actor.host} is taken away"))
        else:
            self._happened(WorkerLost(actor.name, "node", "the node that it was to be started on is gone"))

    async def _reason(self, selector: Mapping[str, str]) -> str:
        """Return what is in the way of workers with a selector; asked once for all that wait."""
        key = tuple(sorted(selector.items()))
        async with self._lookup_lock:
            looked, reason = self._reason_texts.get(key, (0.0, ""))
            if not reason or time.monotonic() - looked > REASON_S:
                cpus = self._job.config.cpus_per_worker
                reason = await asyncio.to_thread(why_no_placement, selector, cpus, self._job.spec.name)
                # When the look has ended, which may have taken long.
                self._reason_texts[key] = time.monotonic(), reason
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

    def leave_epochs(self, name: str, before: int) -> None:
        """Let a worker drop what it has of epochs before one; one that Ray is yet to make has nothing."""
        actor = self._actors.get(name)
        if actor is not None and actor.handle is not None and not actor.killed:
            actor.handle.leave_epochs.remote(before).future().add_done_callback(lambda future: future.exception())

    def limit_remote_io(self, one: LimitRemoteIo) -> None:
        """Let a worker read no more than so much of object stores; one that Ray is yet to make is told when it runs."""
        actor = self._actors.get(one.worker)
        if actor is not None and actor.handle is not None and not actor.killed:
            told = actor.handle.limit_remote_io.remote(one.bytes_per_s, one.cache_limits)
            told.future().add_done_callback(lambda future: future.exception())

    async def flush(self) -> None:
        """Wait until those that live have written what they write behind, for a few seconds at most."""
        living = [one for one in self._actors.values() if one.node and not (one.killed or one.ended)]
        calls = [asyncio.ensure_future(one.handle.flush.remote()) for one in living if one.handle is not None]
        for call in calls:
            call.add_done_callback(lambda call: call.cancelled() or call.exception())
        if calls:
            await asyncio.wait(calls, timeout=MOST_FLUSH_S)

    def kill_all(self) -> None:
        """End all of them."""
        for name in self._actors:
            self.kill(name)

    def kill(self, name: str) -> None:
        """End a worker's process, also one that does not react."""
        if (actor := self._actors.get(name)) is None or actor.killed:
            return
        actor.killed = True
        if actor.handle is None:
            return  # it is killed as soon as it is made
        ray.kill(actor.handle)
        if actor.pid and not actor.ended:
            self._tasks.begin(f"making sure of the end of {actor.name}", self._ensure_exit, actor)

    def stop_unknown_workers(self, past: Mapping[str, WorkerRecord]) -> None:
        """End the workers that another process has started, and this one does not know; `past`: those it knew once."""
        self._tasks.begin("ending workers that the job does not know", self._stop_unknown_workers, past)

    async def _stop_unknown_workers(self, past: Mapping[str, WorkerRecord]) -> None:
        if self._keeping is None:
            return
        _, kept = await self._keeping.begin()
        living = await asyncio.to_thread(named_actors)
        # Decision 41: the controller before this one may have died after its decision that a worker goes,
        # and before the deed.
        for name in (name for name in kept if name in living and name not in self._actors):
            with contextlib.suppress(ValueError):  # it is gone
                handle = await asyncio.to_thread(ray.get_actor, name, namespace=NAMESPACE)
                node, pid = (past[name].node, past[name].place.pid) if name in past else ("", 0)
                self._actors[name] = WorkerActor(name, handle, node=node, pid=pid)
                self.kill(name)

    async def _ensure_exit(self, actor: WorkerActor) -> None:
        """A frozen process does not end when Ray asks it to: end it by a signal."""
        await asyncio.sleep(DEAD_S)
        if actor.ended:
            return
        try:
            # A task, because a signal reaches processes of its own node alone.
            if await task(end_process, local_selector(actor.node)).remote(actor.pid):
                logger.warning("%s did not end when it was asked to: process %d was killed", actor.name, actor.pid)
        except ray.exceptions.RayError as error:
            logger.info("%s could not be looked at: %s", actor.name, error)

    async def finish(self, names: Collection[str]) -> list[str]:
        """Follow no worker any more; return which of these can work for another job, and end all others."""
        # First, because the runs of workers end now, and the job that is over must not hear of that.
        self._tasks.cancel()
        known = [one for one in self._actors.values() if one.name in names and one.handle is not None]
        able = [one for one in known if not (one.killed or one.ended)]
        asked = (asyncio.wait_for(one.handle.finish.remote(), FINISH_S) for one in able)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        finished = [one.name for one, answer in zip(able, answers, strict=True) if answer is True]
        for name in self._actors.keys() - set(finished):
            self.kill(name)
        return finished

    def stop(self) -> None:
        """Follow no worker any more; what keeps them ends, and they do with it."""
        self._tasks.cancel()
        if self._keeping is not None:
            self._keeping.end()


def end_process(pid: int) -> bool:
    """Kill a process of Ray's on this node; False if it is gone, or the number belongs to another program."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            title = file.read().decode(errors="replace")
        if not title.startswith("ray::"):
            return False
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True
