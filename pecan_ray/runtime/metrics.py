"""Metrics of a job through Ray's own metrics: they appear at Ray's Prometheus endpoint as `ray_pecan_*`."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from pecan_ray.job.placing import PlacementStep
from pecan_ray.plan.windows import Deployment
from pecan_ray.runtime.messages import ClientReport, WorkerStats


class JobMetrics:
    """Counters and gauges of one job, tagged with job, worker or rank, and placement."""

    def __init__(self, job: str) -> None:
        self._batches = Counter("pecan_batches", "Batches received by trainers.", ("job", "rank"))
        self._elements = Counter("pecan_elements", "Elements received by trainers.", ("job", "rank"))
        self._bytes = Counter("pecan_bytes", "Bytes received by trainers.", ("job", "rank"))
        self._bad = Counter("pecan_bad_elements", "Elements left out because they failed.", ("job", "rank"))
        self._wait = Gauge("pecan_wait_share", "Share of time that a trainer waited for input.", ("job", "rank"))
        self._queue = Gauge("pecan_queue_batches", "Batches waiting at a trainer.", ("job", "rank"))
        self._worker = Gauge(
            "pecan_worker_elements", "Elements that a worker has produced.", ("job", "worker", "placement")
        )
        self._threads = Gauge("pecan_worker_threads", "Threads of a worker.", ("job", "worker", "placement"))
        self._running = Gauge("pecan_workers", "Workers that run.", ("job", "placement"))
        self._wanted = Gauge("pecan_workers_wanted", "Workers that are aimed at.", ("job", "placement"))
        self._batch_time = Gauge("pecan_batch_seconds", "Mean time of a trainer's step in the last window.", ("job",))
        self._decisions = Counter("pecan_decisions", "Decisions of the placement policy.", ("job", "phase"))
        self._job = job

    def synced(self, report: ClientReport) -> None:
        """Take over a client's report."""
        tags = {"job": self._job, "rank": str(report.rank)}
        amounts = (
            (self._batches, sum(ack.batches for ack in report.acks)),
            (self._elements, sum(ack.rows for ack in report.acks)),
            (self._bytes, sum(ack.bytes for ack in report.acks)),
            (self._bad, len(report.bad)),
        )
        for counter, amount in amounts:
            if amount:
                counter.inc(amount, tags)
        if report.elapsed_s > 0:
            self._wait.set(report.waited_s / report.elapsed_s, tags)
        self._queue.set(report.queued, tags)

    def beat(self, worker: str, placement: str, stats: WorkerStats) -> None:
        """Take over a worker's statistics."""
        tags = {"job": self._job, "worker": worker, "placement": placement}
        self._worker.set(stats.elements, tags)
        self._threads.set(stats.threads, tags)

    def deployed(self, running: Deployment, wanted: Mapping[str, int]) -> None:
        """Take over the numbers of workers."""
        for placement, count in (("local", running.local), ("remote", running.remote)):
            tags = {"job": self._job, "placement": placement}
            self._running.set(count, tags)
            self._wanted.set(wanted[placement], tags)

    def decided(self, step: PlacementStep) -> None:
        """Take over a decision and the window that it was made from."""
        if not step.window.defect():
            self._batch_time.set(step.window.batch_time, {"job": self._job})
        self._decisions.inc(1, {"job": self._job, "phase": step.decision.phase})
