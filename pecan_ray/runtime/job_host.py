"""A job in its controller's process: lets it know what happens, and performs what it wants done.

All state is touched on one event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import ray

from pecan_ray.cache_options import ClusterIo
from pecan_ray.engines.under_way import long_retry
from pecan_ray.errors import PecanError
from pecan_ray.job import events, instructions
from pecan_ray.job.active_clock import LONGEST_GAP_S, TICK_S
from pecan_ray.job.first_worker import first_names
from pecan_ray.job.job_views import LiveJob, live_job
from pecan_ray.job.messages import Reply
from pecan_ray.job.speed import JobSpeed, SpeedMeter
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.plan.splits import SplitLister
from pecan_ray.runtime.cluster import draining_nodes, process_exists, remote_selector, room_for, this_node
from pecan_ray.runtime.cpu_lines import CpuLines
from pecan_ray.runtime.host_names import named, named_error
from pecan_ray.runtime.idle_processes import IdleProcesses
from pecan_ray.runtime.io_sharing import IoSharing, datasets_of
from pecan_ray.runtime.job_arrays import ReceivedJob
from pecan_ray.runtime.job_tasks import JobTasks, unexpected_failure
from pecan_ray.runtime.journal_file import JournalPlace
from pecan_ray.runtime.journaled_job import JournaledJob
from pecan_ray.runtime.listing import list_sources
from pecan_ray.runtime.metrics import JobMetrics
from pecan_ray.runtime.pickling import unpickle_here
from pecan_ray.runtime.pool_request_exchange import PoolRequestExchange
from pecan_ray.runtime.update_calls import UpdateCalls
from pecan_ray.runtime.worker_actors import WorkerActors
from pecan_ray.runtime.worker_owner import Keeping
from pecan_ray.storage.retry import set_patience, tell_elsewhere

logger = logging.getLogger("pecan_ray.controller")


class JobHost:
    """One job: its state, and everything that acts for it."""

    def __init__(
        self, received: ReceivedJob, place: JournalPlace | None, keeping: Keeping | None, *, again: bool
    ) -> None:
        """`keeping`: what owns the job's workers; `again`: it goes on from its journal."""
        self.job, self.arrays = received.job, received.put
        set_patience(self.job.config.storage_patience_s)
        tell_elsewhere()  # the job says what hinders its listing
        what = f"the source of job {self.job.spec.name}"
        self._sources: list[SplitLister] = unpickle_here(self.job.sources, what, received.arrays)
        # Decision 132: the journal holds the large arrays too, because the object ends with this process.
        self._journaled = JournaledJob(self.job.spec, place, None if again else received.journaled, LONGEST_GAP_S)
        self.state = self._journaled.state
        self.tasks = JobTasks(self.fail)
        self.update_calls = UpdateCalls(self.state.trainer_update, self.tasks)
        self.metrics = JobMetrics(self.job.spec.name, self.job.pipeline)
        self._meter, self._speed = SpeedMeter(), JobSpeed()
        self._io = IoSharing(self.job, self.state, lambda: self._speed, self.happened)
        controller = ray.get_runtime_context().current_actor
        acts = self.happened, self.update_calls.add_worker, self.fail
        self.workers = WorkerActors(self.job, received.pickled, controller, keeping, *acts)
        self._keeping = keeping
        # Here, because it waits for Ray, and no event is handled before: trainers hear of a worker
        # by an event, and need its handle.
        if again:
            self.workers.find(worker.name for worker in self.state.worker_table.workers.values() if worker.running)
        self.rejected: dict[str, PecanError] = {}
        """Why trainers cannot take part, by incarnation."""
        self.ended = self.keep = False
        self.idle: IdleProcesses | None = None
        """What waits for another job, if the trainer that has ended this one wants to `keep` it."""
        self.broken: PecanError | None = None
        """Why the job's state takes no event any more: whoever calls is told."""
        self._calls: dict[tuple[str, str, int], list[asyncio.Future[Reply]]] = {}
        """Questions of workers that wait for their answers."""
        self._pool_request_task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.cpu_lines = CpuLines()
        self._retry = False
        """The storage makes the listing wait, as the job has been told."""
        self._perform_by: dict[type, Callable[[Any], None]] = {
            instructions.FindRoom: self._find_room,
            instructions.RejectTrainer: self._reject,
            instructions.LookForTrainers: self._look_for_trainers,
            instructions.LookForWorkers: self._look_for_workers,
            instructions.BeginListing: lambda one: list_sources(self._sources, one.known, self._happened_elsewhere),
            StartWorker: lambda one: self.workers.start(one),
            instructions.ReattachWorker: lambda one: self.workers.reattach_worker(one),
            instructions.EndUnknownWorkers: lambda _: self.workers.stop_unknown_workers(self.state.worker_table.past),
            instructions.DrainWorker: lambda one: self.workers.drain(one.worker),
            instructions.KillWorker: self._kill,
            instructions.UseUsersOrder: lambda one: self.workers.use_users_order(one.worker),
            instructions.LeaveEpochs: lambda one: self.workers.leave_epochs(one.worker, one.before),
            instructions.LimitRemoteIo: lambda one: self.workers.limit_remote_io(one),
            instructions.Response: self._send_response,
            instructions.TellTrainers: lambda one: self.update_calls.tell(
                one.ranks, only_limit_raised=one.only_limit_raised
            ),
            instructions.Log: lambda one: logger.log(logging.getLevelName(one.level.upper()), named(one.text)),
            instructions.EndJob: self._end,
        }

    @property
    def plan_versions(self) -> tuple[bytes, ...]:
        """The plan's versions; a later one has its operators in another order."""
        return (self.job.plan, *self._journaled.plan_versions)

    def add_plan(self, plan: bytes) -> None:
        """Keep another version of the plan."""
        self._journaled.add_plan(plan)

    def now(self) -> float:
        """Return the job's time."""
        return self._journaled.now()

    def begin(self) -> None:
        """Let time pass, if it does not yet; before that, a job that goes on is told that it does."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._journaled.restarted:
                self._go_on()
            self.tasks.begin("letting time pass", self._let_time_pass)
            self.tasks.begin("looking for nodes that are taken away", _watch_nodes, self)
            if isinstance(self.job.config.remote_io, ClusterIo):
                self.tasks.begin("sharing the cluster's pipe and cache", self._share_io)

    def _go_on(self) -> None:
        """Let the job know that its controller was lost: what it then wants done is of the next generation."""
        if self._keeping is not None:
            # Before the event, because what follows from it asks the keeper by this number.
            # Decision 41: the keeper refuses what a process before this one still asks for.
            self._keeping.generation = self.state.worker_recovery.generation + 1
        self.happened(events.ControllerRestarted())

    def happened(self, event: events.Event) -> None:
        """Let the job know what has happened, and do what it says."""
        self.begin()
        if self.broken is None and (lost := self._journaled.lost_before(event)) is not None:
            # Not `fail`: its orders would be older than those that the trainers have, which they do not look at.
            logger.error("job %s ends: %s", self.job.spec.name, lost.message)
            self._break(lost)
        if self.broken is not None:
            return
        with self.tasks.guard_call(f"handling {type(event).__name__}"):
            self._handle(event)

    def _handle(self, event: events.Event) -> None:
        # Decision 37: the event is in the journal before anything is done about it.
        # A process that is killed between the two has told nobody of what a replay would not know.
        for instruction in self._journaled.handle(event):
            with self.tasks.guard_call(f"performing {type(instruction).__name__}"):
                self._perform_by[type(instruction)](instruction)

    def fail(self, doing: str, error: Exception) -> None:
        """End the job with an error that was not foreseen: the trainers raise it."""
        if self.ended or self.broken is not None or self.state.error is not None:
            logger.info("job %s: after its end, while %s: %r", self.job.spec.name, doing, error)
            return
        failure = unexpected_failure(self.job.spec.name, doing, error)
        logger.error("job %s fails while %s", self.job.spec.name, doing, exc_info=error)
        try:
            # Not `happened`: its guard would take an error for another failure of the job, and end in `fail` again.
            self._handle(events.JobFailed(failure))
        except Exception as second:
            logger.error("job %s takes no event any more", self.job.spec.name, exc_info=second)
            self._break(failure)

    def _break(self, failure: PecanError) -> None:
        """End all that acts for the job, and this process once the trainers have heard why."""
        self.broken = failure
        self.workers.kill_all()
        actor = ray.get_runtime_context().current_actor
        # Each trainer that lives has called by then, and was told why.
        asyncio.get_running_loop().call_later(self.job.config.trainer_timeout_s, ray.kill, actor)

    async def wait_for_cleanup(self) -> None:
        """Wait until what the job has left elsewhere is removed, for as long as that is worth."""
        await self._io.leave()
        await asyncio.to_thread(self._journaled.join)

    def live(self) -> LiveJob:
        """Return how the job is at this moment."""
        datasets = datasets_of(self.state) or ()
        live = live_job(self.state, self.now(), self.job.pipeline, self._speed, datasets=datasets)
        return replace(live, error=named(live.error))

    async def _share_io(self) -> None:
        while not self.ended:
            await self._io.round()

    def _happened_elsewhere(self, event: events.Event) -> Future[None]:
        """Let the job know what has happened in another thread; what is returned ends when that was handled."""
        assert self._loop is not None
        handled: Future[None] = Future()

        def handle() -> None:
            self.happened(event)
            handled.set_result(None)

        self._loop.call_soon_threadsafe(handle)
        return handled

    async def _let_time_pass(self) -> None:
        while not self.ended:
            with self.tasks.guard_call("letting time pass"):
                self._tick()
            await asyncio.sleep(TICK_S)

    def _tick(self) -> None:
        now = time.monotonic()
        retrying = long_retry(now)
        # Also once when it is over, so that the job takes back what it has said.
        if retrying or self._retry:
            self._retry = retrying is not None
            since = (retrying.text, now - retrying.since) if retrying else ("",)
            self.happened(events.ListingRetrying(*since))
        self.happened(events.TimePassed())
        self.metrics.job(self.state, self.now())
        self._speed = self._meter.look(self.state, self.now())

    async def response_to(self, asked: events.WorkerRequestReceived) -> Reply:
        """Let the job know what a worker asks; return the answer as soon as there is one."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        # A list, because a worker whose call has failed asks the same question again, of the same process perhaps.
        self._calls.setdefault((asked.worker, asked.channel, asked.number), []).append(answer)
        self.happened(asked)
        return await answer

    async def flush(self) -> None:
        """Let the workers finish what they write to a store that other machines read, which is bounded in time."""
        if self.job.config.cache.remote is not None and not self.ended:
            await self.workers.flush()

    # --- instructions --------------------------------------------------------------------------------------

    def _send_response(self, instruction: instructions.Response) -> None:
        key = (instruction.worker, instruction.channel, instruction.number)
        for call in self._calls.pop(key, ()):
            if not call.done():
                call.set_result(instruction.reply)

    def _reject(self, instruction: instructions.RejectTrainer) -> None:
        self.rejected[instruction.incarnation] = named_error(instruction.error)

    def _kill(self, instruction: instructions.KillWorker) -> None:
        self.update_calls.remove_worker(instruction.worker)
        # Decision 172: the processes of a job that another one may follow are ended by
        # `IdleProcesses`, if at all.
        if not self._may_keep:
            self.workers.kill(instruction.worker)

    @property
    def _may_keep(self) -> bool:
        """Return whether the job has ended well, in one life of its controller, and another one may follow."""
        same = self._keeping is not None and not self._keeping.generation
        return self.keep and self.state.ended and self.state.error is None and same

    def _find_room(self, instruction: instructions.FindRoom) -> None:
        self.workers.trainer_nodes = instruction.nodes
        bidding = PoolRequestExchange(self.job.spec.name, self.happened)
        self._pool_request_task = self.tasks.begin(
            "asking other jobs what they bid for workers",
            bidding.run,
            instruction.nodes,
            self.job.config.remote_labels,
        )
        self.tasks.begin("looking for nodes that workers may run on", self._look_for_room, instruction.nodes)

    def _look_for_trainers(self, instruction: instructions.LookForTrainers) -> None:
        self.tasks.begin("looking for trainers that say nothing", _look_for_each, self, instruction.trainers)

    def _look_for_workers(self, instruction: instructions.LookForWorkers) -> None:
        self.tasks.begin("looking at workers that say nothing", _look_at_each, self, instruction.workers)

    async def _look_for_room(self, nodes: tuple[str, ...]) -> None:
        selector = remote_selector(nodes, self.job.config.remote_labels)
        room = await asyncio.to_thread(room_for, nodes, selector)
        hosts = tuple(zip(nodes, room.host_cpus, strict=True))
        self.happened(events.RoomFound(hosts, room.remote_cpus))

    def _end(self, instruction: instructions.EndJob) -> None:
        self.ended = True
        self._journaled.end(deserted=instruction.orphaned)
        if self._pool_request_task is not None:
            self._pool_request_task.cancel()
        if self._keeping is not None and self._may_keep:
            self.idle = IdleProcesses(
                self.workers, self._keeping, first_names(self.job.spec, self.state.worker_table.hosts)
            )
            # A worker that waits for an answer could not finish, and then not be given another job.
            for call in (one for calls in self._calls.values() for one in calls if not one.done()):
                call.set_exception(PecanError(f"job {self.job.spec.name} has ended"))
            return
        self.workers.stop()
        # The last trainer to leave ends this actor, and here there is none.
        if instruction.orphaned:
            logger.warning("job %s ends: none of its trainers can be heard", self.job.spec.name)
            ray.kill(ray.get_runtime_context().current_actor)


async def _look_for_each(host: JobHost, trainers: tuple[instructions.TrainerProcess, ...]) -> None:
    """Tell the job which processes exist, as far as that is known."""
    for one in trainers:
        try:
            exists = await asyncio.to_thread(process_exists, one.process, one.node)
        except ray.exceptions.RayError as error:
            # Decision 94: unknown is not "ended".  The trainer's deadline holds, counted from the last answer.
            logger.warning("job %s cannot be told whether rank %d lives: %s", host.job.spec.name, one.rank, error)
            return
        if exists is not None and not host.ended:
            state: events.ProcessState = "exists" if exists else "ended"
            host.happened(events.TrainerChecked(one.rank, one.incarnation, state))


async def _look_at_each(host: JobHost, workers: tuple[instructions.SilentWorker, ...]) -> None:
    """Tell a job which workers stand in line for CPUs: those of this node alone can be looked at."""
    here = this_node()
    for one in [one for one in workers if one.node == here]:
        in_line = await asyncio.to_thread(host.cpu_lines.look, one.pid, again=one.again)
        if in_line is not None and not host.ended:
            host.happened(events.WorkerChecked(one.worker, in_line.seconds, in_line.of_s))


async def _watch_nodes(host: JobHost) -> None:
    """Tell a job of nodes that will be taken away, as Ray was told."""
    known: set[str] = set()
    while not host.ended:
        try:
            # Decision 45: this call of Ray's blocks for 3 ms, and the event loop answers trainers and workers.
            leaving = await asyncio.to_thread(draining_nodes)
        except ray.exceptions.RayError as error:  # no reason to end a job that has its workers
            logger.warning("job %s cannot be told of nodes that are taken away: %s", host.job.spec.name, error)
            leaving = {}
        new = tuple((node, left_s) for node, left_s in leaving.items() if node not in known)
        known.update(leaving)
        if new and not host.ended:
            host.happened(events.NodesLeave(new))
        await asyncio.sleep(TICK_S)
