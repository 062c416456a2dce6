"""What becomes of a job's workers when its controller's process is lost: they work on, and the next one adopts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.instructions import DrainWorker, EndUnknownWorkers, Instructions, ReattachWorker, UseUsersOrder
from pecan_ray.job.job_requests import JobRequests
from pecan_ray.job.remote_io import RemoteIoShares


# Why workers live on: docs/decisions/restart-and-journal.md#41-workers-outlive-their-controller
class WorkerRecovery:
    """The part of a job that takes workers over which another process has started."""

    def __init__(self, job: JobCore, job_requests: JobRequests, remote_io: RemoteIoShares) -> None:
        self._job, self._worker_requests, self._remote_io = job, job_requests, remote_io
        self.generation = 0
        """How many processes the controller had before this one: what an earlier one asks for is refused."""
        self.handlers: dict[type, Callable[[Any, float, Instructions], None]] = {
            events.WorkerRestored: self._on_restored,
        }

    def begin(self, done: Instructions) -> None:
        """Take over what the process before this one had: a worker is taken to live until it is known that it does not.

        That process may have been lost between the entry in its journal and the deed.  So whatever it may not have
        come to is wanted again: a worker that is not known to run is started, unless it was; and whom the job does
        not know any more is ended.
        """
        self.generation += 1
        worker_table, reverted = self._job.worker_table, bool(self._worker_requests.fallback_reason)
        for worker in worker_table.workers.values():
            if worker.running:
                done.append(ReattachWorker(worker.name, worker.placement, worker.node, worker.place.pid))
            else:
                done.append(worker_table.start(worker))
            if worker.draining:
                done.append(DrainWorker(worker.name))
            if reverted:
                done.append(UseUsersOrder(worker.name))
        if self._job.ledger.left.count:
            # Workers may not have heard that epochs were left: the order may have been lost with the process.
            done += worker_table.leave_epochs(before=self._job.ledger.epoch)
        # Behind the others: what was neither started nor adopted by then is ended.
        done.append(EndUnknownWorkers())
        self._remote_io.resend()

    def _on_restored(self, event: events.WorkerRestored, now: float, done: Instructions) -> None:
        worker = self._job.worker_table.workers.get(event.worker)
        if worker is not None:
            worker.hearing = worker.hearing.heard(now)
            self._job.tell("adopted", f"{worker.name} goes on as process {worker.place.pid}", now)
