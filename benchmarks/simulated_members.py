"""Workers and trainers without data: they say to a controller what real ones say, with real calls.

A trainer is a real `TrainerState`; only its batches are names.  A worker takes leases in lots as real ones do, and
makes one batch of every split in a steady time.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import random
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any

from pecan_ray.engines.counting import OpCount
from pecan_ray.job import trainer_events
from pecan_ray.job.events import WorkerRequestReceived
from pecan_ray.job.heartbeat import HEARTBEAT_S, Heartbeat
from pecan_ray.job.lease_branch import AHEAD_S, Branch, lot_of
from pecan_ray.job.ledger_shape import Assignment
from pecan_ray.job.messages import (
    AskAssignment,
    AskLeases,
    Assigned,
    EndAssignment,
    Lengths,
    TrainerReport,
    TrainerUpdate,
    WorkerProgress,
    WorkerQuestion,
)
from pecan_ray.job.trainer import TrainerState
from pecan_ray.options import Config
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.runtime.worker_reporter import NEWS_S

ELEMENTS = 64
"""Of a split, and of a batch."""
BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class MemberPace:
    """How fast data flows."""

    workers: int
    trainers: int
    batch_s: float = 0.5
    """A worker makes a batch in this time, and a trainer receives one;"""
    step_s: float = 0.5
    """a trainer's step takes this time."""
    stock: int = 30
    """Batches that each trainer has before its first step,"""
    queue: int = 60
    """and has room for."""


class SimulatedMembers:
    """All workers and trainers of one controller, in this process."""

    def __init__(self, controller: Any, pace: MemberPace) -> None:
        self.controller, self.pace = controller, pace
        self.calls: Counter[str] = Counter()
        self.used = 0
        """Batches that training loops have had."""
        self.trainers = [SimulatedTrainer(self, rank) for rank in range(pace.trainers)]
        self.workers: list[MemberWorker] = []
        self.ids = count(1)
        self._next_rank = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def call(self, kind: str, *arguments: object) -> Any:
        """Call the controller."""
        answer = await getattr(self.controller, kind).remote(*arguments)
        self.calls[kind] += 1
        return answer

    async def begin(self, node: str, names: int) -> None:
        """Register all trainers, wait for the workers, and let work begin."""
        for trainer in self.trainers:
            await self.call("register", trainer.state.rank, trainer.incarnation, node, ())
        await self.call("begin", None)
        while len(workers := await self.controller.running.remote()) < names:
            await asyncio.sleep(0.1)
        for trainer in self.trainers:
            self.spawn(trainer.listen())
        self.workers = [MemberWorker(self, name) for name in workers]
        for worker in self.workers:
            self.spawn(worker.run())
            self.spawn(worker.keep_telling())
        stock_s = self.pace.stock * self.pace.batch_s * self.pace.trainers / max(1, self.pace.workers)
        await self.pass_time(stock_s + self.pace.batch_s)
        for trainer in self.trainers:
            self.later(random.random() * self.pace.step_s, trainer.wants)

    def deliver(self, worker: str, rank: int | None, epoch: int, lease: Lease) -> None:
        """Give the next trainer a batch."""
        if rank is None:
            rank, self._next_rank = self._next_rank, (self._next_rank + 1) % len(self.trainers)
        spans = {lease.key: [(start, min(stop, ELEMENTS << OUTPUT_BITS)) for start, stop in lease.spans]}
        batch = trainer_events.ReceivedBatch(next(self.ids), worker, epoch, spans, ELEMENTS, BATCH_BYTES)
        self.trainers[rank].happened(trainer_events.BatchesReceived(worker, (batch,)))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something run; if it fails, all does."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Let all end with an error."""
        if not self.failed.done():
            self.failed.set_exception(error)

    @staticmethod
    def later(seconds: float, act: Any) -> asyncio.Handle:
        """Do something later."""
        return asyncio.get_running_loop().call_later(seconds, act)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass; raises what has failed meanwhile."""
        await asyncio.wait([self.failed], timeout=seconds)
        if self.failed.done():
            self.failed.result()

    async def end(self) -> None:
        """Let all of them stop."""
        for trainer in self.trainers:
            trainer.happened(trainer_events.TrainerClosed())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SimulatedTrainer:
    """One rank: its state is real, its training loop a timer."""

    def __init__(self, members: SimulatedMembers, rank: int) -> None:
        self._members = members
        self.incarnation = f"process-{rank}"
        prefetch_bytes = members.pace.queue * BATCH_BYTES
        self.state = TrainerState(rank, members.pace.trainers, self.incarnation, prefetch_bytes, time.monotonic())
        self._timer: asyncio.Handle | None = None
        self._due = math.inf
        """The timer's time, which the handle of another event loop does not tell."""
        self._over = False

    def wants(self) -> None:
        """Ask for the next batch."""
        self.happened(trainer_events.BatchRequested())

    def happened(self, event: trainer_events.TrainerEvent) -> None:
        """Take an event and do what must be done."""
        now = time.monotonic()
        for instruction in self.state.handle(event, now):
            if isinstance(instruction, trainer_events.SendReport):
                self._members.spawn(self._send(instruction.report))
            elif isinstance(instruction, trainer_events.DeliverBatch):
                self._members.used += 1
                self._members.later(self._members.pace.step_s, self.wants)
            elif isinstance(instruction, trainer_events.RaiseError):
                self._members.fail(instruction.error)
        self._over = self.state.over
        due = math.inf if self._over else self.state.due
        if due < self._due or self._over:
            if self._timer is not None:
                self._timer.cancel()
            self._due = due
            self._timer = None if self._over else self._members.later(max(0.0, due - now), self._time_passed)

    def _time_passed(self) -> None:
        self._timer, self._due = None, math.inf
        self.happened(trainer_events.TrainerTime())

    async def _send(self, report: TrainerReport) -> None:
        orders: TrainerUpdate
        orders, _ = pickle.loads(await self._members.call("report", pickle.dumps(report)))
        self.happened(trainer_events.ReportAccepted(report.number, orders))

    async def listen(self) -> None:
        """Wait for orders, again and again."""
        while not self._over:
            known = self.state.update
            call = self._members.call("listen", self.state.rank, self.incarnation, known.number, known.met)
            orders: TrainerUpdate
            orders, _ = pickle.loads(await call)
            self.happened(trainer_events.UpdateReceived(orders))


class MemberWorker:
    """One worker: takes leases in lots, and makes a batch of each."""

    def __init__(self, members: SimulatedMembers, name: str) -> None:
        self._members, self.name = members, name
        self._numbers: Counter[str] = Counter()
        self._progress = WorkerProgress(threads=4)
        self._lengths: list[tuple[tuple[int, int, int], int]] = []
        self._lease_s: float | None = None
        self._lot_s = 0.0
        self._heartbeat = Heartbeat(min(Config().worker_timeout_s, Config().hung_after_s))

    async def _ask(self, channel: str, request: WorkerQuestion) -> Any:
        self._numbers[channel] += 1
        self._heartbeat.requested_at = time.monotonic()
        asked = WorkerRequestReceived(self.name, channel, self._numbers[channel], request)
        return pickle.loads(await self._members.call("ask", pickle.dumps(asked)))

    async def _take(self, epoch: int, lot_s: float) -> Any:
        request = AskLeases(epoch, 0, lot_of(Branch(lease_s=self._lease_s), lot_s), self._noted())
        return await self._ask("take:0", request)

    def _noted(self) -> Lengths:
        lengths, self._lengths = tuple(self._lengths), []
        return lengths

    async def run(self) -> None:
        """Work until the job is over."""
        await asyncio.sleep(random.random() * self._members.pace.batch_s)
        while isinstance(assigned := await self._ask("run", AskAssignment(self._progress)), Assigned):
            self._lot_s = assigned.lot_s
            made = await self._work(assigned.assignment, assigned.lot_s)
            await self._ask("run", EndAssignment(assigned.assignment.epoch, {}, made, self._noted()))

    async def _work(self, assignment: Assignment, lot_s: float) -> int:
        made, at, epoch, batch_s = 0, time.monotonic(), assignment.epoch, self._members.pace.batch_s
        leases = await self._take(epoch, lot_s)
        while leases:
            ahead: asyncio.Future[Any] | None = None
            for place, lease in enumerate(leases):
                if place == len(leases) - 1 and self._lease_s is not None and self._lease_s < AHEAD_S:
                    ahead = asyncio.ensure_future(self._take(epoch, lot_s))
                at = max(at + batch_s, time.monotonic() - batch_s)
                await asyncio.sleep(at - time.monotonic())
                self._produced(assignment, lease)
                made += 1
            leases = await (ahead or self._take(epoch, lot_s))
        return made

    def _produced(self, assignment: Assignment, lease: Lease) -> None:
        self._lease_s = self._members.pace.batch_s
        if lease.spans[-1][1] == END:
            self._lengths.append((lease.key, ELEMENTS))
        done = self._progress
        self._progress = WorkerProgress(done.elements + ELEMENTS, done.batches + 1, 4)
        self._members.deliver(self.name, assignment.rank, assignment.epoch, lease)

    async def keep_telling(self) -> None:
        """Say now and then that this worker lives."""
        counts: dict[str, OpCount] = {}
        await asyncio.sleep(random.random() * HEARTBEAT_S)
        while True:
            if self._heartbeat.due(now := time.monotonic(), self._lot_s):
                self._heartbeat.reported_at = now
                await self._members.call("note_progress", self.name, self._progress, counts)
            await asyncio.sleep(NEWS_S)
