"""Which data came with which batch, for those that some rank has not used: a state may be taken before any of them.

Of those that all have used a few are kept, so that states of ranks out of step can be merged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pecan_ray.job.holdings import LeaseSpans

MOST_STEPS = 8
"""So many batches ranks may be out of step when their states are merged,"""
MOST_KEPT = 512
"""and with many ranks fewer: so many batches that all have used are kept."""


@dataclass(frozen=True)
class Delivery:
    """One batch that a rank has received."""

    id: int
    """Names it to the trainer."""
    epoch: int
    spans: LeaseSpans
    """What yields the elements in it."""


class DeliveryLog:
    """The last deliveries of all ranks, from the first on that some rank has not used.

    Ranks use batches in the order in which they came; those that were given back are never used.
    """

    def __init__(self, world_size: int) -> None:
        self._deliveries: list[deque[Delivery]] = [deque() for _ in range(world_size)]
        self._kept = [0] * world_size
        """Batches that each rank has received and not given back."""
        self.used_by_all = 0
        """So many batches every rank has used."""
        self._steps = min(MOST_STEPS, MOST_KEPT // world_size) if world_size > 1 else 0

    def received(self, rank: int, kept: int, deliveries: Iterable[Delivery], returned: Iterable[int] = ()) -> None:
        """Note what has come, but for what goes back: `kept` batches in all.

        A rank that is alone leaves out what it has used.
        """
        known = self._deliveries[rank]
        known.extend(deliveries)
        if gone := set(returned):
            known = self._deliveries[rank] = deque(one for one in known if one.id not in gone)
        self._kept[rank] = kept
        for _ in range(len(known) - (kept - max(0, self.used_by_all - self._steps))):
            known.popleft()

    def used(self, batches: Sequence[int]) -> None:
        """Note how many batches each rank has used: what all have used is forgotten, rank by rank as they report."""
        self.used_by_all = min(batches)

    def knows(self, batches: int) -> bool:
        """Tell whether every rank has told of so many batches."""
        return min(self._kept) >= batches

    def beyond(self, batches: int) -> Iterator[Delivery]:
        """Yield what the ranks have beyond so many batches each."""
        for kept, deliveries in zip(self._kept, self._deliveries, strict=True):
            yield from islice(reversed(deliveries), max(0, kept - batches))

    def before(self, batches: int) -> Iterator[tuple[Delivery, ...]]:
        """Yield what each rank has as its last one of so many batches, as the one before that, and so on."""
        for back in range(min(self._steps, batches)):
            places = [kept - batches + back + 1 for kept in self._kept]
            yield tuple(known[-place] for known, place in zip(self._deliveries, places, strict=True))
