"""How many bad elements a job bears."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.plan.splits import OUTPUT_BITS, LeaseKey
from pecan_ray.sampling.spans import Span, merged

LEAST_BUDGET = 10
"""The number of bad elements that skip and quarantine always tolerate: of short data sets a share would be none."""


@dataclass(frozen=True)
class BadCount:
    """How many elements were left out, and how well that is known."""

    elements: int = 0
    estimated: int = 0
    """The number of those that lay behind breaks in splits of estimated length."""
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


def elements_in_hand(
    bad: Mapping[LeaseKey, Collection[int]], unfinished: Iterable[tuple[LeaseKey, Iterable[Span]]]
) -> int:
    """Return how many elements are read for certain, and neither told as bad nor delivered.

    Elements of a split are read one after the other, and a bad one is told at once, while good ones wait for others in
    a batch, a shuffle or a queue.  So all that is unfinished before the last bad element of its split is in hand.

    Args:
        bad: the numbers of the elements of each split that are bad.
        unfinished: positions of splits that have come to no trainer.
    """
    ends = {key: max(numbers) for key, numbers in bad.items() if numbers}
    spans: dict[LeaseKey, list[Span]] = {}
    for key, intervals in unfinished:
        if (end := ends.get(key)) is not None:
            elements = [(start >> OUTPUT_BITS, min(end, -(-stop >> OUTPUT_BITS))) for start, stop in intervals]
            spans.setdefault(key, []).extend(elements)
    # An element of which some outputs have come counts as one until all have: how many there are, nobody knows.
    return sum(
        stop - start - sum(start <= number < stop for number in bad[key])
        for key, elements in spans.items()
        for start, stop in merged(elements)
    )


def over_budget(job: str, bad: BadCount, good: int, share: float, last: str) -> ErrorBudgetError | None:
    """Return the error that ends a job with too many bad elements among all, or None.

    `good`: elements that were processed and are not bad, those included that are in hand; `share`: the budget, in
    [0, 1]; `last`: the newest bad element, in words.
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
