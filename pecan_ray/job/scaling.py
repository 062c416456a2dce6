"""How many workers a job wants: what the user, AutoPlacement and the jobs beside it say, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pecan_ray.errors import PlanError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import Instructions, Log
from pecan_ray.job.messages import LogLevel
from pecan_ray.job.sharing import PoolBid, Sharing
from pecan_ray.job.worker_starts import WorkerStarts
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.plan.windows import Deployment

FIXED = "AutoPlacement decides no more: the numbers of workers were fixed by scale()"


class Scaling:
    """The part of a job that decides on numbers of workers; who comes and goes is `WorkerStarts`'s."""

    def __init__(self, job: JobCore, staffing: WorkerStarts) -> None:
        self._job, self._worker_starts = job, staffing
        self._worker_table, self._placement = job.worker_table, job.placement
        self.sharing = Sharing()
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.RoomFound: self._on_room,
            events.ScaleRequested: self._on_scale,
            events.RoomRequested: self._on_room_requested,
            events.PoolRequestsReceived: self._on_bid_update,
        }

    def _on_room(self, event: events.RoomFound, now: float, done: Instructions) -> None:
        if self._worker_table.hosts:
            return  # a controller that was started again has asked anew, and the job has its workers
        self._worker_table.hosts = dict(event.hosts)
        try:
            started = self._placement.begin(self._worker_table.hosts, event.remote_cpus)
            # AutoOrder's sample may have ended before the nodes were looked at.
            target = (
                self._placement.sampled(self._placement.row_s, self._job.trainers.progress, self._worker_table)
                or started
            )
        except PlanError as error:  # the bounds leave no worker on these nodes
            self._job.fail(error, now, done)
            return
        if self._job.spec.shape.one_at_a_time and isinstance(self._job.spec.workers, AutoWorkers):
            message = "one worker at a time can run this pipeline: AutoPlacement has nothing to decide"
            self._job.tell("placement", message, now)
        for message in self._worker_table.too_few_cpus() if target.local else ():
            self._say(message, now, done, "warning")
        self.scale(target, now, done)

    def _on_scale(self, event: events.ScaleRequested, now: float, done: Instructions) -> None:
        if self._placement.fix(Workers(event.local, event.remote)):
            self._job.tell("placement", FIXED, now)
        # Before the nodes are known, `fix` has noted the numbers, and the job begins with them.
        if self._worker_table.hosts:
            self.scale(Deployment(event.local, event.remote), now, done)

    def place(self, now: float, done: Instructions) -> None:
        """Have the policy look at the job, and do what it says."""
        epochs = self._job.ledger.shape.epochs_before(self._job.ledger.epoch) + (
            self._job.ledger.queues.share_taken() or 0.0
        )
        step = self._placement.decide(self._worker_table, now, self._job.trainers.progress, epochs)
        deadline = self._placement.deadline_budget
        for message in deadline.take_messages() if deadline is not None else ():
            self._say(message, now, done, "warning")
        if step is None:
            return
        decision, placing = step.decision, self._placement.policy_runner
        if placing is not None and placing.fails_first(decision):
            self._say(f"AutoPlacement: {decision.reason}", now, done, "warning")
        switches = placing is not None and placing.switches_accelerator(decision, self._worker_table)
        if decision.target == self._worker_table.target and not switches:
            return
        self._say(f"{decision.phase}: {step.deployment} -> {decision.target}: {decision.reason}", now, done)
        if switches:
            self._worker_starts.use_accelerator(decision.accelerator, now, done)
        # Before `scale`, which removes what is too many in this way.
        self._placement.fast_removal = decision.removal == "fast"
        if decision.target != self._worker_table.target:
            self.scale(decision.target, now, done)

    def _say(self, message: str, now: float, done: Instructions, level: LogLevel = "info") -> None:
        self._job.tell("placement", message, now)
        done.append(Log(level, message))

    def scale(self, target: Deployment, now: float, done: Instructions) -> None:
        """Want so many workers."""
        self._job.tell("scale", f"{target.local} local and {target.remote} remote workers wanted", now)
        done += self._worker_table.scale(target, now)
        self._worker_starts.drain_excess(now, done)

    def _on_room_requested(self, event: events.RoomRequested, now: float, done: Instructions) -> None:
        """Give up a local worker for a job that has no place, where the user's bounds and the work allow it."""
        wanted, workers = self._worker_table.target, self._job.spec.workers
        # A job's only worker stays: the room would be bought with a job that stands still.
        if not (isinstance(workers, AutoWorkers) and (placing := self._placement.active)) or wanted.workers < 2:
            return
        if wanted.local > workers.min_local:
            fewer = Deployment(wanted.local - 1, wanted.remote)
            self._job.tell("placement", f"{wanted} -> {fewer}: job {event.job} waits for CPUs of this node", now)
            placing.pause_requests("local", fewer.local, now - self._placement.start_time)
            self.scale(fewer, now, done)

    def _on_bid_update(self, event: events.PoolRequestsReceived, now: float, done: Instructions) -> None:
        """Keep to the job's share of nodes that others want as well."""
        self.sharing.forget(event.finished_jobs)
        self.sharing.handle_update(event.pool_requests, dict(event.nodes), dict(event.cpus), now)
        mine = [bid for bid in self.pool_requests() if self._placement.shares_nodes(bid.placement)]
        shares = self.sharing.shares(mine)
        for placement, share in shares.items():
            if share != self.sharing.applied_shares.get(placement):
                bound = "no longer bounded" if share is None else f"at most {share}, as other jobs bid as well"
                self._job.tell("sharing", f"{placement} workers: {bound}", now)
        self.sharing.applied_shares = shares
        fewer = self._placement.restrict(shares, self._worker_table)
        if fewer is not None and fewer != self._worker_table.target:
            message = f"{self._worker_table.target} -> {fewer}: other jobs save more by workers on these nodes"
            self._say(message, now, done)
            self.scale(fewer, now, done)

    def pool_requests(self) -> tuple[PoolBid, ...]:
        """Return what the job bids for nodes that others may want as well."""
        return self._placement.pool_requests(self._worker_table, self.sharing.nodes)

    def begin_with_sample(self, row_s: float | None, now: float, done: Instructions) -> None:
        """Begin with as many local workers as AutoOrder's sample asks for: their CPUs are paid for already."""
        target = self._placement.sampled(row_s, self._job.trainers.progress, self._worker_table)
        # Before the nodes are known nothing is started: `_on_room` begins with this sample then.
        if target is not None and target != self._worker_table.target and self._worker_table.hosts:
            why = (
                "elements are slow to sample"
                if row_s == math.inf
                else f"a row takes a thread {row_s:.3g} s by a sample"
            )
            message = f"begin with {target}: {why}"
            self._job.tell("placement", message, now)
            self.scale(target, now, done)
