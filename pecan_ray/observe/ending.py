"""What is done with the report of a job that has ended: it is left in a folder, and shown by `pecan run`."""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import ray

from pecan_ray.observe.past_jobs import PastJob, keep_job, report_folder
from pecan_ray.observe.report import Report
from pecan_ray.runtime import cluster

logger = logging.getLogger("pecan_ray")


class Closable(Protocol):
    """A run that can be ended."""

    def close(self) -> None:
        """End it."""
        ...


@dataclass
class RecordedRuns:
    """Runs that have begun since somebody listens, and the reports of those that have ended."""

    started: list[str] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)


_running: weakref.WeakSet[Any] = weakref.WeakSet()
"""What this process runs, and what has ended and is still held."""
_listeners: list[RecordedRuns] = []


def note_running(run: Closable) -> None:
    """Let `end_all` end a run, if it is still there by then."""
    _running.add(run)


def end_all() -> None:
    """End all that this process runs."""
    for run in list(_running):
        run.close()


@contextlib.contextmanager
def record_runs() -> Iterator[RecordedRuns]:
    """Listen to all runs of this process within the block."""
    runs = RecordedRuns()
    _listeners.append(runs)
    try:
        yield runs
    finally:
        _listeners.remove(runs)


class Ending:
    """The end of one run, which comes once."""

    def __init__(self, pipeline: str, job: str, folder: str | os.PathLike[str] | None, *, kept: bool) -> None:
        """`kept`: its report is left in the folder, which is None for the usual one."""
        self._pipeline, self.job, self._started = pipeline, job, time.time()
        self._folder = report_folder(folder) if kept else None
        self._over = False
        self.all_yielded = False
        """The training loop has had all batches."""
        self.failure = self.interrupted = ""
        """What the job ended with, if that was an error; what has ended a wait for a batch while the job ran on."""
        self.loop_failed = False
        """An exception has left the training loop."""
        for listener in _listeners:
            listener.started.append(job)

    def tell(self, report: Callable[[], Report]) -> None:
        """Do what is done with the report of a run that has ended."""
        if self._over:
            return
        self._over = True
        if self._folder is None and not _listeners:
            return
        try:
            made = report()
            for listener in _listeners:
                listener.reports.append(made)
            if self._folder is not None:
                why = self.failure or self.interrupted or "an error in the training loop" * self.loop_failed
                keep_job(self._past(made, why), self._folder)
        except Exception as failed:  # of a job that is over nothing else may be lost for that
            logger.warning("the report of job %s could not be made: %s: %s", self.job, type(failed).__name__, failed)

    def _past(self, report: Report, error: str) -> PastJob:
        known = ray.is_initialized()
        session, node = (cluster.session_name(), cluster.this_node()) if known else ("", "")
        told = (self.job, self._pipeline, session, node, self._started, time.time(), error)
        return PastJob(*told, str(report), asdict(report))
