"""What a worker's process knows of its progress, which its job is told now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pecan_ray.engines.under_way import count_from, long_retry
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.worker_events import WorkerTime
from pecan_ray.runtime.host_use import in_line_s, peak_memory
from pecan_ray.runtime.sigterm import sigterm_flag
from pecan_ray.runtime.stage_watch import StageWatch
from pecan_ray.runtime.worker_plan import WorkerPlan
from pecan_ray.storage import bytes_from_node, reads_hedged, remote_bytes

NEWS_S = 1.0
"""With how many threads it works, and what takes it long, a worker says after this time: a window of the search for
threads lasts as long."""


class WorkerReporter:
    """The thread of a worker that lets it tell how it gets on, until its process is ended."""

    def __init__(self, worker: str, controller: Any, plan: WorkerPlan, over: threading.Event) -> None:
        """`over`: set when the work has ended."""
        self._worker, self._controller, self._plan, self._over = worker, controller, plan, over
        self.stages = StageWatch(lambda: plan.engine, over)
        self._sigterm, self._retried = sigterm_flag(), 0.0
        """When a storage was last seen to fail."""
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._counters_before = _read_counters()
        """For jobs before this one."""
        self.last_report: Any = None
        """Ray's reference to the job's answer."""
        self._waited = time.monotonic(), 0.0
        """When the job was told last, and for how long the thread that does so had stood in line for a CPU."""

    def begin(self, happened: Callable[[WorkerTime], None]) -> None:
        """Let time pass for the worker, from a thread of its own; nothing to do a second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_on, args=(happened,), name="pecan-heartbeat", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Tell nothing more."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _keep_on(self, happened: Callable[[WorkerTime], None]) -> None:
        while not self._ended.is_set():
            over = self._over.is_set()
            happened(WorkerTime(self._condition(over=over)))
            if over:
                self._ended.wait(NEWS_S)  # what it has made is yet to be fetched
            else:
                self._over.wait(NEWS_S)

    def _condition(self, *, over: bool) -> WorkerProgress:
        """Return what is to be told, but for what the process has counted."""
        now, engine = time.monotonic(), self._plan.engine
        under_way, retrying = self._plan.under_way(now), long_retry(now)
        self._retried = now if retrying else self._retried
        # What is being read while the storage fails begins anew once it does not.
        long = None if over else retrying or count_from(under_way, self._retried, now)
        progress = WorkerProgress(
            threads=engine.threads if engine is not None else 0,
            fallback_reason=self._plan.fallback_reason,
            sigterm_received=self._sigterm.received,
        )
        return progress if long is None else replace(progress, stuck=long.text, stuck_s=now - long.since, at=long.at)

    def tell(self, progress: WorkerProgress) -> None:
        """Tell the job, without waiting for it."""
        engine = self._plan.engine
        counts = dict(engine.counts()) if engine is not None else {}
        # Nobody waits for the answer: all sums begin with the job, so the next report holds what
        # this one tells.
        self.last_report = self._controller.note_progress.remote(self._worker, self.completed(progress), counts)

    def completed(self, progress: WorkerProgress) -> WorkerProgress:
        """Add what the process has counted: reads of buckets and of its node's disk, its stages."""
        engine = self._plan.engine
        remote, node, hedged, won = (
            now - before for now, before in zip(_read_counters(), self._counters_before, strict=True)
        )
        return replace(
            progress,
            threads=engine.threads if engine is not None else 0,
            remote_bytes=remote,
            node_bytes=node,
            hedged=hedged,
            hedges_won=won,
            fallback_reason=self._plan.fallback_reason,
            stages=self.stages.seconds,
            peak_memory_bytes=peak_memory(),
            in_line_share=self._in_line_share(),
        )

    def _in_line_share(self) -> float:
        """Return in which share of the time since the last call the thread that speaks stood in line for a CPU."""
        thread = self._thread
        waited = None if thread is None or thread.native_id is None else in_line_s(thread.native_id)
        if waited is None:
            return 0.0
        (at, before), now = self._waited, time.monotonic()
        self._waited = now, waited
        return min(1.0, max(0.0, (waited - before) / (now - at))) if now > at else 0.0


def _read_counters() -> tuple[int, ...]:
    """Return what this process has counted: bytes of buckets and of its node's disk, hedges."""
    return (remote_bytes(), bytes_from_node(), *reads_hedged())
