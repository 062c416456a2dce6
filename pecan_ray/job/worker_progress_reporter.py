"""What a worker tells of its progress, and when: at once where the job must know, else now and then."""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.job.heartbeat import Heartbeat
from pecan_ray.job.messages import WorkerProgress


class WorkerProgressReporter:
    """What a worker has done, and what the job was told of it."""

    def __init__(self, heartbeat: Heartbeat, hung_after_s: float) -> None:
        self._heartbeat, self._hung_after_s = heartbeat, hung_after_s
        self._elements = self._batches = 0
        self._immediate_report: tuple[object, ...] | None = None
        """What the job was told last of what it must know at once."""

    def count(self, rows: int) -> None:
        """Count a batch that trainers can fetch."""
        self._elements += rows
        self._batches += 1

    @property
    def progress(self) -> WorkerProgress:
        """What the worker itself has counted."""
        return WorkerProgress(self._elements, self._batches)

    def next_progress(self, condition: WorkerProgress, now: float) -> WorkerProgress:
        """Return what to tell; `condition`: what its process knows."""
        self._heartbeat.reported_at = now
        return replace(condition, elements=self._elements, batches=self._batches)

    def is_due(self, condition: WorkerProgress, now: float, lot_s: float, *, over: bool) -> bool:
        """Tell whether the job must hear of the worker; `over`: it has ended its work."""
        hangs = condition.stuck_s > self._hung_after_s
        urgent = condition.threads, condition.stuck, condition.fallback_reason, condition.sigterm_received, over, hangs
        # What has changed is told right after this.
        changed, self._immediate_report = urgent != self._immediate_report, urgent
        return changed or self._heartbeat.due(now, lot_s)
