"""Threads for requests.  They are daemons: a program ends also while one of them waits for a storage that is down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class RequestThreads:
    """Up to so many threads, started as they are needed, which make calls in the order in which they are given."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        """Guards how many threads run and how many calls are not finished."""
        self._running = self._unfinished = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Let a thread make a call; return what will hold its result."""
        result: Future[T] = Future()

        def run() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                result.set_result(call())
            # For whoever waits for the future: without it they would wait for ever.
            except BaseException as error:
                result.set_exception(error)

        self.start(run)
        return result

    def start(self, call: Callable[[], None]) -> None:
        """Let a thread make a call that raises nothing."""
        with self._lock:
            self._calls.put(call)
            self._unfinished += 1
            # A thread that has nothing to do takes this call, as fewer calls are unfinished than threads run.
            if self._running < min(self._unfinished, self._most):
                self._running += 1
                threading.Thread(target=self._work, name="pecan-storage", daemon=True).start()

    def _work(self) -> None:
        while True:
            call = self._calls.get()
            call()
            del call  # it holds what it has fetched
            with self._lock:
                self._unfinished -= 1
