"""How many bad elements a job bears."""

from __future__ import annotations

from pecan_ray.errors import ErrorBudgetError

LEAST_BUDGET = 10
"""So many bad elements are always tolerated under skip and quarantine."""


def over_budget(job: str, bad: int, good: int, share: float, last: str) -> ErrorBudgetError | None:
    """Return the error that ends a job with too many bad elements among all, or None.

    `share`: the budget, in [0, 1]; `last`: the newest bad element, in words.
    """
    budget = max(LEAST_BUDGET, share * (good + bad))
    if bad <= budget:
        return None
    return ErrorBudgetError(
        f"job {job}: {bad} elements could not be processed, more than the error budget allows ({budget:.0f}). "
        f"The last one: {last}. Mend the data or the function, or raise Config(error_budget=...).",
        bad=bad,
    )
