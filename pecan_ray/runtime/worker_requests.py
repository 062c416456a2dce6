"""What a worker asks its job by calls of Ray, and the leases that its engine waits for."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray

from pecan_ray.engines.contract import BadElement
from pecan_ray.job.lease_sizes import ONE_BY_ONE, SideBySide
from pecan_ray.job.messages import Reply, SplitOpenFailure, WorkerRequestReceived
from pecan_ray.job.worker_events import AskJob, LeaseRequested, ReplyReceived, SplitOpenFailed, SplitRead, WorkerEvent
from pecan_ray.plan.splits import Lease
from pecan_ray.runtime.calls import PAUSE_S
from pecan_ray.runtime.messages import left_out_whole

END_S = 3.0
"""At the end of a job its controller answers all that it was asked."""


def retry(method: Any, *arguments: Any) -> Any:
    """Wait for a controller's answer, and call again while its process is lost, and Ray starts it again.

    Nobody need give up: what keeps the workers ends them where it does not come.
    """
    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.ActorUnavailableError:
            time.sleep(PAUSE_S)


@dataclass(frozen=True)
class PendingRequest:
    """A question that was asked, and may have to be asked again."""

    request: AskJob
    pickled: bytes
    response: Any
    """Ray's reference to it."""

    def add_callback(self, call: Callable[[Reply], None]) -> None:
        """Have a function called with the answer in a thread of Ray's, if it comes without being asked for again."""

        def on_response(came: Future[bytes]) -> None:
            if came.exception() is None:  # else whoever needs the answer sees it
                call(pickle.loads(came.result()))

        self.response.future().add_done_callback(on_response)


class WorkerRequests:
    """The questions of a worker that are under way, by channel."""

    def __init__(self, worker: str, controller: Any) -> None:
        self._worker, self._controller = worker, controller
        self._pending: dict[str, PendingRequest] = {}

    def begin(self, asked: AskJob) -> PendingRequest:
        """Ask a question."""
        # Ray passes bytes on as they are, which costs the controller less than an object.
        pickled = pickle.dumps(WorkerRequestReceived(self._worker, asked.channel, asked.number, asked.request))
        pending = PendingRequest(asked, pickled, self._controller.ask.remote(pickled))
        self._pending[asked.channel] = pending
        return pending

    def end(self, *others: Any) -> bool:
        """Wait until the controller has had all that it was asked, and these other calls; return whether it has."""
        calls = [one.response for one in self._pending.values()] + [one for one in others if one is not None]
        return not calls or len(ray.wait(calls, num_returns=len(calls), timeout=END_S)[0]) == len(calls)

    def __contains__(self, channel: str) -> bool:
        return channel in self._pending

    def wait(self, channel: str) -> ReplyReceived:
        """Wait for the answer of a channel; where the controller's process is lost, the next one is asked the same."""
        pending = self._pending.pop(channel)
        try:
            answer = ray.get(pending.response)
        except ray.exceptions.ActorUnavailableError:
            # The same bytes: the next process knows by the number whether the one before has
            # answered (decision 22).
            answer = retry(self._controller.ask, pending.pickled)
        return ReplyReceived(channel, pending.request.number, pickle.loads(answer))


class EngineLeases:
    """A worker's leases, as the threads of its engine see them: each waits here for the one that it wants."""

    def __init__(
        self,
        job_requests: WorkerRequests,
        happened: Callable[[WorkerEvent], None],
        threads: Callable[[], int],
        ends_runs: Callable[[], bool],
    ) -> None:
        """`happened`: takes an event, and performs what is to be done about it.

        `threads`: counts the engine's; `ends_runs`: tells whether it gives up what fills no batch at a run's end.
        """
        self._worker_requests, self._happened = job_requests, happened
        self._threads, self._ends_runs = threads, ends_runs
        self._waiting: dict[int, threading.Lock] = {}
        """Of each source: whoever takes a lease waits for it with this."""
        self._given: dict[int, Lease | None] = {}

    def take(self, branch: int = 0, *, unread: bool = False) -> Lease | None:
        """Return the next lease, or None at the end of the assignment; `unread`: it is likely not to be read."""
        return self._take(LeaseRequested(branch, ONE_BY_ONE, unread, self._threads(), self._ends_runs()))

    def take_concurrent(self, branch: int, reading: int, streams: int) -> Lease | None:
        """Return the next lease while `reading` others are worked on, of `streams` at a time; None: not now."""
        side = SideBySide(streams, reading)
        return self._take(LeaseRequested(branch, side, False, self._threads(), self._ends_runs()))

    def _take(self, wanted: LeaseRequested) -> Lease | None:
        branch = wanted.branch
        # One at a time of each source: the state answers a request before it takes the next one.
        with self._waiting.setdefault(branch, threading.Lock()):
            self._happened(wanted)
            while branch not in self._given:
                self._happened(self._worker_requests.wait(f"take:{branch}"))
            return self._given.pop(branch)

    def put_lease(self, branch: int, lease: Lease | None) -> None:
        """Let the thread have a lease that waits for it; None: there is none."""
        self._given[branch] = lease

    def ended(self, lease: Lease, elements: int) -> None:
        """Report the length of a split."""
        self._happened(SplitRead(lease.key, elements))

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Say that this worker cannot open a split: the job gives it to others."""
        self._happened(SplitOpenFailed(SplitOpenFailure(lease.key, lease.spans, left_out_whole([bad])[0])))
        return True
