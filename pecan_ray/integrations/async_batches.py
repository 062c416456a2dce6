"""Batches for `async for`: a thread waits for them, and the event loop goes on."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeAlias

from pecan_ray.errors import PlanError

Errand: TypeAlias = "tuple[Future[tuple[Any, BaseException | None]], Callable[[], Any]] | None"
"""What a thread shall call, and where its outcome goes; None: end."""


class AsyncBatches:
    """Batches of a job, to be awaited; use it in ``async with``, or `aclose` it, where a loop is left early.

    The job begins with the first batch that is asked for.  A wait that is cancelled loses nothing: its batch comes to
    the one who asks next.  Several tasks may iterate: each batch goes to one of them.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._run = JobOfThread(begin)
        self._requests: queue.SimpleQueue[Errand] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left: deque[Future[tuple[Any, BaseException | None]]] = deque()
        """Waits that were cancelled."""
        # Ends the thread when nobody has the iterator. At the interpreter's end it goes as a daemon.
        weakref.finalize(self, self._requests.put, None).atexit = False

    @property
    def batches(self) -> Any:
        """The `Batches` behind it, for `report()` and `scale()`; None before the first one was asked for."""
        return self._run.batches

    def __aiter__(self) -> AsyncBatches:
        return self

    async def __anext__(self) -> Any:
        waited = self._left.popleft() if self._left else self._ask(self._run.next)
        try:
            batch, error = await asyncio.wrap_future(waited)
        except asyncio.CancelledError:
            self._left.append(waited)
            raise
        if isinstance(error, StopIteration):
            raise StopAsyncIteration
        if error is not None:
            raise error
        return batch

    async def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, as `Batches.state_dict`; raises PlanError while a cancelled wait has a batch."""
        if self._left:
            raise PlanError(
                "state_dict: a wait for a batch was cancelled, whose batch nobody has: take it first (anext), or it "
                "would be missing."
            )
        state, error = await asyncio.wrap_future(self._ask(self._run.state_dict))
        if error is not None:
            raise error
        return dict(state)

    async def aclose(self) -> None:
        """End the job; who waits for a batch meanwhile comes to the end."""
        ended: Future[tuple[Any, BaseException | None]] = Future()
        ended.set_running_or_notify_cancel()
        asked: queue.SimpleQueue[Errand] = queue.SimpleQueue()
        for one in ((ended, self._run.close), None):
            asked.put(one)
        # In a thread of its own, because the other one may be waiting for a batch.
        threading.Thread(target=_serve, args=(asked,), name="pecan-aclose", daemon=True).start()
        _, error = await asyncio.wrap_future(ended)
        if error is not None:
            raise error

    async def __aenter__(self) -> AsyncBatches:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _ask(self, call: Callable[[], Any]) -> Future[tuple[Any, BaseException | None]]:
        """Let the thread call something; not one of the event loop's, whose end would wait for a batch."""
        outcome: Future[tuple[Any, BaseException | None]] = Future()
        outcome.set_running_or_notify_cancel()  # to cancel a wait does not cancel what is waited for
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(self._requests,), name="pecan-async", daemon=True)
            self._thread.start()
        self._requests.put((outcome, call))
        return outcome


class JobOfThread:
    """A job that a thread begins and iterates over, and that another one may close at any time."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self.batches: Any = None
        self._closed = False

    def next(self) -> Any:
        """Return the next batch; raises StopIteration behind the last one, and when it was closed."""
        if self.batches is None and not self._closed:
            self.batches = self._begin()
            # It was closed by another thread while it began.
            if self._closed:
                self.batches.close()
        if self.batches is None:
            raise StopIteration
        return next(self.batches)

    def state_dict(self) -> dict[str, Any]:
        """Return where the job stands."""
        if self.batches is None:
            raise PlanError("state_dict: the job begins with the first batch, which nobody has asked for.")
        return dict(self.batches.state_dict())

    def close(self) -> None:
        """End the job."""
        self._closed = True
        if self.batches is not None:
            self.batches.close()


def _serve(asked: queue.SimpleQueue[Errand]) -> None:
    """Call what is asked for; holds nothing while it waits, so that an iterator that nobody has can go."""
    while (one := asked.get()) is not None:
        outcome, call = one
        try:
            result: tuple[Any, BaseException | None] = (call(), None)
        except BaseException as error:  # it is the awaiting task's
            result = (None, error)
        outcome.set_result(result)
        del one, outcome, call, result
