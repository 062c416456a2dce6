"""Calls to actors from threads of a trainer: none of them waits inside Ray.

A thread that waits in `ray.get` does not survive the end of Ray or of the interpreter: it hangs, ends the process with
a code of its own, or crashes it; one that calls after ``ray.shutdown()`` makes Ray begin anew; and one that drops the
last reference to an answer while Ray ends makes Ray end the process.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import ray

from pecan_ray.errors import ClusterError, PecanError
from pecan_ray.job.registration import RESTART_S
from pecan_ray.runtime import cluster

LOOK_S = 1.0
"""While an answer is awaited, the connection is looked at once in this time, which costs a wake-up."""
STANDSTILL_S = 5.0
"""A process that does nothing for so long, though it only waits, stands still."""
JUST_S = 10.0
"""What a process meets within so long after a standstill may come from it."""
PAUSE_S = 0.2
"""Between calls of an actor that cannot be reached."""

# Ray begins and ends under this lock: while we hold it, neither happens.
_connecting: Any = getattr(ray._private.worker, "_connect_or_shutdown_lock", None) or threading.RLock()


class CallsClosedError(ClusterError):
    """Nobody wants the answer any more."""


class PendingResponse:
    """What an actor was asked for, as long as somebody may want it."""

    def __init__(self, reference: Any) -> None:
        self.future: Future[Any] | None = reference.future()  # which holds the reference

    def add_callback(self, call: Callable[[Future[Any]], None]) -> None:
        """Have a function called in a thread of Ray's once the answer is there."""
        if self.future is not None:
            self.future.add_done_callback(call)

    def close(self) -> None:
        """Drop it, while Ray can neither begin nor end."""
        with _connecting:
            self.future = None


class Calls:
    """The calls of one job's trainer, over the connection to Ray that it began with."""

    def __init__(self) -> None:
        self._connection = cluster.connection()
        self._closed: Future[None] = Future()
        self._stalled, self._wake_time = 0.0, -math.inf
        """For how many seconds this process has last stood still, and when that was over."""

    @contextlib.contextmanager
    def connection(self) -> Iterator[None]:
        """Keep the connection while something is asked of Ray; raises `ClusterError` if it has gone."""
        with _connecting:
            if cluster.connection() != self._connection:
                raise ClusterError("Ray was shut down while the job ran: close the iterator before ray.shutdown()")
            yield

    def begin(self, method: Any, *arguments: Any) -> PendingResponse:
        """Call an actor's method; return its answer, which must be waited for by `result`, or closed."""
        with self.connection():
            return PendingResponse(method.remote(*arguments))

    def stream(self, method: Any, *arguments: Any) -> Any:
        """Call an actor's method that yields; return the references to what it yields."""
        with self.connection():
            return method.remote(*arguments)

    def tell(self, method: Any, *arguments: Any) -> None:
        """Call an actor's method whose answer nobody wants."""
        with self.connection():
            method.remote(*arguments)

    def result(
        self, answer: PendingResponse, timeout_s: float | None = None, meanwhile: Callable[[], None] | None = None
    ) -> Any:
        """Wait for an answer; raises what the method raised, `CallsClosedError` after `close`, or `TimeoutError`.

        With a timeout the answer is awaited after `close` as well.  `meanwhile` is called once in `LOOK_S`.
        """
        future = answer.future
        assert future is not None
        awaited = {future} if timeout_s is not None else {future, self._closed}
        deadline = time.monotonic() + (timeout_s or 0.0)
        try:
            while future not in self._wait(awaited):
                if timeout_s is None and self._closed.done():
                    raise CallsClosedError("the iterator was closed")
                if timeout_s is not None and time.monotonic() > deadline:
                    raise TimeoutError(f"no answer within {timeout_s:g} s")
                # If Ray was shut down, this raises: an answer of that Ray need not come any more.
                with self.connection():
                    pass
                if meanwhile is not None:
                    meanwhile()
            return future.result()
        finally:
            with _connecting:
                answer.close()
                # And an error would hold this frame, the frame the answer, and that the error.
                del future, awaited

    def _wait(self, awaited: set[Future[Any]]) -> set[Future[Any]]:
        """Wait for a moment; return what is there, and note if this process has stood still meanwhile."""
        started = time.monotonic()
        done = wait(awaited, LOOK_S, FIRST_COMPLETED).done
        woke = time.monotonic()
        if woke - started > LOOK_S + STANDSTILL_S:
            self._stalled, self._wake_time = woke - started, woke
        return done

    def ask(self, method: Any, *arguments: Any) -> Any:
        """Call an actor's method and wait for its answer."""
        return self.result(self.begin(method, *arguments))

    def retry(self, method: Any, *arguments: Any, meanwhile: Callable[[], None] | None = None) -> Any:
        """Call a method that bears to be called twice, of an actor that Ray starts again when its process is lost.

        `meanwhile` is called now and then until the answer is there: who waits says so.  Raises `ClusterError` where
        the actor does not come again.
        """
        until: float | None = None
        while True:
            try:
                return self.result(self.begin(method, *arguments), meanwhile=meanwhile)
            except ray.exceptions.ActorUnavailableError as error:
                until = time.monotonic() + RESTART_S if until is None else until
                if time.monotonic() > until:
                    raise self.lost_error(error) from error
                # Not a sleep, because `close` ends this wait at once.
                wait({self._closed}, PAUSE_S)
                if meanwhile is not None:
                    meanwhile()
            except ray.exceptions.RayActorError as error:
                raise self.lost_error(error) from error

    def lost_error(self, error: ray.exceptions.RayError) -> PecanError:
        """Say why the controller does not answer, or not as it should."""
        if isinstance(error, ray.exceptions.RayTaskError):
            if isinstance(error.cause, PecanError):
                return error.cause
            return ClusterError(f"a call of the job's controller has failed: {error}. Start the run again.")
        try:
            with self.connection():
                if time.monotonic() - self._wake_time < JUST_S:
                    return ClusterError(
                        f"this process has stood still for {self._stalled:.0f} s (it was stopped, or native code "
                        "held Python's lock), and the controller of its job is gone: it ends a job whose trainers are "
                        "not heard for Config(trainer_timeout_s=...), where nobody can tell it that their processes "
                        "exist. Start the run again, from its last state, or raise trainer_timeout_s. Ray says: "
                        f"{error}"
                    )
                return ClusterError(
                    f"the controller of the job is gone ({type(error).__name__}): {error}. Its node or process was "
                    "lost, and it could not go on from its journal; start the run again."
                )
        except ClusterError as disconnected:
            return disconnected

    def kill(self, actor: Any) -> None:
        """End an actor."""
        with self.connection():
            ray.kill(actor)

    def close(self) -> None:
        """Let all threads go that wait for an answer."""
        if not self._closed.done():
            self._closed.set_result(None)
