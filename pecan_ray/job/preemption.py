"""Workers that will be ended from outside, as was announced: others come in their places, and they drain in time.

A spot machine that the cloud takes back, a node that an operator drains, a process that is sent SIGTERM: each tells
some time before.  Whoever leaves works on until another worker runs in its place, but no longer than it can still hand
over what it has.
"""

from __future__ import annotations

from pecan_ray.errors import ClusterError
from pecan_ray.job import events
from pecan_ray.job.core import JobCore
from pecan_ray.job.heartbeat import NOTICE_S
from pecan_ray.job.instructions import Instructions, Log
from pecan_ray.job.worker_table import EndNotice, WorkerRecord

HAND_OVER_S = 15.0
"""Seconds before its end from which on a worker takes no more work, also if no other one has come."""


# Why they do not drain at once: docs/decisions/faults-and-silence.md#45-announced-ends
class Preemption:
    """What was announced of a job's workers: who leaves, and when."""

    def __init__(self, job: JobCore) -> None:
        self._job, self._worker_table = job, job.worker_table

    def notify_of(self, event: events.NodesLeave, now: float, done: Instructions) -> None:
        """Note that nodes are taken away, and let their workers leave with them."""
        for node, seconds in event.nodes:
            # Ray is asked once a second, and tells of the same nodes each time: the first deadline holds.
            if node not in self._worker_table.draining_nodes:
                self._worker_table.draining_nodes[node] = now + (NOTICE_S if seconds is None else seconds)
                self._tell_of(node, seconds, now, done)
        for worker in self._worker_table.workers.values():
            self.leaves_with_node(worker)

    def _tell_of(self, node: str, seconds: float | None, now: float, done: Instructions) -> None:
        """Say what goes, if it concerns the job: nobody can take the place of a trainer."""
        when = "soon" if seconds is None else f"in {seconds:.0f} s"
        trainers = self._job.trainers
        ranks = [rank for rank in sorted(trainers.present) if trainers.ranks[rank].registration.node == node]
        if ranks:
            message = (
                f"node {node} is taken away {when}, and with it rank {', '.join(map(str, ranks))}: the job ends then. "
                "Save the model with state_dict() now, to go on elsewhere"
            )
        elif any(worker.node == node for worker in self._worker_table.workers.values()):
            message = f"node {node} is taken away {when}: its workers are replaced, and hand over what they have"
        else:
            return
        self._job.tell("leaving", message, now)
        done.append(Log("warning", f"job {self._job.spec.name}: {message}"))

    def leaves_with_node(self, worker: WorkerRecord) -> bool:
        """Let a worker leave with its node, and tell whether that is new.

        One of a trainer's node works for that as long as it is there.
        """
        leaves = (
            worker.node in self._worker_table.draining_nodes and worker.notice is None and worker.host != worker.node
        )
        if leaves:
            worker.notice = EndNotice(self._worker_table.draining_nodes[worker.node])
        return leaves

    def drain_terminated(self, worker: WorkerRecord, now: float, done: Instructions) -> bool:
        """Let a worker leave whose process was asked to end, and tell whether another one is to come in its place.

        It may be asked because an element needs too much memory: then the next worker would end as it does.
        """
        if worker.notice is not None or worker.draining:
            return False
        # Decision 45: the kernel's alarm clock ends it so long after SIGTERM, whatever it does.
        worker.notice = EndNotice(now + NOTICE_S, to_process=True)
        message = f"{worker.name} was asked to end (SIGTERM): it is replaced, and hands over what it has"
        self._job.tell("leaving", message, now)
        done.append(Log("warning", message))
        # Decision 45: SIGTERM may mean the work. A worker that hands over in time is no loss, and would never count.
        if fatal_reason := self._worker_table.losses.note_sigterm(worker.name, worker.node, worker.requested, now):
            self._job.fail(ClusterError(f"job {self._job.spec.name}: {fatal_reason}."), now, done)
            return False
        return True

    def due(self, now: float) -> list[WorkerRecord]:
        """Return the workers that have no more time, and must hand over what they have."""
        workers = [worker for worker in self._worker_table.workers.values() if not worker.draining]
        return [one for one in workers if one.notice is not None and one.notice.at - now <= HAND_OVER_S]

    def was_preempted(self, worker: WorkerRecord) -> bool:
        """Tell whether a worker is gone since its node was taken away, and not because of what it did."""
        return worker.node in self._worker_table.draining_nodes
