"""Where a training loop stands between two batches, as the job knows it.

A loop that takes a state after every so many batches is given the next one without a wait: it is asked for as soon as
this one was taken.  A state is the same whenever it is asked for, once the job knows of its batches.
"""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ray

from pecan_ray.errors import ClusterError, StateError
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.job.waiting import NO_ANSWER
from pecan_ray.runtime.calls import PendingResponse
from pecan_ray.runtime.client import BatchClient, StatePlace, state_place
from pecan_ray.runtime.long_wait import LongWait


# Why the next state is asked for early:
# docs/decisions/states-and-resume.md#174-the-next-state-is-asked-for-early
class StatePoints:
    """The points that a job tells one trainer."""

    def __init__(self, job: str, client: BatchClient, controller: Any, *, alone: bool) -> None:
        """`alone`: there is no other rank, which may have to give batches back that it has received."""
        self._job, self._client, self._controller, self._alone = job, client, controller, alone
        # A handler of a signal may ask for a state while one is taken.
        self._lock = threading.RLock()
        self._last: tuple[StatePlace, ResumePoint] | None = None
        self._next: tuple[StatePlace, Future[PendingResponse]] | None = None
        # A call of Ray's takes the loop's thread longer than all else of a state that was asked for early.
        self._asker = ThreadPoolExecutor(1, "pecan-state")

    def at_loop(self, ahead: int = 0) -> tuple[ResumePoint, int]:
        """Return where the job stands after the batches that the training loop has used, and how many these are.

        `ahead`: so many of those that it was given are not used yet.
        """
        with self._lock:
            place, known = state_place(self._client, ahead)
            last = self._last
            if last is not None and last[0] == place:
                return last[1], place.used
            point = self._requested_point(place)
            if point is None:
                point, used = self._current_point(ahead)
                place = replace(place, used=used)
            self._last = place, point
            if self._alone and last is not None:
                self._ask_next(last[0], place, known)
            return point, place.used

    def _requested_point(self, place: StatePlace) -> ResumePoint | None:
        """Return the point that was asked for when the last one was told; None if the loop stands elsewhere."""
        asked, self._next = self._next, None
        if asked is None:
            return None
        if asked[0] != place:
            self._asker.submit(_drop, asked[1])
            return None
        try:
            point = pickle.loads(self._client.calls.result(asked[1].result()))
        except (ray.exceptions.RayActorError, ClusterError):
            return None  # it is asked again: the controller's process was lost, or an error is raised then
        return point if isinstance(point, ResumePoint) else None

    def _current_point(self, ahead: int) -> tuple[ResumePoint, int]:
        with LongWait(f"job {self._job}: {NO_ANSWER}; it must know what the training loop has before there is a state"):
            used = max(0, self._client.tell_all() - ahead)
            point = pickle.loads(self._client.calls.retry(self._controller.resume_point, used))
        if isinstance(point, ResumePoint):
            return point, used
        if self._client.tell_all() > used + ahead:
            raise StateError(
                "there is no state: the training loop has gone on in another thread while it was being taken. Call "
                "state_dict() in the thread of the loop, or while that stands between two batches."
            )
        raise StateError("there is no state: the job does not know of all batches that were used.")

    def _ask_next(self, last: StatePlace, place: StatePlace, known: int) -> None:
        """Ask for the point after as many batches as there were since the last one, if the job knows of these."""
        wanted = 2 * place.used - last.used
        if place.used < wanted <= known:
            asked = self._asker.submit(self._client.calls.begin, self._controller.resume_point, wanted, True)
            self._next = replace(place, used=wanted), asked

    def close(self) -> None:
        """Want no more points."""
        with self._lock:
            if self._next is not None:
                self._asker.submit(_drop, self._next[1])
                self._next = None
            self._asker.shutdown()


def _drop(asked: Future[PendingResponse]) -> None:
    if asked.exception() is None:
        asked.result().close()
