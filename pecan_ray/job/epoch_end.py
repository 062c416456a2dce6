"""The end of an epoch with several ranks: the richer ones give back, until all have equally many batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class EpochEnd:
    """What ranks were told to keep, once everything of an epoch was delivered or returned."""

    level: int | None = None
    """Batches that every rank keeps; None: all may go on.

    It stays as it is until all do, whatever comes late: ranks obey it when they hear of it, and none may have used
    more by then.
    """
    left: bool = False
    """All ranks have left the epoch before its end: each gives back what it has beyond the level."""
    late_workers: list[str] = field(default_factory=list)
    """Workers that have come meanwhile: where each gives all data, these begin with the next epoch."""

    def leave(self, level: int) -> None:
        """Note that all ranks have left the epoch, and that each keeps so many of its batches."""
        self.left, self.level = True, level

    def even(self, counts: Sequence[int]) -> bool:
        """Tell whether all ranks have equally many; if not, none keeps more than the poorest has now."""
        if min(counts) == max(counts):
            self.level = None
        elif self.level is None:
            self.level = min(counts)
        return self.level is None

    def allowed(self, counts: Sequence[int]) -> int:
        """Return how many batches every rank may use: as many as the poorest has received."""
        return min(counts) if self.level is None else min(self.level, *counts)
