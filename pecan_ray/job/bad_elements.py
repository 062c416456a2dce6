"""Elements that were left out: each counted once, however often it is read, and how many of them a job bears."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job.messages import LeftOutElement
from pecan_ray.sampling.budget import over_budget

MOST_REMEMBERED = 100_000
"""Identities that are kept: the oldest ones are forgotten first."""


class BadElements:
    """Counts bad elements against the error budget."""

    def __init__(self, job: str, share: float) -> None:
        self._job, self._share = job, share
        self._known: dict[Hashable, None] = {}
        self.count = 0
        self.last: LeftOutElement | None = None

    def add(self, elements: Iterable[LeftOutElement]) -> list[LeftOutElement]:
        """Take reports of bad elements; return those that were not known."""
        fresh = []
        for one in elements:
            if one.identity in self._known:
                continue
            self._known[one.identity] = None
            while len(self._known) > MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
            self.count += one.elements
            self.last = one
            fresh.append(one)
        return fresh

    def over_budget(self, good: int) -> ErrorBudgetError | None:
        """Return the error that ends a job with too many of them beside so many good ones."""
        if self.last is None:
            return None
        last = f"{self.last.where} in {self.last.op}: {self.last.error}"
        return over_budget(self._job, self.count, good, self._share, last)
