"""The tasks and callbacks of a job in its controller: what goes wrong in one of them ends the job.

Were the error in a log alone, the job would wait for ever, or end short as if all were well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from pecan_ray.errors import ClusterError, PecanError, describe_error

Failed: TypeAlias = Callable[[str, Exception], None]
"""Ends the job with an error; it is given what was being done."""


class JobTasks:
    """What is under way on a job's event loop."""

    def __init__(self, failed: Failed) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def guard_call(self, doing: str) -> Iterator[None]:
        """Let an error inside end the job, and go on behind it."""
        try:
            yield
        except Exception as error:  # whatever was not foreseen
            self._failed(doing, error)

    def begin(self, doing: str, work: Callable[..., Awaitable[object]], *arguments: Any) -> asyncio.Task[None]:
        """Begin with something; `doing` says what, if it fails."""
        task = asyncio.ensure_future(self._guard(doing, work, arguments))
        # asyncio keeps no reference to a task that is under way.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, doing: str, work: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        with self.guard_call(doing):
            await work(*arguments)

    def cancel(self) -> None:
        """End all that is under way."""
        for task in self._tasks:
            task.cancel()


def unexpected_failure(job: str, doing: str, error: Exception) -> PecanError:
    """Return the error that a job ends with; ours say what is wrong by themselves."""
    if isinstance(error, PecanError):
        return error
    return ClusterError(
        f"job {job}: its controller has failed while {doing}: {describe_error(error)}. The controller's log holds the "
        "traceback; start the run again, or from its last state."
    )
