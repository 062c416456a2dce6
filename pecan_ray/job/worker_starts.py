"""A job's workers from request to end: what happens to them, and what this means for data, trainers and decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.errors import ClusterError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.events import LossCause
from pecan_ray.job.fatal_elements import hung
from pecan_ray.job.instructions import Instructions, KillWorker, Log, LookForWorkers
from pecan_ray.job.job_requests import JobRequests
from pecan_ray.job.losses import Loss
from pecan_ray.job.next_makers import NextMaker
from pecan_ray.job.preemption import Preemption
from pecan_ray.job.suspicion import CRASHED, SILENT, Suspicion
from pecan_ray.job.trainer_order_state import TrainerOrderState
from pecan_ray.job.worker_table import PendingStart, WorkerPlace, WorkerRecord, silence_of


class WorkerStarts:
    """The part of a job that has workers come and go."""

    def __init__(self, job: JobCore, orders: TrainerOrderState, job_requests: JobRequests) -> None:
        self._job, self._trainer_updates, self._worker_requests = job, orders, job_requests
        self._worker_table, self._ledger, self._placement = job.worker_table, job.ledger, job.placement
        self._draining: dict[str, None] = {}
        self._preemption, self._next_maker = Preemption(job), NextMaker()
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.WorkerPlaced: self._on_placed,
            events.WorkerPending: self._on_placement_pending,
            events.WorkerReady: self._on_ready,
            events.WorkerProgressReported: self._on_progress_reported,
            events.WorkerLost: self._on_lost,
            events.WorkerChecked: self._on_checked,
            events.OrderFailed: self._on_order_failed,
            events.CutRefused: self._on_cut_refused,
            events.NodesLeave: self._on_nodes_leave,
        }

    def drain_excess(self, now: float, done: Instructions) -> None:
        """Drain the workers that are too many, and have splits distributed once as many are there as are wanted."""
        # Again and again: running workers are named only when none is awaited, as may be so after the last ones.
        while surplus := self._worker_table.too_many():
            for worker in surplus:
                self.drain(worker, now, done)
        here = [worker.name for worker in self._worker_table.workers.values() if worker.running and not worker.draining]
        if here and len(here) == self._worker_table.target.workers:
            self._worker_requests.distribute_static(here)

    def drain(self, worker: WorkerRecord, now: float, done: Instructions) -> None:
        """Let a worker go: it takes no more work, and what it has finished is fetched."""
        self._job.tell("drain", f"{worker.name} drains", now)
        ran = worker.running
        done.append(self._worker_table.drain(worker))
        # A worker that never ran has no data, and no trainer knows of it.
        if not ran:
            return
        self._trainer_updates.remove_worker(worker.name)
        self._placement.changed(self._worker_table, now)
        # Decision 45: what guards memory sends SIGTERM first. So what the worker had counts as if it had died with it.
        sigterm, fast = worker.notice is not None and worker.notice.to_process, self._placement.fast_removal
        died = CRASHED if sigterm else None
        self._ledger.lost(worker.name, died=died, drains=not fast)
        self._draining[worker.name] = None
        # fast_removal waits for nothing: what the worker has is treated as that of a lost one.
        if fast:
            self._release(worker.name, now, done)

    def use_accelerator(self, use: bool, now: float, done: Instructions) -> None:
        """Have workers leave images to the trainer's accelerator, or decode: others take the place of all that do not.

        Those that go hand over what they have finished.
        """
        self._worker_table.accelerator = use
        for worker in [one for one in self._worker_table.workers.values() if one.accelerator != use]:
            if not (worker.draining or self._job.over):
                self.drain(worker, now, done)
        if not self._job.over:
            done += self._worker_table.fill(now)

    def finish_draining(self, now: float, done: Instructions) -> None:
        """Release the drained workers whose data has all arrived, and say what went with workers that are gone."""
        # The ledger forgets a drained worker when all ranks have told what they received from it.
        for name in [name for name in self._draining if name not in self._ledger.workers]:
            self._release(name, now, done)
        _tell_dropped(self._job, now, done)

    def _release(self, name: str, now: float, done: Instructions) -> None:
        self._draining.pop(name, None)
        if name in self._worker_table.workers:
            self._worker_table.remove(name)
            self._placement.changed(self._worker_table, now)
            done.append(KillWorker(name))

    # --- one worker ----------------------------------------------------------------------------------------

    def _on_placed(self, event: events.WorkerPlaced, now: float, done: Instructions) -> None:
        worker = self._worker_table.workers.get(event.worker)
        if worker is not None:
            worker.place, worker.pending = WorkerPlace(event.node, event.pid, event.price), PendingStart()
            worker.hearing = worker.hearing.heard(now)
            if self._preemption.leaves_with_node(worker):  # the announcement came before its place was known
                self._replace(now, done)

    def _on_placement_pending(self, event: events.WorkerPending, now: float, done: Instructions) -> None:
        worker = self._worker_table.workers.get(event.worker)
        if worker is None or worker.node or worker.draining or worker.is_starting(event, now):
            return
        other = self._placement.other_side(worker, self._worker_table)
        if other is not None:
            side = "local" if other else "remote"
            self._job.tell("placement", f"no worker runs yet: ask for a {side} one as well", now)
            done.append(self._worker_table.request(other, now))
        if worker.host and worker.reserved and self._worker_table.has_none(worker):
            self._squeeze_in(worker, now, done)

    def _squeeze_in(self, worker: WorkerRecord, now: float, done: Instructions) -> None:
        """Start a local worker without CPUs of its own: a job without any worker blocks whoever waits for it.

        The one that has no place may come yet, on a slow machine: then it is one too many, or the other one is.
        """
        message = (
            f"{worker.name} has no place ({worker.pending.reason}), and the job has no other worker: one is started on "
            "that node that shares the CPUs of others"
        )
        self._job.tell("placement", message, now)
        done += [Log("warning", message), self._worker_table.request(worker.host, now, reserve=False)]

    def _on_ready(self, event: events.WorkerReady, now: float, done: Instructions) -> None:
        worker = self._worker_table.workers.get(event.worker)
        if worker is None or worker.running:
            return
        self._worker_table.note_running(worker, now)
        self._placement.started(worker, now)
        self._ledger.join(worker.name, worker.node)
        self._trainer_updates.add_worker(worker.name)
        self._job.tell("worker", f"{worker.name} runs as process {worker.place.pid}", now)
        self._placement.changed(self._worker_table, now)
        # Running workers that are too many drain once none is awaited, which may be so from now on.
        self.drain_excess(now, done)

    def _on_progress_reported(self, event: events.WorkerProgressReported, now: float, done: Instructions) -> None:
        worker = self._worker_table.workers.get(event.worker)
        if worker is not None:
            share = event.progress.in_line_share
            worker.own_progress, worker.hearing = event.progress, worker.hearing.heard(now, share)
            if event.progress.sigterm_received and self._preemption.drain_terminated(worker, now, done):
                self._replace(now, done)
            if event.progress.fallback_reason:
                self._worker_requests.restore_user_order(event.progress.fallback_reason, now, done)
            spec = self._job.spec
            if (by := hung(event.progress, spec.timeouts.hung_s, spec.shape.branches)) is not None:
                self.lose(event.worker, "hung", by.cause, now, done, by)

    def _on_order_failed(self, event: events.OrderFailed, now: float, done: Instructions) -> None:
        if event.worker in self._worker_table.workers:
            self._worker_requests.restore_user_order(event.message, now, done)
            self.lose(event.worker, "order", "it is replaced by one that runs your order of operators", now, done)

    def _on_cut_refused(self, event: events.CutRefused, now: float, done: Instructions) -> None:
        worker = self._worker_table.workers.get(event.worker)
        if worker is None:
            return
        if not worker.accelerator:
            self._worker_table.losses.cut_refused = True
        elif self._worker_table.accelerator:  # those that go may have such images as well, which is no news
            self._placement.accelerator_refused(now)
            self._worker_table.accelerator = False
        self._job.tell("transport", event.message, now)
        self.lose(event.worker, "order", "it is replaced by one that runs all operators itself", now, done)
        if worker.accelerator:
            self.use_accelerator(False, now, done)

    def _on_lost(self, event: events.WorkerLost, now: float, done: Instructions) -> None:
        # A stream often breaks before the system tells why the process ended. Then the reason comes for a lost worker.
        if (message := self._worker_table.losses.note_exit(event)) and event.worker not in self._worker_table.workers:
            self._job.tell("lost", message, now)
            done.append(Log("warning", message))
        if fatal := self._worker_table.losses.explain(event):
            self._job.fail(ClusterError(f"job {self._job.spec.name}: {fatal}."), now, done)
        self.lose(event.worker, event.cause, event.why, now, done)

    def lose(
        self, name: str, cause: LossCause, why: str, now: float, done: Instructions, by: Suspicion = CRASHED
    ) -> None:
        """Take a worker's data back, fence it, and request another one in its place."""
        worker = self._worker_table.workers.get(name)
        if worker is None:
            return
        # Decision 22: whoever is declared lost is killed, so it takes nobody's CPU, and nothing that it says is heard.
        done.append(KillWorker(name))
        self._worker_table.remove(name)
        self._trainer_updates.remove_worker(name)
        # Asked before the ledger takes the data back, because that may end the job. This loss is told all the same.
        needed = not (worker.draining or self._job.over)
        apart = (held := self._ledger.workers.get(name)) is not None and held.is_suspicious
        loss = Loss(name, worker.node, cause, why, worker.requested, now)
        blamed = self._worker_table.losses.is_work_at_fault(
            loss, self._ledger.shape
        ) and not self._preemption.was_preempted(worker)
        self._ledger.lost(name, died=by if blamed else None)
        # Decision 22: who is lost is fenced off, so what it has asked is answered by nobody.
        self._worker_requests.forget(name)
        self._placement.changed(self._worker_table, now)
        if not needed:
            self._draining.pop(name, None)
            return
        fatal = self._worker_table.losses.add(loss, expected=apart)
        message = f"{name} is lost: {why}; what it held is {_outcome_of_held_leases(self._job)}"
        if apart:
            message += ", in smaller pieces: other workers have died with it"
        self._job.tell("lost", message, now)
        done.append(Log("warning", message))
        if self._job.over:
            return  # it was the last one that had something: what it held is missing
        if fatal:
            self._job.fail(ClusterError(f"job {self._job.spec.name}: {fatal}."), now, done)
            return
        if self._worker_table.needs_worker(worker.host) and self._worker_table.losses.may_start(now):
            done.append(self._worker_table.request(worker.host, now))
        self.drain_excess(now, done)

    def _on_nodes_leave(self, event: events.NodesLeave, now: float, done: Instructions) -> None:
        self._preemption.notify_of(event, now, done)
        self._replace(now, done)

    def _replace(self, now: float, done: Instructions) -> None:
        """Request others in the places of those that will be ended, which drain when they have no more time."""
        if not self._job.over:
            done += self._worker_table.fill(now)
            self.drain_excess(now, done)
            self._deliver(now, done)

    def _deliver(self, now: float, done: Instructions) -> None:
        for worker in self._preemption.due(now):
            self.drain(worker, now, done)

    def look(self, now: float, done: Instructions) -> None:
        """Act on time that has passed: on ends that have come near, and on workers that were not heard."""
        self._deliver(now, done)
        silent_s = self._job.spec.timeouts.lost_s
        for worker in self._worker_table.timed_out(now, silent_s):
            cause, why = silence_of(self._worker_table.workers[worker], now)
            self.lose(worker, cause, why, now, done, SILENT)
        if self._worker_table.losses.pause_ended(now) and not self._job.over:
            done += self._worker_table.fill(now)
        if quiet := self._worker_table.to_look_for(now, silent_s):
            done.append(LookForWorkers(quiet))
        self._make_way(now, done)

    def _make_way(self, now: float, done: Instructions) -> None:
        """Let a worker go where all of them wait for rows that none of them makes, and have another one come."""
        coming = not all(one.running or one.draining for one in self._worker_table.workers.values())
        if name := self._next_maker.makes_way(self._ledger, now, coming=coming):
            message = (
                f"all wait for rows that nobody makes: {name}, which makes later ones, makes way for another worker"
            )
            self._job.tell("order", message, now)
            self.drain(self._worker_table.workers[name], now, done)
            done += self._worker_table.fill(now)

    def _on_checked(self, event: events.WorkerChecked, now: float, done: Instructions) -> None:
        worker = self._worker_table.workers.get(event.worker)
        # What was found comes late: by then it may have spoken, and stood in line before that.
        if worker is not None and worker.hearing.was_asked:
            worker.hearing = worker.hearing.starved(event.starved_s, event.of_s)


def _tell_dropped(job: JobCore, now: float, done: Instructions) -> None:
    """Say what went with workers that are gone, where data is visited at most once."""
    for drop in job.ledger.dropped.take_pending_drops():
        job.tell("dropped", str(drop), now)
        done.append(Log("warning", str(drop)))


def _outcome_of_held_leases(job: JobCore) -> str:
    return "dropped" if job.ledger.shape.visitation == "at_most_once" else "given out again"
