"""When a job shall be over, as a user says it."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from datetime import datetime, timedelta

from pecan_ray.errors import PlanError


@dataclass(frozen=True)
class Deadline:
    """The job shall have ended by then: so many seconds (or a `timedelta`) after it begins, or at a `datetime`.

    A `datetime` without a time zone is one of the trainer's clock.
    """

    end: float | timedelta | datetime

    def __post_init__(self) -> None:
        if isinstance(self.end, datetime):
            return
        seconds = self.end.total_seconds() if isinstance(self.end, timedelta) else self.end
        if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real) or not 0 < seconds < math.inf:
            raise PlanError(
                f"Deadline(...) must be a positive number of seconds, a timedelta or a datetime, but got {self.end!r}."
            )

    def seconds_from(self, now: datetime) -> float:
        """Return how many seconds a job has that begins now, which has a time zone.

        Raises `PlanError` for an end that is over.
        """
        if isinstance(self.end, timedelta):
            return self.end.total_seconds()
        if not isinstance(self.end, datetime):
            return float(self.end)
        seconds = (self.end.astimezone(now.tzinfo) - now).total_seconds()
        if seconds <= 0:
            raise PlanError(f"Deadline({self.end.isoformat(sep=' ')}) was over {-seconds:.0f} s ago.")
        return seconds
