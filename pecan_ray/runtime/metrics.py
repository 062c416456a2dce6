"""Metrics of a job through Ray's own metrics: they appear at Ray's Prometheus endpoint as `ray_pecan_*`."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge

from pecan_ray.job.messages import Placement, TrainerReport, WorkerProgress
from pecan_ray.job.state import JobState
from pecan_ray.plan.windows import Deployment


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
        self._cost = Counter("pecan_cost_dollars", "What has been paid, at the prices given.", ("job", "placement"))
        self._paid = {"host": 0.0, "remote": 0.0}
        self._job = job
        self._steps = 0
        self._shown = (Deployment(0, 0), Deployment(0, 0))

    def reported(self, report: TrainerReport) -> None:
        """Take over a trainer's report."""
        tags = {"job": self._job, "rank": str(report.rank)}
        amounts = (
            (self._batches, sum(ack.batches for ack in report.acks)),
            (self._elements, sum(ack.rows for ack in report.acks)),
            (self._bytes, sum(ack.bytes for ack in report.acks)),
            (self._bad, sum(one.elements for one in report.left_out)),
        )
        for counter, amount in amounts:
            if amount:
                counter.inc(amount, tags)
        progress = report.progress
        if progress.elapsed_s > 0:
            self._wait.set(progress.waited_s / progress.elapsed_s, tags)
        self._queue.set(progress.queued, tags)

    def told(self, worker: str, placement: Placement, progress: WorkerProgress) -> None:
        """Take over what a worker has done."""
        tags = {"job": self._job, "worker": worker, "placement": placement}
        self._worker.set(progress.elements, tags)
        self._threads.set(progress.threads, tags)

    def job(self, state: JobState, now: float) -> None:
        """Take over what has changed in a job: its cost, numbers of workers and decisions about them."""
        cost = state.cost(now)
        for placement, before in self._paid.items() if cost is not None else ():
            more = getattr(cost, placement) - before
            if more > 0:
                self._cost.inc(more, {"job": self._job, "placement": placement})
                self._paid[placement] += more
        shown = state.fleet.running(), state.fleet.wanted
        if shown != self._shown:
            self._shown = shown
            for placement in ("local", "remote"):
                tags = {"job": self._job, "placement": placement}
                self._running.set(getattr(shown[0], placement), tags)
                self._wanted.set(getattr(shown[1], placement), tags)
        placing = state.placement.placing
        fresh = placing.steps - self._steps if placing is not None else 0
        for step in list(placing.timeline)[-fresh:] if placing is not None and fresh else ():
            self._steps += 1
            if not step.window.defect():
                self._batch_time.set(step.window.batch_time, {"job": self._job})
            self._decisions.inc(1, {"job": self._job, "phase": step.decision.phase})
