"""How fast a job is lately, and would be if it never waited for data: by what its trainers and workers have told.

Trainers tell rows and how long they waited, several times a second; workers tell bytes and rows together, more seldom.
So bytes a second are the trainers' rows a second times the workers' bytes for a row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.worker_table import WorkerRecord

if TYPE_CHECKING:
    from pecan_ray.job.state import JobState

LATELY_S = 10.0
"""Speeds are those of so many seconds: single batches do not show, and a change soon does."""
MOST_BYTES_PER_S = 1e12
"""A training loop that does nothing would be as fast as you like; for this one, it is so fast."""
LEAST_OF_EPOCH = 0.05
"""The size of a dataset is told by so much of an epoch."""


@dataclass(frozen=True)
class JobSpeed:
    """A job lately; bytes are those that its sources read, of object stores and of nodes' disks."""

    rows_per_s: float = 0.0
    wait_share: float | None = None
    """Of the trainers' time; None: nothing has come yet."""
    bytes_per_s: float = 0.0
    hit_share: float = 0.0
    """The share of these bytes that came from nodes' disks."""
    ideal_bytes_per_s: float | None = None
    """What it would read if its trainers never waited, or its workers never waited for the storage; None: not known."""
    dataset_bytes: float | None = None
    """Bytes that it reads in an epoch, by what it has read so far; None: not known."""


@dataclass(frozen=True)
class _Totals:
    """What was told since the job began."""

    now: float
    rows: int
    waited_s: float
    elapsed_s: float
    remote_bytes: int
    node_bytes: int


class SpeedMeter:
    """Measures a job's speed by looks at it, about one a second."""

    def __init__(self) -> None:
        self._looks: deque[_Totals] = deque()
        self._hits = 0.0
        self._started: tuple[float, int] | None = None
        """How many epochs had been taken when workers first told of bytes, and of how many."""
        self._reported_bytes = 0
        self._dataset_bytes: float | None = None

    def look(self, job: JobState, now: float) -> JobSpeed:
        """Return the speed since the oldest look that is not too old."""
        workers = [*job.worker_table.past.values(), *job.worker_table.workers.values()]
        totals = _totals(job, [worker.own_progress for worker in workers], now)
        then = self._since(totals)
        self._look_at_dataset(job, totals.remote_bytes + totals.node_bytes)
        remote, node = totals.remote_bytes - then.remote_bytes, totals.node_bytes - then.node_bytes
        # Workers tell of their reads more seldom than this is asked. Until then the last share holds.
        if remote + node > 0:
            self._hits = max(0.0, min(1.0, node / (remote + node)))
        seconds = max(totals.elapsed_s - then.elapsed_s, 1e-9)
        rows, waited = totals.rows - then.rows, totals.waited_s - then.waited_s
        if not totals.rows or seconds <= 1e-9:
            return JobSpeed(hit_share=self._hits, dataset_bytes=self._dataset_bytes)
        made = sum(worker.own_progress.elements for worker in workers)
        row_bytes = (totals.remote_bytes + totals.node_bytes) / made if made else None
        # Decision 57: without waits, so that it shows under a quota, too; but no faster than the workers compute.
        ideal = min(rows / max(seconds - waited, 1e-9), _most_rows_per_s(job.worker_table.workers.values()))
        return JobSpeed(
            rows_per_s=rows / seconds,
            wait_share=max(0.0, min(1.0, waited / seconds)),
            bytes_per_s=rows / seconds * (row_bytes or 0.0),
            hit_share=self._hits,
            ideal_bytes_per_s=min(MOST_BYTES_PER_S, ideal * row_bytes) if row_bytes and rows else None,
            dataset_bytes=self._dataset_bytes,
        )

    def _since(self, totals: _Totals) -> _Totals:
        """Keep the newest look; return the one from which on a speed is measured."""
        # The newest of the old looks stays, because a speed is to span all of LATELY_S.
        while len(self._looks) > 1 and totals.now - self._looks[1].now >= LATELY_S:
            self._looks.popleft()
        then = self._looks[0] if self._looks else totals
        self._looks.append(totals)
        return then

    def _look_at_dataset(self, job: JobState, nbytes: int) -> None:
        """Compare two moments at which workers have just told what they read.

        What is read lies behind what is taken by what workers hold and have not told, then and now: so it is left out.
        """
        taken = job.ledger.queues.share_taken()
        if taken is None or nbytes == self._reported_bytes:
            return
        self._reported_bytes = nbytes
        at = job.ledger.epoch + taken
        if self._started is None:
            self._started = at, nbytes
        started, before = self._started
        if at - started >= LEAST_OF_EPOCH and nbytes > before:
            self._dataset_bytes = (nbytes - before) / (at - started)


def _totals(job: JobState, told: Iterable[WorkerProgress], now: float) -> _Totals:
    trainers = [one.progress for one in job.trainers.ranks.values()]
    read = [(one.remote_bytes, one.node_bytes) for one in told]
    return _Totals(
        now,
        sum(one.rows for one in trainers),
        fmean([one.waited_s for one in trainers] or [0.0]),
        fmean([one.elapsed_s for one in trainers] or [0.0]),
        sum(remote for remote, _ in read),
        sum(node for _, node in read),
    )


def _most_rows_per_s(workers: Iterable[WorkerRecord]) -> float:
    """Return what the workers that run would make together if they never waited for the storage."""
    most = 0.0
    for worker in workers:
        seen, made = worker.own_progress.stages, worker.own_progress.elements
        if worker.running and made and seen.observed_s:
            threads = max(1.0, seen.threads_s / seen.observed_s)
            # Operators and batching run beside each other in a worker, so the slower of the two sets its pace.
            most += made / max(seen.computing_s / threads, seen.batching_s, 1e-9)
    return most or math.inf
