"""What the dashboard reads of the cluster: every job's controller, all at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray

from pecan_ray.job.job_views import JobView, LiveJob
from pecan_ray.observe.live_jobs import live_jobs
from pecan_ray.runtime import cluster

logger = logging.getLogger(__name__)

ANSWER_S = 2.0
"""A controller that needs longer is named as one that does not answer: the others are shown."""
KEPT_S = 1.0
"""Seconds for which what was read is shown to whoever asks: many readers are no load on the controllers."""
MOST_KEPT = 100
"""Pages whose numbers are kept.  Chosen: each is some kilobytes, and few people look at one cluster."""

T = TypeVar("T")


class ReadCache:
    """What was read lately, by what it is."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        """Guards both of these."""
        self._kept: dict[str, tuple[float, Any]] = {}
        self._locks: dict[str, threading.Lock] = {}
        """By what it is: held while that is read."""

    def read(self, what: str, read: Callable[[], T]) -> T:
        """Return what `read` gives, or gave not long ago; who asks meanwhile waits for the same answer."""
        with self._lock:
            # Held while this is read, so that it is read once.
            lock = self._locks.setdefault(what, threading.Lock())
        with lock:
            at, value = self._kept.get(what, (0.0, None))
            if what in self._kept and self._clock() - at < KEPT_S:
                found: T = value
                return found
            found = read()
            with self._lock:
                self._kept[what] = self._clock(), found
                while len(self._kept) > MOST_KEPT:
                    oldest = min(self._kept, key=lambda one: self._kept[one][0])
                    self._kept.pop(oldest)
                    self._locks.pop(oldest, None)
            return found


def read_jobs() -> tuple[list[LiveJob], list[str]]:
    """Return the jobs of the cluster, and the names of those whose controllers do not answer."""
    return live_jobs(ANSWER_S)


def read_view(job: str) -> JobView | None:
    """Return what a job's page shows; None where no such job runs, or it does not answer."""
    name = cluster.other_jobs("").get(job)
    try:
        view: JobView | None = None if name is None else ray.get(_controller(name).view.remote(), timeout=ANSWER_S)
    except (ValueError, AttributeError, TimeoutError, ray.exceptions.RayError) as error:
        logger.info("job %s tells nothing: %s", job, error)
        return None
    return view


def _controller(name: str) -> Any:
    return ray.get_actor(name, namespace=cluster.NAMESPACE)
