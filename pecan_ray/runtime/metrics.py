"""Metrics of a job through Ray's own metrics: they appear at Ray's Prometheus endpoint as `ray_pecan_*`."""

from __future__ import annotations

import hashlib

from ray.util.metrics import Counter, Gauge

from pecan_ray.job.dropped import DroppedData
from pecan_ray.job.job_cost import cost_by_operator
from pecan_ray.job.messages import Placement, TrainerReport, WorkerProgress
from pecan_ray.job.state import JobState

MOST_TAG_LETTERS = 200
"""Of a name in a tag, which each sample repeats."""
JOB_TAGS = ("pecan_job", "pipeline")


def tag_of(name: str) -> str:
    """Return a name as Ray's metrics take it, different for different names: what is not ASCII escaped, and short."""
    tag = name.encode("unicode_escape").decode("ascii")
    if len(tag) <= MOST_TAG_LETTERS:
        return tag
    return f"{tag[: MOST_TAG_LETTERS - 17]}-{hashlib.sha256(tag.encode()).hexdigest()[:16]}"


# Why amounts are counters: docs/decisions/observing.md#63-names-of-metrics
class GrowingCounter(Counter):
    """Counts amounts that are told as a whole by what they have grown."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        super().__init__(name, description, tag_keys)
        self._counted: dict[tuple[str, ...], float] = {}
        """What is counted already, by the values of tags."""

    def note(self, whole: float, tags: dict[str, str]) -> bool:
        """Count what an amount has grown by since it was told last; return whether it has."""
        key = tuple(tags.values())
        before = self._counted.get(key, 0.0)
        # Reports may come late, and a counter only grows.
        if whole <= before:
            return False
        self.inc(whole - before, tags)
        self._counted[key] = whole
        return True


# Why values are told again: docs/decisions/observing.md#63-names-of-metrics
class HeldGauge(Gauge):
    """Holds the last values, to tell them again and again: Ray forgets those that are not set within half a minute."""

    def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
        super().__init__(name, description, tag_keys)
        self._values: dict[tuple[str, ...], tuple[float, dict[str, str]]] = {}
        """With their tags, by the values of these."""

    def hold(self, value: float, tags: dict[str, str]) -> None:
        """Hold a value in place of the last one with these tags."""
        self._values[tuple(tags.values())] = value, tags

    def tell(self) -> None:
        """Let Ray have all values."""
        for value, tags in self._values.values():
            self.set(value, tags)


class TrainerMetrics:
    """Counters and gauges of a job's trainers, by rank."""

    def __init__(self, tags: dict[str, str]) -> None:
        self._tags, rank = tags, (*JOB_TAGS, "rank")
        self._batches = Counter("pecan_batches", "Batches received by trainers.", rank)
        self._elements = Counter("pecan_elements", "Elements received by trainers.", rank)
        self._bytes = Counter("pecan_bytes", "Bytes received by trainers.", rank)
        self._bad = Counter("pecan_bad_elements", "Elements left out because they failed.", rank)
        self._waited = GrowingCounter("pecan_wait_seconds", "Seconds in which a trainer waited for input.", rank)
        self._wait = Gauge("pecan_wait_ratio", "Share of its time in which a trainer has waited for input.", rank)
        self._queue = Gauge("pecan_queue_batches", "Batches waiting at a trainer.", rank)

    def reported(self, report: TrainerReport) -> None:
        """Take over a trainer's report."""
        tags = {**self._tags, "rank": str(report.rank)}
        amounts = (
            (self._batches, sum(ack.batches for ack in report.received.batches)),
            (self._elements, sum(ack.rows for ack in report.received.batches)),
            (self._bytes, sum(ack.bytes for ack in report.received.batches)),
            (self._bad, sum(one.elements for one in report.left_out)),
        )
        for counter, amount in amounts:
            if amount:
                counter.inc(amount, tags)
        progress = report.progress
        self._waited.note(progress.waited_s, tags)
        if progress.elapsed_s > 0:
            self._wait.set(progress.waited_s / progress.elapsed_s, tags)
        self._queue.set(progress.queued, tags)


class WorkerMetrics:
    """Counters and gauges of a job's workers, by name."""

    def __init__(self, tags: dict[str, str]) -> None:
        self._tags, worker = tags, (*JOB_TAGS, "worker", "placement")
        self._elements = GrowingCounter("pecan_worker_elements", "Elements that a worker has produced.", worker)
        self._threads = Gauge("pecan_worker_threads", "Threads of a worker.", worker)
        remote = "Bytes that a worker has read of object stores."
        self._remote = GrowingCounter("pecan_worker_remote_bytes", remote, worker)
        hedged = "Reads that a worker has asked an object store for twice."
        self._hedged = GrowingCounter("pecan_worker_hedged_reads", hedged, worker)

    def note_progress(self, worker: str, placement: Placement, progress: WorkerProgress) -> None:
        """Take over what a worker has done."""
        tags = {**self._tags, "worker": tag_of(worker), "placement": placement}
        self._elements.note(progress.elements, tags)
        self._remote.note(progress.remote_bytes, tags)
        self._hedged.note(progress.hedged, tags)
        self._threads.set(progress.threads, tags)


class JobMetrics:
    """Counters and gauges of one job, tagged with job and pipeline; its trainers' and workers' beside them.

    The job's tag is not `job`, which a Prometheus that scrapes Ray has for itself and would rename.
    """

    def __init__(self, job: str, pipeline: str) -> None:
        place = (*JOB_TAGS, "placement")
        self._tags = dict(zip(JOB_TAGS, map(tag_of, (job, pipeline)), strict=True))
        self.trainers, self.workers = TrainerMetrics(self._tags), WorkerMetrics(self._tags)
        self._dropped = GrowingCounter("pecan_dropped_elements", "Elements dropped with their workers.", JOB_TAGS)
        rests = "Rests of splits that were dropped with their workers, of unknown length as yet."
        self._dropped_rests = HeldGauge("pecan_dropped_rests", rests, JOB_TAGS)
        self._running = HeldGauge("pecan_workers", "Workers that run.", place)
        self._target_workers = HeldGauge("pecan_workers_wanted", "Workers that are aimed at.", place)
        step = "Mean time of a trainer's step in the last window."
        self._batch_time = HeldGauge("pecan_batch_seconds", step, JOB_TAGS)
        self._decision_counter = Counter("pecan_decisions", "Decisions of the placement policy.", (*JOB_TAGS, "phase"))
        self._cost = GrowingCounter("pecan_cost_dollars", "What has been paid, at the prices given.", place)
        self._operator_cost = GrowingCounter(
            "pecan_operator_cost_dollars",
            "What input has cost, dealt to operators by their time.",
            (*JOB_TAGS, "operator"),
        )
        self._epochs = GrowingCounter("pecan_epochs", "Epochs that are over.", JOB_TAGS)
        self._epoch_cost = HeldGauge("pecan_epoch_cost_dollars", "What the epoch has cost that was over last.", place)
        self._steps = 0
        """Of the policy, that are counted already."""

    def job(self, state: JobState, now: float) -> None:
        """Tell of a job's cost, numbers of workers and decisions about them; called once a second."""
        self._costs(state, now)
        self._epochs_over(state)
        self._dropped_data(state.ledger.dropped)
        for placement in ("local", "remote"):
            tags = {**self._tags, "placement": placement}
            self._running.hold(getattr(state.worker_table.running(), placement), tags)
            self._target_workers.hold(getattr(state.worker_table.target, placement), tags)
        placing = state.placement.policy_runner
        fresh = placing.steps - self._steps if placing is not None else 0
        for step in list(placing.timeline)[-fresh:] if placing is not None and fresh else ():
            self._steps += 1
            if not step.window.invalid_reason():
                self._batch_time.hold(step.window.batch_time, self._tags)
            self._decision_counter.inc(1, {**self._tags, "phase": step.decision.phase})
        for gauge in (self._dropped_rests, self._running, self._target_workers, self._batch_time, self._epoch_cost):
            gauge.tell()

    def _dropped_data(self, dropped: DroppedData) -> None:
        """Count the elements that were dropped, and tell of what rests nobody knows the length."""
        self._dropped.note(dropped.elements, self._tags)
        # Nothing is told where nothing was dropped; later a rest may be counted, and none be left.
        if dropped.leases:
            self._dropped_rests.hold(dropped.open_ends, self._tags)

    def _costs(self, state: JobState, now: float) -> None:
        """Count what was paid, by placement and by operator."""
        cost = state.cost(now)
        if cost is None:
            return
        for placement in ("host", "remote"):
            self._cost.note(getattr(cost, placement), {**self._tags, "placement": placement})
        for name, paid in cost_by_operator(cost, state.placement.op_seconds).items():
            self._operator_cost.note(paid, {**self._tags, "operator": tag_of(name)})

    def _epochs_over(self, state: JobState) -> None:
        """Count the epochs that are over, and tell what the last of them has cost."""
        # Looked at once a second, so several short epochs may be over since the last time.
        ends = state.epoch_ends
        if not self._epochs.note(ends.over, self._tags):
            return
        started, end = [ends.before, *ends.latest][-2:]
        cost = state.cost(state.started + end, since=started)
        for placement in ("host", "remote") if cost is not None else ():
            self._epoch_cost.hold(getattr(cost, placement), {**self._tags, "placement": placement})
