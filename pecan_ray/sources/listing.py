"""The first splits of a source, as far as they are soon known."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pecan_ray.plan.splits import Source, Split

# docs/decisions/autoorder.md#24-kept-orders-and-reverting: who looks at some data need not list a bucket to
# its end.
MOST_LISTED = 4096
"""Most splits of a source that are listed."""
LISTING_S = 0.25
"""Most seconds for which a source is listed."""


@dataclass(frozen=True)
class FirstSplits:
    """The first splits of a source."""

    splits: tuple[Split, ...]
    complete: bool
    """Whether there are no more."""

    @property
    def elements(self) -> int | None:
        """How many elements the source has; None if that is not known."""
        known = [split.elements for split in self.splits if split.elements is not None]
        return sum(known) if self.complete and len(known) == len(self.splits) else None


def list_splits(source: Source, clock: Callable[[], float] = time.perf_counter) -> FirstSplits:
    """Return a source's splits, as far as they are soon known."""
    found: list[Split] = []
    until = clock() + LISTING_S
    for split in source.splits():
        found.append(split)
        if len(found) == MOST_LISTED or clock() > until:
            return FirstSplits(tuple(found), complete=False)
    return FirstSplits(tuple(found), complete=True)
