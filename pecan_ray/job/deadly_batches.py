"""How many workers of an epoch have died with each of its batches (decision 151)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pecan_ray.sampling.spans import Span

STRIKES = 2
"""A batch is made apart once so many workers have died with it, and is to blame once so many have died of it alone."""


class DeadlyBatches:
    """Deaths of workers by the rows that they held: those of a batch together, or one by one where it was divided."""

    def __init__(self, batch_size: int) -> None:
        """`batch_size`: rows of a batch."""
        self._batch_size = batch_size
        self._died_with: Counter[int] = Counter()
        """By batch."""
        self._died_of: Counter[Span] = Counter()
        """Of workers that worked on nothing but these rows."""
        self._divided: set[int] = set()
        """Batches whose rows are made one by one."""

    def clear(self) -> None:
        """Forget all deaths, because another epoch begins."""
        self._died_with.clear()
        self._died_of.clear()
        self._divided.clear()

    def unit(self, row: int) -> Span:
        """Return the rows that are made apart together with one: the first, and the one behind the last."""
        size, batch = self._batch_size, row // self._batch_size
        return (row, row + 1) if batch in self._divided else (batch * size, (batch + 1) * size)

    def is_suspected(self, row: int) -> bool:
        """Tell whether a row is made apart."""
        return self._died_with[row // self._batch_size] >= STRIKES

    def next_suspected_row(self, row: int) -> int | None:
        """Return the first row behind a row with which rows begin that are made apart; None if there is none."""
        if self.is_suspected(row) and row // self._batch_size in self._divided:
            return row + 1
        begins = (batch * self._batch_size for batch, died in self._died_with.items() if died >= STRIKES)
        return min((first for first in begins if first > row), default=None)

    def died_with(self, rows: Iterable[int]) -> None:
        """Note that a worker has died that held several rows."""
        self._died_with.update({row // self._batch_size for row in rows})

    def died_of(self, rows: Span) -> bool:
        """Note that a worker has died that worked on these rows alone; tell whether they are to blame."""
        self._died_of[rows] += 1
        return self._died_of[rows] >= STRIKES

    def divide(self, row: int) -> None:
        """Let each row of a row's batch be made apart from now on."""
        self._divided.add(row // self._batch_size)

    def acquit(self, row: int) -> None:
        """Let the rows of a row's batch be made with others again: the one that is to blame is known."""
        self._divided.discard(row // self._batch_size)
        del self._died_with[row // self._batch_size]
