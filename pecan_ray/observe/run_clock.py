"""The clock of one run: it knows at any time what the program's time goes into."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from pecan_ray.job.run_time import RunTime

RunPart: TypeAlias = Literal["ray", "controller", "order", "first_batch", "waited", "converted", "trained"]


class RunClock:
    """Adds up the seconds of each part; exactly one part runs at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._consumed: dict[RunPart, float] = {}
        # From the call of `iter_batches()` on: Ray's start took 10 of 13 s, and no report had it
        # (docs/decisions/observing.md#58-bottlenecks-by-stacks).
        self._part: RunPart | None = "order"
        """What runs; None: it is over."""
        self._since = clock()

    def enter(self, part: RunPart, *, at: float | None = None) -> None:
        """Let another part run from now on, or from a moment on that has passed since the last change."""
        if self._part is not None:
            self._change(part, self._clock() if at is None else at)

    def stop(self) -> None:
        """The run is over: nothing counts from now on."""
        if self._part is not None:
            self._change(None, self._clock())

    def _change(self, part: RunPart | None, now: float) -> None:
        if self._part is not None:
            self._consumed[self._part] = self._consumed.get(self._part, 0.0) + max(0.0, now - self._since)
        self._part, self._since = part, now

    def so_far(self) -> RunTime:
        """Return the seconds of all parts, with those of the one that runs."""
        spent, part = dict(self._consumed), self._part
        if part is not None:
            spent[part] = spent.get(part, 0.0) + max(0.0, self._clock() - self._since)
        return RunTime(**{f"{name}_s": seconds for name, seconds in spent.items()})
