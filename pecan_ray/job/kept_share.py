"""How much of a job's work a cache spares its workers, and whether that is another share than it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pecan_ray.job.messages import WorkerProgress

OTHER_WORK = 0.5
"""Where the share of the elements that come out of a cache has changed by so much, workers do other work: what was
measured of them says nothing about it."""


@dataclass
class KeptShare:
    """Compares what workers have told with what they had told before."""

    _kept: int = 0
    _computed: int = 0

    def lately(self, told: Iterable[WorkerProgress]) -> float | None:
        """Return the share of what came since the last answer that was kept; None: nothing came, or nobody caches."""
        all_told = tuple(told)
        kept, computed = sum(one.kept for one in all_told), sum(one.computed for one in all_told)
        new_kept, new = kept - self._kept, kept + computed - self._kept - self._computed
        if new <= 0:
            return None
        self._kept, self._computed = kept, computed
        return min(1.0, max(0.0, new_kept / new))


def is_other_work(before: float | None, now: float | None) -> bool:
    """Tell whether workers do other work by their shares of kept elements; one that is not known says nothing."""
    return before is not None and now is not None and abs(now - before) >= OTHER_WORK
