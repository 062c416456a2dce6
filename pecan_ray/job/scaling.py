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
from pecan_ray.job.staffing import Staffing
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.plan.windows import Deployment

FIXED = "AutoPlacement decides no more: the numbers of workers were fixed by scale()"


class Scaling:
    """The part of a job that decides on numbers of workers; who comes and goes is `Staffing`'s."""

    def __init__(self, job: JobCore, staffing: Staffing) -> None:
        self._job, self._staffing = job, staffing
        self._fleet, self._placement = job.fleet, job.placement
        self.sharing = Sharing()
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.RoomFound: self._on_room,
            events.ScaleAsked: self._on_scale,
            events.RoomAsked: self._on_room_asked,
            events.PoolRequestsReceived: self._on_bid_update,
        }

    def _on_room(self, event: events.RoomFound, now: float, done: Instructions) -> None:
        if self._fleet.hosts:
            return  # a controller that was started again has asked anew, and the job has its workers
        self._fleet.hosts = dict(event.hosts)
        try:
            begun = self._placement.begin(self._fleet.hosts, event.remote_cpus)
            # AutoOrder's sample may have ended before the nodes were looked at.
            target = self._placement.sampled(self._placement.row_s, self._job.trainers.progress, self._fleet) or begun
        except PlanError as error:  # the bounds leave no worker on these nodes
            self._job.fail(error, now, done)
            return
        if self._job.spec.shape.one_at_a_time and isinstance(self._job.spec.workers, AutoWorkers):
            said = "one worker at a time can run this pipeline: AutoPlacement has nothing to decide"
            self._job.tell("placement", said, now)
        for said in self._fleet.too_few_cpus() if target.local else ():
            self._say(said, now, done, "warning")
        self.scale(target, now, done)

    def _on_scale(self, event: events.ScaleAsked, now: float, done: Instructions) -> None:
        if self._placement.fix(Workers(event.local, event.remote)):
            self._job.tell("placement", FIXED, now)
        # Before the nodes are known, `fix` has noted the numbers, and the job begins with them.
        if self._fleet.hosts:
            self.scale(Deployment(event.local, event.remote), now, done)

    def place(self, now: float, done: Instructions) -> None:
        """Have the policy look at the job, and do what it says."""
        epochs = self._job.ledger.shape.epochs_before(self._job.ledger.epoch) + (
            self._job.ledger.queues.share_taken() or 0.0
        )
        step = self._placement.decide(self._fleet, now, self._job.trainers.progress, epochs)
        for said in self._placement.take_said():
            self._say(said, now, done, "warning")
        if step is None:
            return
        decision, placing = step.decision, self._placement.placing
        if decision.phase == "failed" and placing is not None and placing.failures == 1:
            self._say(f"AutoPlacement: {decision.reason}", now, done, "warning")
        if decision.target == self._fleet.wanted:
            return
        self._say(f"{decision.phase}: {step.deployment} -> {decision.target}: {decision.reason}", now, done)
        self._placement.fast_removal = decision.removal == "fast"
        self.scale(decision.target, now, done)

    def _say(self, said: str, now: float, done: Instructions, level: LogLevel = "info") -> None:
        self._job.tell("placement", said, now)
        done.append(Log(level, said))

    def scale(self, target: Deployment, now: float, done: Instructions) -> None:
        """Want so many workers."""
        self._job.tell("scale", f"{target.local} local and {target.remote} remote workers wanted", now)
        done += self._fleet.scale(target, now)
        self._staffing.drain_excess(now, done)

    def _on_room_asked(self, event: events.RoomAsked, now: float, done: Instructions) -> None:
        """Give up a local worker for a job that has no place, where the user's bounds and the work allow it."""
        wanted, workers = self._fleet.wanted, self._job.spec.workers
        if not (isinstance(workers, AutoWorkers) and self._placement.decides) or wanted.workers < 2:
            return
        if wanted.local > workers.min_local:
            fewer = Deployment(wanted.local - 1, wanted.remote)
            self._job.tell("placement", f"{wanted} -> {fewer}: job {event.job} waits for CPUs of this node", now)
            self._placement.give_up_local(fewer.local, now)
            self.scale(fewer, now, done)

    def _on_bid_update(self, event: events.PoolRequestsReceived, now: float, done: Instructions) -> None:
        """Keep to the job's share of nodes that others want as well."""
        self.sharing.forget(event.gone)
        self.sharing.handle_update(event.pool_requests, dict(event.nodes), dict(event.cpus), now)
        mine = [bid for bid in self.pool_requests() if self._placement.shares_nodes(bid.placement)]
        shares = self.sharing.shares(mine)
        for placement, share in shares.items():
            if share != self.sharing.applied_shares.get(placement):
                bound = "no longer bounded" if share is None else f"at most {share}, as other jobs bid as well"
                self._job.tell("sharing", f"{placement} workers: {bound}", now)
        self.sharing.applied_shares = shares
        fewer = self._placement.restrict(shares, self._fleet)
        if fewer is not None and fewer != self._fleet.wanted:
            said = f"{self._fleet.wanted} -> {fewer}: other jobs save more by workers on these nodes"
            self._say(said, now, done)
            self.scale(fewer, now, done)

    def pool_requests(self) -> tuple[PoolBid, ...]:
        """Return what the job bids for nodes that others may want as well."""
        return self._placement.pool_requests(self._fleet, self.sharing.nodes)

    def begin_with_sample(self, row_s: float | None, now: float, done: Instructions) -> None:
        """Begin with as many local workers as AutoOrder's sample asks for: their CPUs are paid for already."""
        target = self._placement.sampled(row_s, self._job.trainers.progress, self._fleet)
        if target is not None and target != self._fleet.wanted and self._fleet.hosts:
            why = (
                "elements are slow to sample"
                if row_s == math.inf
                else f"a row takes a thread {row_s:.3g} s by a sample"
            )
            said = f"begin with {target}: {why}"
            self._job.tell("placement", said, now)
            self.scale(target, now, done)
