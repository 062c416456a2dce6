"""How many bad elements a job bears."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pecan_ray.errors import ErrorBudgetError

LEAST_BUDGET = 10
"""So many bad elements are always tolerated under skip and quarantine."""


@dataclass(frozen=True)
class BadCount:
    """How many elements were left out, and how well that is known."""

    elements: int = 0
    estimated: int = 0
    """So many of them lay behind breaks in splits whose length is estimated."""
    open_ends: int = 0
    """Breaks in splits of which nothing tells the length: each counts as one element, or none behind those that came
    before, and may be many."""

    def plus(self, elements: int, *, estimated: bool, open_end: bool) -> BadCount:
        """Add what one report tells."""
        return BadCount(
            self.elements + elements,
            self.estimated + (elements if estimated else 0),
            self.open_ends + open_end,
        )

    def __str__(self) -> str:
        if self.open_ends:
            return f"at least {self.elements}"
        return f"about {self.elements}" if self.estimated else f"{self.elements}"


def over_budget(job: str, bad: BadCount, good: int, share: float, last: str) -> ErrorBudgetError | None:
    """Return the error that ends a job with too many bad elements among all, or None.

    `share`: the budget, in [0, 1]; `last`: the newest bad element, in words.
    """
    # 0.29 of 100 are 29, although the product of the floats is less.
    budget = max(LEAST_BUDGET, math.floor(share * (good + bad.elements) + 1e-6))
    if bad.elements <= budget:
        return None
    return ErrorBudgetError(
        f"job {job}: {bad} elements could not be processed, more than the error budget allows ({budget}). "
        f"The last one: {last}. Mend the data or the function, or raise Config(error_budget=...).",
        bad=bad.elements,
    )
