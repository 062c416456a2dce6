"""Calls to actors from threads of a trainer: none of them waits inside Ray.

A thread that waits in `ray.get` does not survive the end of Ray or of the interpreter: it hangs, ends the process with
a code of its own, or crashes it; and one that calls after ``ray.shutdown()`` makes Ray begin anew.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import ray

from pecan_ray.errors import ClusterError
from pecan_ray.runtime import cluster

LOOK_S = 1.0
"""While an answer is awaited, the connection is looked at once in this time."""

# Ray begins and ends under this lock: while we hold it, neither happens.
_connecting: Any = getattr(ray._private.worker, "_connect_or_shutdown_lock", None) or threading.RLock()


class CallsClosedError(ClusterError):
    """Nobody wants the answer any more."""


class Calls:
    """The calls of one job's trainer, over the connection to Ray that it began with."""

    def __init__(self) -> None:
        self._connection = cluster.connection()
        self._closed: Future[None] = Future()

    @contextlib.contextmanager
    def connection(self) -> Iterator[None]:
        """Keep the connection while something is asked of Ray; raises `ClusterError` if it has gone."""
        with _connecting:
            if cluster.connection() != self._connection:
                raise ClusterError("Ray was shut down while the job ran: close the iterator before ray.shutdown()")
            yield

    def begin(self, method: Any, *arguments: Any) -> Any:
        """Call an actor's method; return the reference to its answer."""
        with self.connection():
            return method.remote(*arguments)

    def result(self, reference: Any, timeout_s: float | None = None) -> Any:
        """Wait for an answer; raises what the method raised, `CallsClosedError` after `close`, or `TimeoutError`.

        With a timeout the answer is awaited after `close` as well.
        """
        with self.connection():
            answer: Future[Any] = reference.future()
        awaited = {answer} if timeout_s is not None else {answer, self._closed}
        deadline = time.monotonic() + (timeout_s or 0.0)
        while answer not in wait(awaited, LOOK_S, FIRST_COMPLETED).done:
            if timeout_s is None and self._closed.done():
                raise CallsClosedError("the iterator was closed")
            if timeout_s is not None and time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            with self.connection():
                continue
        try:
            return answer.result()
        finally:
            del answer, awaited  # or an error would hold this frame, the frame the answer, and that the error

    def ask(self, method: Any, *arguments: Any) -> Any:
        """Call an actor's method and wait for its answer."""
        return self.result(self.begin(method, *arguments))

    def kill(self, actor: Any) -> None:
        """End an actor."""
        with self.connection():
            ray.kill(actor)

    def close(self) -> None:
        """Let all threads go that wait for an answer."""
        if not self._closed.done():
            self._closed.set_result(None)
