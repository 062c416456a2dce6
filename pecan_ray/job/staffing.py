"""A job's workers from request to end: what happens to them, and what this means for data, trainers and decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.errors import ClusterError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.departures import Departures
from pecan_ray.job.events import LossCause
from pecan_ray.job.fatal_elements import hung
from pecan_ray.job.fleet import FleetWorker
from pecan_ray.job.instructions import Instructions, KillWorker, Log
from pecan_ray.job.job_requests import JobRequests
from pecan_ray.job.losses import Loss
from pecan_ray.job.suspicion import CRASHED, SILENT, Suspicion
from pecan_ray.job.trainer_order_state import TrainerOrderState


class Staffing:
    """The part of a job that has workers come and go."""

    def __init__(self, job: JobCore, orders: TrainerOrderState, job_requests: JobRequests) -> None:
        self._job, self._orders, self._worker_requests = job, orders, job_requests
        self._fleet, self._ledger, self._placement = job.fleet, job.ledger, job.placement
        self._draining: dict[str, None] = {}
        self._departures = Departures(job)
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.WorkerPlaced: self._on_placed,
            events.WorkerPending: self._on_placement_pending,
            events.WorkerReady: self._on_ready,
            events.WorkerTold: self._on_told,
            events.WorkerLost: self._on_lost,
            events.OrderFailed: self._on_order_failed,
            events.NodesLeave: self._on_nodes_leave,
        }

    def drain_excess(self, now: float, done: Instructions) -> None:
        """Drain the workers that are too many, and have splits distributed once as many are there as are wanted."""
        while surplus := self._fleet.too_many():
            for worker in surplus:
                self.drain(worker, now, done)
        here = [worker.name for worker in self._fleet.workers.values() if worker.running and not worker.draining]
        if here and len(here) == self._fleet.wanted.workers:
            self._worker_requests.distribute_static(here)

    def drain(self, worker: FleetWorker, now: float, done: Instructions) -> None:
        """Let a worker go: it takes no more work, and what it has finished is fetched."""
        self._job.tell("drain", f"{worker.name} drains", now)
        ran = worker.running
        done.append(self._fleet.drain(worker))
        if not ran:
            return
        self._orders.remove_worker(worker.name)
        self._placement.changed(self._fleet, now)
        # Decision 45: what guards memory sends SIGTERM first. So what the worker had counts as if it had died with it.
        died, fast = CRASHED if worker.told_to_end else None, self._placement.fast_removal
        self._ledger.lost(worker.name, died=died, drains=not fast)
        self._draining[worker.name] = None
        # fast_removal waits for nothing: what the worker has is treated as that of a lost one.
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
            worker.price = event.price
            if self._departures.leaves_with_node(worker):  # the announcement came before its place was known
                self._replace(now, done)

    def _on_placement_pending(self, event: events.WorkerPending, now: float, done: Instructions) -> None:
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
        # Running workers that are too many drain once none is awaited, which may be so from now on.
        self.drain_excess(now, done)

    def _on_told(self, event: events.WorkerTold, now: float, done: Instructions) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is not None:
            worker.told, worker.heard = event.progress, now
            if event.progress.told_to_end and self._departures.told_to_end(worker, now, done):
                self._replace(now, done)
            if event.progress.fell_back:
                self._worker_requests.restore_user_order(event.progress.fell_back, now, done)
            spec = self._job.spec
            if (by := hung(event.progress, spec.hung_after_s, spec.shape.branches)) is not None:
                self.lose(event.worker, "hung", by.said, now, done, by)

    def _on_order_failed(self, event: events.OrderFailed, now: float, done: Instructions) -> None:
        if event.worker in self._fleet.workers:
            self._worker_requests.restore_user_order(event.said, now, done)
            self.lose(event.worker, "order", "it is replaced by one that runs your order of operators", now, done)

    def _on_lost(self, event: events.WorkerLost, now: float, done: Instructions) -> None:
        # A stream often breaks before the system tells why the process ended. Then the reason comes for a lost worker.
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
        # Decision 22: whoever is declared lost is killed, so it takes nobody's CPU, and nothing that it says is heard.
        done.append(KillWorker(name))
        self._fleet.gone(name)
        self._orders.remove_worker(name)
        # Asked before the ledger takes the data back, because that may end the job. This loss is told all the same.
        needed = not (worker.draining or self._job.over)
        apart = (held := self._ledger.workers.get(name)) is not None and held.runs_apart
        loss = Loss(name, worker.node, cause, why, worker.requested, now)
        blamed = self._fleet.losses.is_work_at_fault(loss, self._ledger.shape) and not self._departures.was_preempted(
            worker
        )
        self._ledger.lost(name, died=by if blamed else None)
        self._worker_requests.forget(name)
        self._placement.changed(self._fleet, now)
        if not needed:
            self._draining.pop(name, None)
            return
        fatal = self._fleet.losses.add(loss, expected=apart)
        said = f"{name} is lost: {why}; what it held is {_outcome_of_held_leases(self._job)}"
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
        self.drain_excess(now, done)

    def _on_nodes_leave(self, event: events.NodesLeave, now: float, done: Instructions) -> None:
        self._departures.notify_of(event, now, done)
        self._replace(now, done)

    def _replace(self, now: float, done: Instructions) -> None:
        """Request others in the places of those that will be ended, which drain when they have no more time."""
        if not self._job.over:
            done += self._fleet.fill(now)
            self.drain_excess(now, done)
            self._hand_over(now, done)

    def _hand_over(self, now: float, done: Instructions) -> None:
        for worker in self._departures.due(now):
            self.drain(worker, now, done)

    def look(self, now: float, done: Instructions) -> None:
        """Act on time that has passed: on ends that have come near, and on workers that were not heard."""
        self._hand_over(now, done)
        silent_s = self._job.spec.silent_after_s
        for worker in self._fleet.silent(now, silent_s):
            self.lose(worker, "stream", f"it has said nothing for {silent_s:.0f} s", now, done, SILENT)


def _tell_dropped(job: JobCore, now: float, done: Instructions) -> None:
    """Say what went with workers that are gone, where data is visited at most once."""
    for drop in job.ledger.dropped.take_pending_drops():
        job.tell("dropped", str(drop), now)
        done.append(Log("warning", str(drop)))


def _outcome_of_held_leases(job: JobCore) -> str:
    return "dropped" if job.ledger.shape.visitation == "at_most_once" else "given out again"
