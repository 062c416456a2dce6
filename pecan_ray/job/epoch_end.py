"""The end of an epoch with several ranks: the richer ones give back, until all have equally many batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class EpochEnd:
    """What ranks were told to keep, once everything of an epoch was delivered or returned."""

    level: int | None = None
    """Batches that every rank keeps; None: all may go on.

    It stays as it is, whatever comes late: ranks obey it when they hear of it, and none may have used more by then.
    """
    latecomers: list[str] = field(default_factory=list)
    """Workers that have come meanwhile: where each gives all data, these begin with the next epoch."""

    def even(self, counts: Sequence[int]) -> bool:
        """Tell whether all ranks have equally many; if not, none keeps more than the poorest has now."""
        if min(counts) == max(counts):
            return True
        if self.level is None:
            self.level = min(counts)
        return False

    def allowed(self, counts: Sequence[int]) -> int:
        """Return how many batches every rank may use: as many as the poorest has received."""
        return min(counts) if self.level is None else min(self.level, *counts)
