"""Metrics of a job through Ray's own metrics: they appear at Ray's Prometheus endpoint as `ray_pecan_*`."""

from __future__ import annotations

import hashlib

from ray.util.metrics import Counter, Gauge

from pecan_ray.job.dropped import DroppedData
from pecan_ray.job.job_cost import cost_by_operator
from pecan_ray.job.messages import Placement, TrainerReport, WorkerProgress
from pecan_ray.job.state import JobState
from pecan_ray.plan.windows import Deployment

MOST_TAG_LETTERS = 200
"""Of a name in a tag."""
JOB_TAGS = ("pecan_job", "pipeline")


def tag_of(name: str) -> str:
    """Return a name as Ray's metrics take it, different for different names: what is not ASCII escaped, and short."""
    tag = name.encode("unicode_escape").decode("ascii")
    if len(tag) <= MOST_TAG_LETTERS:
        return tag
    return f"{tag[: MOST_TAG_LETTERS - 17]}-{hashlib.sha256(tag.encode()).hexdigest()[:16]}"


# Why amounts are counters: docs/decisions/observing.md#63-names-of-metrics
class JobMetrics:
    """Counters and gauges of one job, tagged with job and pipeline, and with worker or rank, and placement.

    The job's tag is not `job`, which a Prometheus that scrapes Ray has for itself and would rename.
    """

    def __init__(self, job: str, pipeline: str) -> None:
        rank, worker, place = (*JOB_TAGS, "rank"), (*JOB_TAGS, "worker", "placement"), (*JOB_TAGS, "placement")
        self._batches = Counter("pecan_batches", "Batches received by trainers.", rank)
        self._elements = Counter("pecan_elements", "Elements received by trainers.", rank)
        self._bytes = Counter("pecan_bytes", "Bytes received by trainers.", rank)
        self._bad = Counter("pecan_bad_elements", "Elements left out because they failed.", rank)
        self._dropped = Counter("pecan_dropped_elements", "Elements dropped with their workers.", JOB_TAGS)
        rests = "Rests of splits that were dropped with their workers, of unknown length as yet."
        self._dropped_rests = Gauge("pecan_dropped_rests", rests, JOB_TAGS)
        self._waited = Counter("pecan_wait_seconds", "Seconds in which a trainer waited for input.", rank)
        self._wait = Gauge("pecan_wait_ratio", "Share of its time in which a trainer has waited for input.", rank)
        self._queue = Gauge("pecan_queue_batches", "Batches waiting at a trainer.", rank)
        self._worker = Counter("pecan_worker_elements", "Elements that a worker has produced.", worker)
        self._threads = Gauge("pecan_worker_threads", "Threads of a worker.", worker)
        self._remote = Counter("pecan_worker_remote_bytes", "Bytes that a worker has read of object stores.", worker)
        hedged = "Reads that a worker has asked an object store for twice."
        self._hedged = Counter("pecan_worker_hedged_reads", hedged, worker)
        self._running = Gauge("pecan_workers", "Workers that run.", place)
        self._target_workers = Gauge("pecan_workers_wanted", "Workers that are aimed at.", place)
        self._batch_time = Gauge("pecan_batch_seconds", "Mean time of a trainer's step in the last window.", JOB_TAGS)
        self._decision_counter = Counter("pecan_decisions", "Decisions of the placement policy.", (*JOB_TAGS, "phase"))
        self._cost = Counter("pecan_cost_dollars", "What has been paid, at the prices given.", place)
        self._operator_cost = Counter(
            "pecan_operator_cost_dollars",
            "What input has cost, dealt to operators by their time.",
            (*JOB_TAGS, "operator"),
        )
        self._epochs = Counter("pecan_epochs", "Epochs that are over.", JOB_TAGS)
        self._epoch_cost = Gauge("pecan_epoch_cost_dollars", "What the epoch has cost that was over last.", place)
        self._before: dict[tuple[Counter, str], float] = {}
        """What is counted already of amounts that are told as a whole."""
        self._reported_cost: dict[tuple[str, str], float] = {}
        """Dollars that are counted already, by tag and its value."""
        self._over = 0
        """Epochs that are counted already."""
        self._dropped_before = 0
        self._tags = dict(zip(JOB_TAGS, map(tag_of, (job, pipeline)), strict=True))
        self._steps = 0
        self._last_values = (Deployment(0, 0), Deployment(0, 0))

    def reported(self, report: TrainerReport) -> None:
        """Take over a trainer's report."""
        tags = {**self._tags, "rank": str(report.rank)}
        amounts = (
            (self._batches, sum(ack.batches for ack in report.received_batches)),
            (self._elements, sum(ack.rows for ack in report.received_batches)),
            (self._bytes, sum(ack.bytes for ack in report.received_batches)),
            (self._bad, sum(one.elements for one in report.left_out)),
        )
        for counter, amount in amounts:
            if amount:
                counter.inc(amount, tags)
        progress = report.progress
        self._increment(self._waited, progress.waited_s, tags)
        if progress.elapsed_s > 0:
            self._wait.set(progress.waited_s / progress.elapsed_s, tags)
        self._queue.set(progress.queued, tags)

    def note_progress(self, worker: str, placement: Placement, progress: WorkerProgress) -> None:
        """Take over what a worker has done."""
        tags = {**self._tags, "worker": tag_of(worker), "placement": placement}
        self._increment(self._worker, progress.elements, tags)
        self._increment(self._remote, progress.remote_bytes, tags)
        self._increment(self._hedged, progress.hedged, tags)
        self._threads.set(progress.threads, tags)

    def _increment(self, counter: Counter, whole: float, tags: dict[str, str]) -> None:
        """Count what an amount has grown by since it was told last, of a rank or a worker."""
        key = counter, tags.get("worker") or tags["rank"]
        before = self._before.get(key, 0.0)
        # Reports may come late, and a counter only grows.
        if whole > before:
            counter.inc(whole - before, tags)
            self._before[key] = whole

    def job(self, state: JobState, now: float) -> None:
        """Take over what has changed in a job: its cost, numbers of workers and decisions about them."""
        self._costs(state, now)
        self._epochs_over(state)
        self._dropped_data(state.ledger.dropped)
        shown = state.worker_table.running(), state.worker_table.target
        if shown != self._last_values:
            self._last_values = shown
            for placement in ("local", "remote"):
                tags = {**self._tags, "placement": placement}
                self._running.set(getattr(shown[0], placement), tags)
                self._target_workers.set(getattr(shown[1], placement), tags)
        placing = state.placement.policy_runner
        fresh = placing.steps - self._steps if placing is not None else 0
        for step in list(placing.timeline)[-fresh:] if placing is not None and fresh else ():
            self._steps += 1
            if not step.window.invalid_reason():
                self._batch_time.set(step.window.batch_time, self._tags)
            self._decision_counter.inc(1, {**self._tags, "phase": step.decision.phase})

    def _dropped_data(self, dropped: DroppedData) -> None:
        """Count the elements that were dropped since the last time, and tell of what rests nobody knows the length."""
        if dropped.elements > self._dropped_before:
            self._dropped.inc(dropped.elements - self._dropped_before, self._tags)
            self._dropped_before = dropped.elements
        # Nothing is told where nothing was dropped; later a rest may be counted, and none be left.
        if dropped.leases:
            self._dropped_rests.set(dropped.open_ends, self._tags)

    def _costs(self, state: JobState, now: float) -> None:
        """Count what was paid since the last time, by placement and by operator."""
        cost = state.cost(now)
        if cost is None:
            return
        by_operator = cost_by_operator(cost, state.placement.op_seconds)
        parts = [
            *((self._cost, "placement", one, getattr(cost, one)) for one in ("host", "remote")),
            *((self._operator_cost, "operator", name, paid) for name, paid in by_operator.items()),
        ]
        for counter, tag, value, paid in parts:
            before = self._reported_cost.get((tag, value), 0.0)
            if paid > before:
                counter.inc(paid - before, {**self._tags, tag: tag_of(value)})
                self._reported_cost[tag, value] = paid

    def _epochs_over(self, state: JobState) -> None:
        """Count the epochs that are over since the last time, and tell what the last of them has cost."""
        # Looked at once a second, so several short epochs may be over since the last time.
        ends = state.epoch_ends
        if ends.over == self._over:
            return
        self._epochs.inc(ends.over - self._over, self._tags)
        self._over = ends.over
        started, end = [ends.before, *ends.latest][-2:]
        cost = state.cost(state.started + end, since=started)
        for placement in ("host", "remote") if cost is not None else ():
            self._epoch_cost.set(getattr(cost, placement), {**self._tags, "placement": placement})
