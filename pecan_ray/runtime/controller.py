"""The actor of a job: turns what happens into events of `pecan_ray.job`, and performs what the job says.

It is off the data path: batches go from workers to clients.  All state is touched on one event loop only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any

import ray

from pecan_ray.engines.counting import OpCount
from pecan_ray.engines.under_way import long_retry
from pecan_ray.errors import OrderError, PecanError
from pecan_ray.job import events, instructions
from pecan_ray.job.facts import JobFacts
from pecan_ray.job.messages import Reply, TrainerReport, WorkerProgress
from pecan_ray.plan.splits import Source
from pecan_ray.runtime.bidding import Bidding
from pecan_ray.runtime.cluster import remote_selector, room_for
from pecan_ray.runtime.journaled_job import JournaledJob
from pecan_ray.runtime.listing import list_sources
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.metrics import JobMetrics
from pecan_ray.runtime.notice_board import NoticeBoard
from pecan_ray.runtime.worker_actors import WorkerActors
from pecan_ray.storage.retry import set_patience, tell_elsewhere

logger = logging.getLogger("pecan_ray.controller")

TICK_S = 1.0
LONGEST_GAP_S = 3 * TICK_S
"""A controller that was asleep for longer has not heard those who called meanwhile."""


class AutoPlacementController:
    """Controller of one job; run as a named Ray actor in the namespace `pecan`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        set_patience(job.config.storage_patience_s)
        tell_elsewhere()  # the job says what hinders its listing
        self._sources: list[Source] = pickle.loads(job.sources)
        context = ray.get_runtime_context()
        again = bool(context.was_current_actor_reconstructed)
        self._journaled = JournaledJob(job.spec, job.config.journal, again=again, longest_gap_s=LONGEST_GAP_S)
        self._state = self._journaled.state
        self._board = NoticeBoard(self._state.orders)
        self._actors: WorkerActors | None = None
        self._calls: dict[tuple[str, str, int], list[asyncio.Future[Reply]]] = {}
        """Questions of workers that wait for their answers."""
        self._refused: dict[str, PecanError] = {}
        """Why trainers cannot take part, by incarnation."""
        self._counts: dict[str, Mapping[str, OpCount]] = {}
        self._metrics = JobMetrics(job.spec.name)
        self._bidding: asyncio.Task[None] | None = None
        self._ended = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._perform_by: dict[type, Callable[[Any], None]] = {
            instructions.FindRoom: self._find_room,
            instructions.Refuse: self._refuse,
            instructions.BeginListing: lambda one: list_sources(self._sources, one.known, self._happened_elsewhere),
            instructions.StartWorker: lambda one: self._workers.start(one),
            instructions.DrainWorker: self._drain,
            instructions.KillWorker: self._kill,
            instructions.UseUsersOrder: lambda one: self._workers.use_users_order(one.worker),
            instructions.Answer: self._answer,
            instructions.TellTrainers: lambda one: self._board.tell(one.ranks, allowance_only=one.allowance_only),
            instructions.Log: lambda one: logger.log(logging.getLevelName(one.level.upper()), one.text),
            instructions.EndJob: self._end,
        }
        if again:
            # Trainers need not call soon, if any is left.
            context.current_actor.go_on.remote()

    def _happened(self, event: events.Event) -> None:
        """Let the job know what has happened, and do what it says."""
        if self._loop is None:
            self._begin()
        for instruction in self._journaled.handle(event):
            self._perform_by[type(instruction)](instruction)

    def _begin(self) -> None:
        """Let time pass from the first event on; before that, a job that goes on is told that it does."""
        self._loop = asyncio.get_running_loop()
        if self._journaled.restarted:
            self._happened(events.ControllerRestarted())
        self._spawn(self._watch())

    async def go_on(self) -> None:
        """Go on with a job whose controller was lost, though nobody calls."""
        self._happened(events.TimePassed())

    def _happened_elsewhere(self, event: events.Event) -> Future[None]:
        """Let the job know what has happened in another thread; what is returned ends when that was handled."""
        assert self._loop is not None
        handled: Future[None] = Future()

        def handle() -> None:
            try:
                self._happened(event)
            finally:
                handled.set_result(None)

        self._loop.call_soon_threadsafe(handle)
        return handled

    @property
    def _workers(self) -> WorkerActors:
        if self._actors is None:
            me = ray.get_runtime_context().current_actor
            self._actors = WorkerActors(self._job, me, self._happened, self._board.add_worker)
        return self._actors

    async def _watch(self) -> None:
        """Let time pass for the job until it has ended."""
        hindered = False
        while not self._ended:
            now = time.monotonic()
            retrying = long_retry(now)
            if retrying or hindered:
                hindered = retrying is not None
                since = (retrying.text, now - retrying.since) if retrying else ("",)
                self._happened(events.ListingHindered(*since))
            self._happened(events.TimePassed())
            self._metrics.job(self._state, self._journaled.now())
            await asyncio.sleep(TICK_S)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- trainers ------------------------------------------------------------------------------------------

    async def register(self, rank: int, incarnation: str, node: str, described: tuple[tuple[str, str], ...]) -> None:
        """Add a trainer; with the last one the job begins.  Raises PecanError if it cannot take part."""
        self._happened(events.TrainerCame(rank, incarnation, node, described))
        if incarnation in self._refused:
            raise self._refused.pop(incarnation)

    async def listen(self, rank: int, incarnation: str, number: int, met: int) -> bytes:
        """Return a trainer's orders, pickled, as soon as they differ from the ones with that number."""
        self._happened(events.TrainerListens(rank, incarnation, met))
        return await self._board.listen(rank, number)

    async def report(self, pickled: bytes) -> bytes:
        """Take a trainer's report; return its orders, pickled."""
        report: TrainerReport = pickle.loads(pickled)
        self._metrics.reported(report)
        self._happened(events.TrainerReported(report))
        return self._board.pickled(report.rank)

    async def leave(self, rank: int, incarnation: str) -> tuple[JobFacts, bool]:
        """Take a trainer off the job; return the facts, and whether it was the last one, who ends this actor."""
        self._happened(events.TrainerLeft(rank, incarnation))
        self._board.release(rank)
        return await self.facts(), self._ended

    async def resume_point(self, batches: int) -> bytes:
        """Return where the job stands after so many batches of each trainer, pickled; None before they were told of."""
        return pickle.dumps(self._state.resume_point(batches))

    # --- workers -------------------------------------------------------------------------------------------

    async def ask(self, pickled: bytes) -> bytes:
        """Answer a worker's question, pickled as it is itself, as soon as there is an answer."""
        asked: events.WorkerAsked = pickle.loads(pickled)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls.setdefault((asked.worker, asked.channel, asked.number), []).append(answer)
        self._happened(asked)
        return pickle.dumps(await answer)

    def _answer(self, instruction: instructions.Answer) -> None:
        key = (instruction.worker, instruction.channel, instruction.number)
        for call in self._calls.pop(key, ()):
            if not call.done():
                call.set_result(instruction.reply)

    async def told(self, worker: str, progress: WorkerProgress, counts: Mapping[str, OpCount]) -> None:
        """Note what a worker has done so far."""
        self._counts[worker] = counts
        known = self._state.fleet.workers.get(worker)
        if known is not None:
            self._metrics.told(worker, known.placement, progress)
        self._happened(events.WorkerTold(worker, progress))

    async def failed(self, worker: str, error: PecanError) -> None:
        """End the job with a worker's error: the trainers raise it; or go on, in the user's order of operators."""
        if isinstance(error, OrderError):
            self._happened(events.OrderFailed(worker, error.message))
            return
        logger.error("%s: %s", worker, error)
        self._happened(events.JobFailed(error))

    async def plan(self, version: int) -> bytes:
        """Return a version of the plan, pickled."""
        return (self._job.plan, *self._journaled.plans)[version]

    def _drain(self, instruction: instructions.DrainWorker) -> None:
        self._workers.drain(instruction.worker)

    def _kill(self, instruction: instructions.KillWorker) -> None:
        self._board.remove_worker(instruction.worker)
        self._workers.kill(instruction.worker)

    # --- what else happens ---------------------------------------------------------------------------------

    async def begin(self, plan: bytes | None, row_s: float | None = None) -> None:
        """Let work begin, with the operators in that order (None: as they are written); the first trainer decides.

        `row_s`: seconds of one thread for a row of a batch, by a sample.
        """
        if plan is not None and not self._state.ordered:
            self._journaled.add_plan(plan)
        self._happened(events.OrderKnown(bool(self._journaled.plans), row_s))

    async def replan(self, plan: bytes, said: str) -> None:
        """Run another order of the operators from the next epoch on that has not begun."""
        self._journaled.add_plan(plan)
        self._happened(events.PlanChanged(said))

    async def scale(self, local: int, remote: int) -> None:
        """Fix the numbers of workers, as a trainer asks: from now on nothing else changes them."""
        self._happened(events.ScaleAsked(local, remote))

    async def bids(self) -> bytes:
        """Return what this job bids for nodes that others may want as well, pickled."""
        return pickle.dumps(self._state.bids())

    async def make_room(self, job: str) -> None:
        """Give up a worker for another job, if this one may."""
        self._happened(events.RoomAsked(job))

    def _find_room(self, instruction: instructions.FindRoom) -> None:
        self._workers.trainer_nodes = instruction.nodes
        bidding = Bidding(self._job.spec.name, self._happened)
        self._bidding = asyncio.ensure_future(bidding.run(instruction.nodes, self._job.config.remote_labels))
        self._spawn(self._look_for_room(instruction.nodes))

    async def _look_for_room(self, nodes: tuple[str, ...]) -> None:
        selector = remote_selector(nodes, self._job.config.remote_labels)
        room = await asyncio.to_thread(room_for, nodes, selector)
        hosts = tuple(zip(nodes, room.host_cpus, strict=True))
        self._happened(events.RoomFound(hosts, room.remote_cpus))

    def _refuse(self, instruction: instructions.Refuse) -> None:
        self._refused[instruction.incarnation] = instruction.error

    def _end(self, instruction: instructions.EndJob) -> None:
        self._ended = True
        self._journaled.end()
        if self._bidding is not None:
            self._bidding.cancel()
        self._workers.stop()
        if instruction.orphaned:
            logger.warning("job %s ends: none of its trainers can be heard", self._job.spec.name)
            ray.kill(ray.get_runtime_context().current_actor)

    async def facts(self) -> JobFacts:
        """Return the facts of the job so far."""
        return self._state.facts(self._journaled.now())

    async def op_counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators in the first epoch, over all workers."""
        sums: dict[str, OpCount] = {}
        for counts in self._counts.values():
            for op, count in counts.items():
                sums[op] = sums.get(op, OpCount()) + count
        return sums

    async def process_id(self) -> int:
        """Return the process id, for those who want to look at it from outside."""
        return os.getpid()
