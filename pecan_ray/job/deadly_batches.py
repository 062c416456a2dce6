"""How many workers of an epoch have died with each of its batches (decision 151)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

STRIKES = 2
"""A batch is made apart once so many workers have died with it, and is to blame once so many have died of it alone."""


class DeadlyBatches:
    """Deaths of workers by the number of the batch that they held."""

    def __init__(self, batch_size: int) -> None:
        """`batch_size`: rows of a batch."""
        self._batch_size = batch_size
        self._died_with: Counter[int] = Counter()
        self._died_of: Counter[int] = Counter()
        """Of workers that worked on nothing else."""

    def clear(self) -> None:
        """Forget all deaths, because another epoch begins."""
        self._died_with.clear()
        self._died_of.clear()

    def is_suspected(self, batch: int) -> bool:
        """Tell whether a batch is made apart."""
        return self._died_with[batch] >= STRIKES

    def next_suspected_row(self, row: int) -> int | None:
        """Return the first row of the next suspected batch behind a row; None if there is none."""
        begins = (batch * self._batch_size for batch, died in self._died_with.items() if died >= STRIKES)
        return min((first for first in begins if first > row), default=None)

    def died_with(self, batches: Iterable[int]) -> None:
        """Note that a worker has died that held several batches."""
        self._died_with.update(set(batches))

    def died_of(self, batch: int) -> bool:
        """Note that a worker has died that worked on one batch alone; tell whether that batch is to blame."""
        self._died_of[batch] += 1
        return self._died_of[batch] >= STRIKES
