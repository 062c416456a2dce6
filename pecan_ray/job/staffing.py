"""A job's workers from request to end: what happens to them, and what this means for data, trainers and decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pecan_ray.errors import ClusterError, PlanError
from pecan_ray.job import events
from pecan_ray.job.departures import Departures
from pecan_ray.job.events import LossCause
from pecan_ray.job.fleet import FleetWorker
from pecan_ray.job.instructions import Instructions, KillWorker, Log
from pecan_ray.job.losses import Loss
from pecan_ray.job.messages import LogLevel
from pecan_ray.job.order_book import OrderBook
from pecan_ray.job.questions import Questions
from pecan_ray.job.sharing import PoolBid, Sharing
from pecan_ray.job.suspects import hung
from pecan_ray.job.suspicion import CRASHED, SILENT, Suspicion
from pecan_ray.options import AutoWorkers, Workers
from pecan_ray.plan.windows import Deployment

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState

FIXED = "AutoPlacement decides no more: the numbers of workers were fixed by scale()"


class Staffing:
    """The part of a job that has workers come and go."""

    def __init__(self, job: JobState, orders: OrderBook, questions: Questions) -> None:
        self._job, self._orders, self._questions = job, orders, questions
        self._fleet, self._ledger, self._placement = job.fleet, job.ledger, job.placement
        self._draining: dict[str, None] = {}
        self.sharing, self.departures = Sharing(), Departures(job, self)
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.RoomFound: self._on_room,
            events.WorkerPlaced: self._on_placed,
            events.WorkerUnplaced: self._on_unplaced,
            events.WorkerReady: self._on_ready,
            events.WorkerTold: self._on_told,
            events.WorkerLost: self._on_lost,
            events.OrderFailed: self._on_order_failed,
            events.ScaleAsked: self._on_scale,
            events.RoomAsked: self._on_room_asked,
            events.BidsHeard: self._on_bids,
            **self.departures.handlers,
        }

    # --- numbers -------------------------------------------------------------------------------------------

    def _on_room(self, event: events.RoomFound, now: float, done: Instructions) -> None:
        if self._fleet.hosts:
            return  # a controller that was started again has asked anew, and the job has its workers
        self._fleet.hosts = dict(event.hosts)
        try:
            begun = self._placement.begin(self._fleet.hosts, event.remote_cpus)
            target = self._placement.sampled(self._placement.row_s, self._job.trainers.progress, self._fleet) or begun
        except PlanError as error:  # the bounds leave no worker on these nodes
            self._job.fail(error, now, done)
            return
        if self._job.spec.shape.one_at_a_time and isinstance(self._job.spec.workers, AutoWorkers):
            said = "one worker at a time can run this pipeline: AutoPlacement has nothing to decide"
            self._job.tell("placement", said, now)
        for said in self._fleet.cramped() if target.local else ():
            self._say(said, now, done, "warning")
        self.scale(target, now, done)

    def _on_scale(self, event: events.ScaleAsked, now: float, done: Instructions) -> None:
        if self._placement.fix(Workers(event.local, event.remote)):
            self._job.tell("placement", FIXED, now)
        if self._fleet.hosts:
            self.scale(Deployment(event.local, event.remote), now, done)

    def place(self, now: float, done: Instructions) -> None:
        """Have the policy look at the job, and do what it says."""
        epochs = self._ledger.shape.epochs_before(self._ledger.epoch) + (self._ledger.queues.share_taken() or 0.0)
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
        self.shed(now, done)

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

    def _on_bids(self, event: events.BidsHeard, now: float, done: Instructions) -> None:
        """Keep to the job's share of nodes that others want as well."""
        self.sharing.forget(event.gone)
        self.sharing.hear(event.bids, dict(event.nodes), dict(event.cpus), now)
        mine = [bid for bid in self.bids() if self._placement.shares_nodes(bid.placement)]
        shares = self.sharing.shares(mine)
        for placement, share in shares.items():
            if share != self.sharing.obeyed.get(placement):
                bound = "no longer bounded" if share is None else f"at most {share}, as other jobs bid as well"
                self._job.tell("sharing", f"{placement} workers: {bound}", now)
        self.sharing.obeyed = shares
        fewer = self._placement.restrict(shares, self._fleet)
        if fewer is not None and fewer != self._fleet.wanted:
            said = f"{self._fleet.wanted} -> {fewer}: other jobs save more by workers on these nodes"
            self._say(said, now, done)
            self.scale(fewer, now, done)

    def bids(self) -> tuple[PoolBid, ...]:
        """Return what the job bids for nodes that others may want as well."""
        return self._placement.bids(self._fleet, self.sharing.nodes)

    def shed(self, now: float, done: Instructions) -> None:
        """Drain the workers that are too many, and have splits distributed once as many are there as are wanted."""
        while surplus := self._fleet.too_many():
            for worker in surplus:
                self.drain(worker, now, done)
        here = [worker.name for worker in self._fleet.workers.values() if worker.running and not worker.draining]
        if here and len(here) == self._fleet.wanted.workers:
            self._questions.distribute_static(here)

    def drain(self, worker: FleetWorker, now: float, done: Instructions) -> None:
        """Let a worker go: it takes no more work, and what it has finished is fetched."""
        self._job.tell("drain", f"{worker.name} drains", now)
        ran = worker.running
        done.append(self._fleet.drain(worker))
        if not ran:
            return
        self._orders.remove_worker(worker.name)
        self._placement.changed(self._fleet, now)
        died, fast = CRASHED if worker.told_to_end else None, self._placement.fast_removal
        self._ledger.lost(worker.name, died=died, drains=not fast)
        self._draining[worker.name] = None
        if fast:
            self._release(worker.name, now, done)

    def finish_departures(self, now: float, done: Instructions) -> None:
        """Release the drained workers whose data has all arrived, and say what went with workers that are gone."""
        for name in [name for name in self._draining if name not in self._ledger.workers]:
            self._release(name, now, done)
        _tell_dropped(self._job, now, done)

    def _release(self, name: str, now: float, done: Instructions) -> None:
        self._draining.pop(name, None)
        if name in self._fleet.workers:
            self._fleet.gone(name)
            self._placement.changed(self._fleet, now)
            done.append(KillWorker(name))

    # --- one worker ----------------------------------------------------------------------------------------

    def _on_placed(self, event: events.WorkerPlaced, now: float, done: Instructions) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is not None:
            worker.node, worker.pid, worker.unplaced, worker.heard = event.node, event.pid, "", now
            self.departures.placed(worker, now, done)

    def _on_unplaced(self, event: events.WorkerUnplaced, now: float, done: Instructions) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is None or worker.node or worker.draining or worker.is_starting(event, now):
            return
        other = self._placement.other_side(worker, self._fleet)
        if other is not None:
            side = "local" if other else "remote"
            self._job.tell("placement", f"no worker runs yet: ask for a {side} one as well", now)
            done.append(self._fleet.request(other, now))
        if worker.host and worker.reserved and self._fleet.has_none(worker):
            self._squeeze_in(worker, now, done)

    def _squeeze_in(self, worker: FleetWorker, now: float, done: Instructions) -> None:
        """Start a local worker without CPUs of its own: a job without any worker blocks whoever waits for it.

        The one that has no place may come yet, on a slow machine: then it is one too many, or the other one is.
        """
        said = (
            f"{worker.name} has no place ({worker.unplaced}), and the job has no other worker: one is started on that "
            "node that shares the CPUs of others"
        )
        self._job.tell("placement", said, now)
        done += [Log("warning", said), self._fleet.request(worker.host, now, reserve=False)]

    def _on_ready(self, event: events.WorkerReady, now: float, done: Instructions) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is None or worker.running:
            return
        self._fleet.came(worker, now)
        self._placement.started(worker, now)
        self._ledger.join(worker.name)
        self._orders.add_worker(worker.name)
        self._job.tell("worker", f"{worker.name} runs as process {worker.pid}", now)
        self._placement.changed(self._fleet, now)
        self.shed(now, done)

    def _on_told(self, event: events.WorkerTold, now: float, done: Instructions) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is not None:
            worker.told, worker.heard = event.progress, now
            if event.progress.told_to_end:
                self.departures.told_to_end(worker, now, done)
            if event.progress.fell_back:
                self._questions.revert(event.progress.fell_back, now, done)
            if (by := hung(event.progress, self._job.spec.hung_after_s)) is not None:
                self.lose(event.worker, "hung", by.said, now, done, by)

    def _on_order_failed(self, event: events.OrderFailed, now: float, done: Instructions) -> None:
        if event.worker in self._fleet.workers:
            self._questions.revert(event.said, now, done)
            self.lose(event.worker, "order", "it is replaced by one that runs your order of operators", now, done)

    def _on_lost(self, event: events.WorkerLost, now: float, done: Instructions) -> None:
        if (said := self._fleet.losses.heard(event)) and event.worker not in self._fleet.workers:
            self._job.tell("lost", said, now)
            done.append(Log("warning", said))
        self.lose(event.worker, event.cause, event.why, now, done)

    def lose(
        self, name: str, cause: LossCause, why: str, now: float, done: Instructions, by: Suspicion = CRASHED
    ) -> None:
        """Take a worker's data back, fence it, and request another one in its place."""
        worker = self._fleet.workers.get(name)
        if worker is None:
            return
        done.append(KillWorker(name))
        self._fleet.gone(name)
        self._orders.remove_worker(name)
        needed = not (worker.draining or self._job.over)
        apart = (held := self._ledger.workers.get(name)) is not None and held.runs_apart
        loss = Loss(name, worker.node, cause, why, worker.requested, now)
        blamed = self._fleet.losses.blames_work(loss, self._ledger.shape) and not self.departures.excuses(worker)
        self._ledger.lost(name, died=by if blamed else None)
        self._questions.forget(name)
        self._placement.changed(self._fleet, now)
        if not needed:
            self._draining.pop(name, None)
            return
        fatal = self._fleet.losses.add(loss, expected=apart)
        said = f"{name} is lost: {why}; what it held is {_fate_of_what_it_held(self._job)}"
        if apart:
            said += ", in smaller pieces: other workers have died with it"
        self._job.tell("lost", said, now)
        done.append(Log("warning", said))
        if self._job.over:
            return  # it was the last one that had something: what it held is missing
        if fatal:
            self._job.fail(ClusterError(f"job {self._job.spec.name}: {fatal}."), now, done)
            return
        if self._fleet.lacks(worker.host):
            done.append(self._fleet.request(worker.host, now))
        self.shed(now, done)

    def look(self, now: float, done: Instructions) -> None:
        """Act on time that has passed: on ends that have come near, and on workers that were not heard."""
        self.departures.hand_over(now, done)
        silent_s = self._job.spec.silent_after_s
        for worker in self._fleet.silent(now, silent_s):
            self.lose(worker, "stream", f"it has said nothing for {silent_s:.0f} s", now, done, SILENT)


def _tell_dropped(job: JobState, now: float, done: Instructions) -> None:
    """Say what went with workers that are gone, where data is visited at most once."""
    for drop in job.ledger.dropped.take_untold():
        job.tell("dropped", str(drop), now)
        done.append(Log("warning", str(drop)))


def _fate_of_what_it_held(job: JobState) -> str:
    return "dropped" if job.ledger.shape.visitation == "at_most_once" else "given out again"
