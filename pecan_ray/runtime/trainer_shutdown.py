"""The end of a trainer's part in a job: once, by whoever comes first of `close`, garbage collector and interpreter."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import threading
import time
from typing import Any

import ray

from pecan_ray.errors import ClusterError, describe_error
from pecan_ray.job.stats import JobStats
from pecan_ray.job.waiting import NO_ANSWER, SAY_AFTER_S
from pecan_ray.runtime.calls import PAUSE_S
from pecan_ray.runtime.client import BatchClient

logger = logging.getLogger("pecan_ray")

LEAVE_S = 30.0
"""Longest wait for the controller's answer: it ends workers, and removes a copy in a bucket, before it answers."""


class TrainerShutdown:
    """Leaves a job, and ends it if nobody else is there."""

    def __init__(self, job: str, client: BatchClient, controller: Any, rank: int, incarnation: str) -> None:
        self._job, self._client, self._controller = job, client, controller
        self._rank, self._incarnation = rank, incarnation
        self._process = os.getpid()
        self.keep = self.kept = False
        """Another job may follow in the processes of this one; they wait for it."""
        self.finished = False
        """The training loop has all that it asked for: the others may go on."""
        self._once = threading.Lock()
        """Guards the facts, which exist once the job was left."""
        self._stats: JobStats | None = None
        _open.add(self)

    def leave(self) -> JobStats:
        """Leave the job, or wait until another thread has; return the last facts about it."""
        if os.getpid() != self._process:
            return JobStats(self._job, lost="this process was forked from the trainer's")
        with self._once:
            if self._stats is None:
                self._stats = self._leave()
                _open.discard(self)
            return self._stats

    def leave_in_background(self) -> None:
        """Leave the job in a thread of its own: the garbage collector may run in any thread, with any lock held."""
        if self._stats is None and os.getpid() == self._process:
            # Not threading.Thread, which takes a lock too.  At the interpreter's end `_leave_all` waits for it.
            _thread.start_new_thread(self.leave, ())

    def _leave(self) -> JobStats:
        client, calls, alone = self._client, self._client.calls, self._client.state.world_size == 1
        # First, because it counts the batches that the loop did not use, of which the job is told.
        client.close()
        try:
            facts: JobStats
            facts, last = self._report_end(time.monotonic())
        except (ray.exceptions.RayError, TimeoutError) as error:
            # An only trainer ends a controller that does not answer.  With other ranks it may answer those.
            facts, last = JobStats(self._job, lost=describe_error(error)), alone
        except ClusterError:
            # The controller has gone with Ray, so there is nothing left to end.
            facts, last = JobStats(self._job, lost="Ray was shut down before the job was closed"), False
        client.join()
        # Ray may have been shut down since, and has ended the controller then.
        with contextlib.suppress(ClusterError):
            self.kept = last and self.keep and not facts.lost
            if last and not self.kept:
                calls.kill(self._controller)
        return facts

    def _report_end(self, started: float) -> tuple[JobStats, bool]:
        """Tell the controller, again where it is just being started again; return the facts, and who ends it."""
        calls, until = self._client.calls, started + LEAVE_S
        message = False

        def say() -> None:
            # No timer: at the interpreter's end no thread can be started.
            nonlocal message
            if not message and time.monotonic() >= started + SAY_AFTER_S:
                message = True
                logger.warning(
                    "waiting: job %s: it is being closed, and %s; it is waited for %.0f s",
                    *(self._job, NO_ANSWER, LEAVE_S),
                )

        while True:
            asked = calls.begin(
                self._controller.leave,
                *(self._rank, self._incarnation, self._client.state.unused, self.finished, self.keep),
            )
            try:
                answer: tuple[JobStats, bool] = calls.result(asked, max(0.0, until - time.monotonic()), say)
                return answer
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() > until:
                    raise
            say()
            time.sleep(PAUSE_S)


_open: set[TrainerShutdown] = set()
"""Of the jobs that have not been left."""


def _leave_all() -> None:
    for leaving in list(_open):
        leaving.leave()


# Registered after Ray's own (Ray is imported above), so that it runs before.
atexit.register(_leave_all)
