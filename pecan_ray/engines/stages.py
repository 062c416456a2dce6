"""Where a worker's time goes, found by looking at the stacks of its threads many times a second.

Elements pay nothing for it, and a look costs less than a tenth of a millisecond.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, TypeAlias

from pecan_ray.plan.stage_seconds import StageSeconds

# A short job needs many looks to say anything; a long one has them at any rate
# (docs/decisions/observing.md#58-bottlenecks-by-stacks).
OFTEN_S = 0.05
"""Between two looks in the first seconds of work."""
OFTEN_FOR_S = 20.0
"""Seconds of work in which looks are so frequent."""
SELDOM_S = 0.25
"""Between two looks later on: a look takes 57 us with eight threads."""


class ThreadStage(NamedTuple):
    """What a thread does."""

    kind: Literal["operator", "reading", "batching", "blocked"]
    operator: str = ""
    in_process: bool = False
    """It waits for a function that runs in another process."""


Recognized: TypeAlias = Callable[[Mapping[str, Any]], "ThreadStage | None"]
"""Tells from the local variables of a function in which stage its thread is; None for what is another engine's."""


def stages_now(known: Mapping[CodeType, Recognized]) -> Counter[ThreadStage]:
    """Count this process's threads by their stage: by the innermost function of each that is known."""
    found: Counter[ThreadStage] = Counter()
    for frame in sys._current_frames().values():
        stage = _innermost(frame, known)
        if stage is not None:
            found[stage] += 1
    return found


def _innermost(frame: FrameType | None, known: Mapping[CodeType, Recognized]) -> ThreadStage | None:
    while frame is not None:
        inspect_locals = known.get(frame.f_code)
        if inspect_locals is not None:
            # Operators pull from sources on one stack: the innermost function is the one at work.
            return inspect_locals(frame.f_locals)
        frame = frame.f_back
    return None


class StageAccumulator:
    """Adds up what looks have found; one thread looks, any may read."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu_clock: Callable[[], float] = time.process_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._lock = threading.Lock()
        """Guards what follows."""
        self._working = False
        self._last_lookup, self._cpu = clock(), cpu_clock()
        self._sums = StageSeconds()

    @property
    def seconds(self) -> StageSeconds:
        """What was found so far."""
        return self._sums

    @property
    def every_s(self) -> float:
        """When to look again."""
        return OFTEN_S if self._sums.observed_s < OFTEN_FOR_S else SELDOM_S

    def work(self, working: bool) -> None:
        """Note that there is work from now on, or none."""
        with self._lock:
            self._working = working
            self._last_lookup, self._cpu = self._clock(), self._cpu_clock()

    def look(self, stages: Mapping[ThreadStage, int], threads: int, locked: bool = False) -> None:
        """Take what threads do now for what they did since the last look.

        Args:
            stages: Threads by their stage.
            threads: Number of threads that the engine has for operators.
            locked: Whether the thread that looks had to wait for Python's lock.
        """
        with self._lock:
            if not self._working:
                return
            now, cpu = self._clock(), self._cpu_clock()
            spent, self._last_lookup = now - self._last_lookup, now
            cpu_s, self._cpu = cpu - self._cpu, cpu
            threads_in = Counter[str]()
            for stage, count in stages.items():
                threads_in[stage.kind] += count
            self._sums += StageSeconds(
                observed_s=spent,
                threads_s=spent * threads,
                cpu_s=cpu_s,
                reading_s=spent * threads_in["reading"],
                batching_s=spent * threads_in["batching"],
                # Not per thread: one batch that waits for memory holds up the worker as much as two do.
                blocked_s=spent if threads_in["blocked"] else 0.0,
                operators=tuple((stage.operator, spent * n) for stage, n in stages.items() if stage.kind == "operator"),
                in_processes=tuple(stage.operator for stage in stages if stage.in_process),
                locked_s=spent if locked else 0.0,
            )
