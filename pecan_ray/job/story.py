"""What a job keeps for its report: within bounds, however long it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pecan_ray.job.stats import JobEvent

FIRST = 500
"""Events from the beginning that are kept: how a job has begun explains the most."""
NEWEST = 1500
"""Newest events that are kept.  Chosen: all that are kept are in each snapshot of the journal."""
MOST_EPOCHS = 1000
"""Newest epochs of which it is known when they ended."""


class Story:
    """What is worth telling: the first events and the newest ones, and between them how many there were."""

    def __init__(self) -> None:
        self._first: list[JobEvent] = []
        self._latest: deque[JobEvent] = deque(maxlen=NEWEST)
        self._forgotten = 0

    def add(self, event: JobEvent) -> None:
        """Tell something more."""
        if len(self._first) < FIRST:
            self._first.append(event)
            return
        self._forgotten += len(self._latest) == NEWEST
        self._latest.append(event)

    def __iter__(self) -> Iterator[JobEvent]:
        yield from self._first
        if self._forgotten:
            yield JobEvent(self._latest[0].seconds, "forgotten", f"{self._forgotten} events before this are not kept")
        yield from self._latest


class EpochEnds:
    """When the newest epochs ended, in seconds since the job began."""

    def __init__(self) -> None:
        self.over = 0
        """Number of epochs that have ended."""
        self.before = 0.0
        """When the first one began of which the end is known here."""
        self.latest: deque[float] = deque(maxlen=MOST_EPOCHS)

    def note_finished(self, over: int, seconds: float) -> None:
        """Note that so many are over by now."""
        # A job that goes on from a state has all epochs of the runs before behind it at once.
        for _ in range(over - max(self.over, over - MOST_EPOCHS)):
            if len(self.latest) == MOST_EPOCHS:
                self.before = self.latest[0]
            self.latest.append(seconds)
        self.over = over
