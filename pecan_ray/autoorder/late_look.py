"""A look that goes on beside its jobs, and ends with the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class JobEnd:
    """The end of a job, and what ends with it; both can come from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards what ends with the job, and whether it is over."""
        self._ending: list[Callable[[], None]] = []
        self._over = False

    @property
    def over(self) -> bool:
        """Whether it has come."""
        return self._over

    def finish(self) -> None:
        """End what was to end; once."""
        with self._lock:
            self._over = True
            ending, self._ending = self._ending, []
        # Outside of the lock: an end may take long, and `when` and `ends` take the lock from any thread.
        for end in ending:
            end()

    def when(self, end: Callable[[], None]) -> None:
        """Call this at the end, which may be now."""
        with self._lock:
            if not self._over:
                self._ending.append(end)
                return
        end()

    @contextmanager
    def ends(self, end: Callable[[], None]) -> Iterator[None]:
        """Call this at the end, if that comes in the meantime."""
        self.when(end)
        try:
            yield
        finally:
            with self._lock:
                self._ending = [one for one in self._ending if one is not end]


class LateLook(Generic[T]):
    """A look in a thread of its own, which does not keep the program from ending."""

    def __init__(self, look: Callable[[JobEnd], T]) -> None:
        """`look`: is given the end of the last job that waits for it."""
        self.found = Future[T]()
        self._look, self._end = look, JobEnd()
        self._lock = threading.Lock()
        """Guards the number of jobs that wait for the look."""
        self._jobs = 0
        threading.Thread(target=self._run, name="pecan-look", daemon=True).start()

    def _run(self) -> None:
        try:
            self.found.set_result(self._look(self._end))
        except BaseException as error:  # who asks for the result gets it
            self.found.set_exception(error)

    def joined(self, job: JobEnd) -> bool:
        """Let it go on until a job ends, and longer where others want it; false if its last job has ended."""
        with self._lock:
            if self._end.over:
                return False
            self._jobs += 1
        # Outside of the lock: if the job has ended, `_left` is called at once and takes it.
        job.when(self._left)
        return True

    def _left(self) -> None:
        with self._lock:
            self._jobs -= 1
            if self._jobs:
                return
        # Outside of the lock: this ends a process, and `joined` must not wait for that.
        self._end.finish()
