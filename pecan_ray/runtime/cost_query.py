"""What a job has cost so far, asked for without waiting."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from typing import Any

from pecan_ray.errors import ClusterError
from pecan_ray.runtime.calls import Calls, PendingResponse


class CostQuery:
    """The newest answer of the controller; a call that finds no question under way asks the next one."""

    def __init__(self, calls: Calls, controller: Any) -> None:
        self._calls, self._controller = calls, controller
        self._pending: PendingResponse | None = None
        self._dollars: float | None = None

    def __call__(self) -> float | None:
        """Return the dollars that the controller has told last; None before it has told any."""
        asked = self._pending
        future: Future[Any] | None = None if asked is None else asked.future
        # One question at a time, however often the loop asks.
        if asked is not None and (future is None or not future.done()):
            return self._dollars
        if asked is not None and future is not None:
            if not future.cancelled() and future.exception() is None:
                self._dollars = future.result()
            asked.close()
        with contextlib.suppress(ClusterError):  # the job is being closed, or Ray has ended
            self._pending = self._calls.begin(self._controller.cost_so_far)
        return self._dollars

    def close(self) -> None:
        """Want no more answers."""
        if self._pending is not None:
            self._pending.close()
