"""How many workers of an epoch have died with each of its batches (decision 151)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pecan_ray.job.fatal_elements import FatalElementTracker
from pecan_ray.job.lease_rows import has_row, intervals
from pecan_ray.job.suspicion import Suspicion
from pecan_ray.plan.splits import Lease
from pecan_ray.sampling.spans import Span

STRIKES = 2
"""A batch is made apart once so many workers have died with it, and is to blame once so many have died of it alone: one
death may be anything's."""


class FatalBatches:
    """Deaths of workers by the rows that they held: those of a batch together, or one by one where it was divided."""

    def __init__(self, batch_size: int, *, divides: bool) -> None:
        """`batch_size`: rows of a batch.  `divides`: the element to blame is looked for within its batch."""
        self._batch_size, self._may_split = batch_size, divides
        self._died_with: Counter[int] = Counter()
        """By batch."""
        self._died_of: Counter[Span] = Counter()
        """Of workers that worked on nothing but these rows."""
        self._split_batches: set[int] = set()
        """Batches whose rows are made one by one."""

    def clear(self) -> None:
        """Forget all deaths, because another epoch begins."""
        self._died_with.clear()
        self._died_of.clear()
        self._split_batches.clear()

    def unit(self, row: int) -> Span:
        """Return the rows that are made apart together with one: the first, and the one behind the last."""
        size, batch = self._batch_size, row // self._batch_size
        return (row, row + 1) if batch in self._split_batches else (batch * size, (batch + 1) * size)

    def is_suspected(self, row: int) -> bool:
        """Tell whether a row is made apart."""
        return self._died_with[row // self._batch_size] >= STRIKES

    def next_suspected_row(self, row: int) -> int | None:
        """Return the first row behind a row with which rows begin that are made apart; None if there is none."""
        if self.is_suspected(row) and row // self._batch_size in self._split_batches:
            return row + 1
        begins = (batch * self._batch_size for batch, died in self._died_with.items() if died >= STRIKES)
        return min((first for first in begins if first > row), default=None)

    def died(
        self, alone: Span | None, rest: Sequence[Lease], by: Suspicion, fatal_elements: FatalElementTracker
    ) -> str:
        """Note that a worker has died with leases; return why rows cannot come in order any more, if so.

        `alone`: it worked on nothing but these rows, but may hold others, which wait for their turn.
        """
        # Decision 36: a worker that hangs names its element, so that its batch need not be divided.
        if self._may_split and by.at is not None:
            fatal_elements.hung(rest, by, *by.at)
            return ""
        if alone is None:
            self._suspect(rest)
            return ""
        return self._blame(alone, rest, by, fatal_elements) if self._may_split else self._count(alone, rest)

    def _suspect(self, held: Sequence[Lease]) -> None:
        """Note a death with all batches of which a worker held rows."""
        # Decision 151: a death says something about the batches that the worker held, and nothing about the order.
        size = self._batch_size
        intervals_held = (rows for lease in held for rows in intervals(lease) if rows[0] < rows[1])
        batches = {batch for first, end in intervals_held for batch in range(first // size, -(-end // size))}
        self._died_with.update(batches)

    def _count(self, alone: Span, rest: Sequence[Lease]) -> str:
        """Note a death of rows alone; return why the job cannot go on, if so many have died of them."""
        self._died_of[alone] += 1
        if self._died_of[alone] < STRIKES:
            return ""
        (first, end), files = alone, sorted({one.split.path for one in rest if one.split.path})
        of = f" of {', '.join(files)}" if files else ""
        return (
            f"{STRIKES} workers have died one after the other that worked on rows {first} to {end - 1} of "
            f"epoch{of} alone, and {STRIKES} more with these and others"
        )

    def _blame(self, alone: Span, rest: Sequence[Lease], by: Suspicion, fatal_elements: FatalElementTracker) -> str:
        """Let the rows of a batch be made one by one, or one that two workers have died of yield nothing.

        Returns why the job cannot go on, if so.
        """
        (first, end), batch = alone, alone[0] // self._batch_size
        mine = next((one for one in rest if has_row(one, first)), None)
        if end - first > 1:
            self._split_batches.add(batch)
        elif mine is not None:
            self._died_of[alone] += 1
            if self._died_of[alone] >= STRIKES:
                if why := fatal_elements.blame_in_order(mine, first - (mine.row or 0), by):
                    return why
                # The element is found, so the rest of its batch is made as one again.
                self._split_batches.discard(batch)
                del self._died_with[batch]
        return ""
