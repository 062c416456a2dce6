"""How orders reach trainers: each waits in a call that is answered when there is something new for it.

When that is, `pecan_ray.job.notification_schedule` says.  A worker's handle is costly to pickle and trainers are many:
each handle is pickled when its worker comes up, and orders once for all trainers that are due the same.
"""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from pecan_ray.by_value import dumps
from pecan_ray.job.messages import TrainerUpdate
from pecan_ray.job.notification_schedule import NotificationSchedule
from pecan_ray.runtime.host_names import named, named_error
from pecan_ray.runtime.job_tasks import JobTasks
from pecan_ray.runtime.messages import WorkerInfo

_words = attrgetter(*(field.name for field in fields(TrainerUpdate) if field.name != "error"))
"""All that orders say but an error, which the number stands for: one of a user's kind may bear no hash."""


class UpdateCalls:
    """The calls of trainers that wait for orders."""

    def __init__(self, update: Callable[[int], TrainerUpdate], tasks: JobTasks) -> None:
        self._update_of, self._tasks = update, tasks
        self._listening: dict[int, asyncio.Future[None]] = {}
        self._schedule = NotificationSchedule()
        self._handle: asyncio.Handle | None = None
        """The call that will answer those that are due."""
        self._response_time = math.inf
        """The time of that call.  Its handle need not tell it: uvloop, on which Ray's actors run, returns one without a
        time for a call that is due within half a millisecond."""
        self._handles: dict[str, bytes] = {}
        self._pickled: dict[tuple[Any, ...], bytes] = {}
        """Of orders of one number: those of ranks that are told the same are the same bytes."""
        self._pickled_number = -1

    def add_worker(self, worker: WorkerInfo) -> None:
        """Let trainers know how to reach a worker."""
        self._handles[worker.name] = pickle.dumps(worker)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker that is gone."""
        self._handles.pop(worker, None)

    async def listen(self, rank: int, number: int) -> bytes:
        """Return a rank's orders, pickled, as soon as they are due and newer than the ones with that number."""
        loop = asyncio.get_running_loop()
        # Orders that have gone with the answer to a report meanwhile are not told again, so the call waits on.
        while not self._schedule.is_due(rank, number, self._update_of(rank).number, loop.time()):
            waiting = self._listening[rank] = loop.create_future()
            await waiting
        return self.pickled_update(rank)

    def pickled_update(self, rank: int) -> bytes:
        """Return a rank's orders, pickled, which it gets now: it is not told of them again."""
        self._schedule.mark_sent(rank)
        return self._pickled_for(rank)

    def release(self, rank: int) -> None:
        """Answer a trainer that leaves."""
        waiting = self._listening.pop(rank, None)
        if waiting is not None and not waiting.done():
            waiting.cancel()

    def tell(self, ranks: Iterable[int], *, only_limit_raised: bool = False) -> None:
        """Answer these ranks soon; not quite so soon where all that has changed is how much they may use."""
        loop = asyncio.get_running_loop()
        at = self._schedule.changed(ranks, len(self._listening), loop.time(), only_limit_raised=only_limit_raised)
        self._wake(loop, at)

    def _wake(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if at >= self._response_time:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._response_time = loop.call_at(at, self._send_updates), at

    def _send_updates(self) -> None:
        self._handle, self._response_time = None, math.inf
        with self._tasks.guard_call("answering trainers that wait for orders"):
            self._send_due()

    def _send_due(self) -> None:
        loop = asyncio.get_running_loop()
        due, again = self._schedule.take_due(self._listening, loop.time())
        for rank in due:
            waiting = self._listening.pop(rank)
            if not waiting.done():
                waiting.set_result(None)
        if again is not None:
            self._wake(loop, again)

    def _pickled_for(self, rank: int) -> bytes:
        """Return a rank's orders and what it needs to reach its new workers, pickled."""
        update = self._update_of(rank)
        if update.number != self._pickled_number:
            self._pickled_number = update.number
            self._pickled.clear()
        key = _words(update)
        if key not in self._pickled:
            # A worker may be gone by now, and its handle with it.
            handles = [self._handles[worker] for worker in update.new_workers if worker in self._handles]
            error = None if update.error is None else named_error(update.error)
            update = replace(update, error=error, waiting_for=tuple(map(named, update.waiting_for)))
            dump = pickle.dumps if update.error is None else dumps  # errors may be of the user's own kinds
            self._pickled[key] = bytes(dump((update, handles)))
        return self._pickled[key]
