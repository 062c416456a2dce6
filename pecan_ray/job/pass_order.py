"""The order of the splits of a pass over a source, while they are listed: an array instead of an object for each."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.order import shuffled
from pecan_ray.sampling.random_keys import SplitOrder

# Without the index, which is the place in the listing.
_values = attrgetter(*(field.name for field in fields(Split) if field.name != "index"))
MOST_SPLITS_FORESEEN = 1 << 17
"""The order of an epoch to come is made for so many splits at most: more of them last for so long that nobody minds
how it begins."""
Indices: TypeAlias = npt.NDArray[np.int64]
Share: TypeAlias = tuple[int, int]


class Listing:
    """What is known of a source's splits; several queues read it."""

    def __init__(self, *, by_estimates: bool = False) -> None:
        """`by_estimates`: where it is not known how many elements a split holds, its estimate is taken."""
        self._by_estimates = by_estimates
        self.complete = False
        self.has_whole = False
        """Whether some split is read by one worker, from its beginning to its end."""
        self._elements_before = array("q", [0])
        """Of each split, as far as all tell how many they hold, and of what comes next."""
        self._rows: list[tuple[Any, ...]] = []
        # Bare tuples of values: the garbage collector does not visit them, where a million objects of ours would stop
        # the job for 0.2 s each time.

    def __getstate__(self) -> dict[str, Any]:
        # Without the splits: a million of them would stop the job for seconds, and the journal has them already.
        return {**vars(self), "_rows": [], "_elements_before": array("q", [0])}

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Split:
        return Split(index, *self._rows[index])

    def add(self, page: Sequence[Split]) -> None:
        """Add a page; raises ValueError where a split is not named by its place."""
        for place, split in enumerate(page, len(self._rows)):
            if split.index != place:
                raise ValueError(f"split {split.index} of {split.path or 'the source'} was listed at place {place}")
        # Asked before the rows grow, because it compares their number with that of the sums.
        counted = self.has_counts
        splits = [split.by_estimate for split in page] if self._by_estimates else page
        self._rows.extend(map(_values, splits))
        self.has_whole = self.has_whole or any(split.whole for split in splits)
        for split in splits if counted else ():
            if split.elements is None:
                break
            self._elements_before.append(self._elements_before[-1] + split.elements)

    @property
    def has_counts(self) -> bool:
        """Return whether all splits, as far as they are known, tell how many elements they hold."""
        return len(self._elements_before) == len(self._rows) + 1

    @property
    def elements(self) -> int:
        """How many elements the splits hold, where they are counted."""
        return self._elements_before[-1]

    def elements_before(self, index: int) -> int:
        """Return how many elements lie before a split, where they are counted."""
        return self._elements_before[index]


class PassOrder:
    """In which order the splits of a pass go, as far as they are listed, and how many of them were begun."""

    def __init__(self, listing: Listing, branch: int, order: SplitOrder | None, share: Share) -> None:
        """`share` and `order` as in `SplitQueue`."""
        self._listing, self._branch, self._shuffling = listing, branch, order
        # A share that begins behind all splits has no fresh ones.
        self._first, self._step = share if share[1] else (sys.maxsize, 1)

    def begin(self, epoch: int, pass_index: int) -> None:
        """Begin a pass."""
        self._epoch = epoch
        self.pass_index = pass_index
        """The pass at hand: those before it were given out."""
        self._at = 0
        self._order: range | Indices = range(0) if self._shuffling is None else np.empty(0, np.int64)
        self._extensions = array("q")
        self._seen = self._first

    def positions(self, indices: Sequence[int]) -> list[int]:
        """Return the places in the pass's order of splits that were begun in it."""
        if not indices:
            return []  # sooner than by going through all splits
        if isinstance(self._order, range):
            return [self._order.index(index) for index in indices]
        # The inverse of the whole order at once: a search for each split would go through it each time.
        by_index = np.empty(len(range(self._first, self._seen, self._step)), np.int64)
        by_index[(self._order - self._first) // self._step] = np.arange(len(self._order))
        return [int(by_index[(index - self._first) // self._step]) for index in indices]

    @property
    def num_ordered(self) -> int:
        """Splits that have a place in the pass's order."""
        return len(self._order)

    @property
    def splits(self) -> int:
        """Number of splits in a pass, as far as they are known."""
        return len(range(self._first, len(self._listing), self._step))

    def projected(self, epoch: int, most: int) -> list[Split]:
        """Return up to so many of the splits that a later epoch begins with; none where that is not known."""
        if not self._listing.complete or self.splits > MOST_SPLITS_FORESEEN:
            return []
        order = np.arange(self._first, len(self._listing), self._step, dtype=np.int64)
        if self._shuffling is not None:
            # Decision 78: the seed tells the order of a later epoch already.
            order = shuffled(order, self._shuffling, epoch, 0, self._branch)
        return [self._listing[int(index)] for index in order[:most]]

    def _begin_next(self) -> tuple[int, int]:
        """Begin the next split that is fresh; return its index and its place in the order."""
        if self._at >= len(self._order):
            self._extend(len(self._listing))
        self._at += 1
        return int(self._order[self._at - 1]), self._at - 1

    def _lease(self, index: int) -> Lease:
        return Lease(self._epoch, self._listing[index], branch=self._branch, pass_index=self.pass_index)

    @property
    def _not_yet_ordered(self) -> range:
        """Splits that were listed and have no place in the order yet."""
        return range(self._seen, len(self._listing), self._step)

    def _extend(self, listed: int, started: int | None = None) -> None:
        """Let splits join the order behind those that were begun."""
        if self._shuffling is None:
            self._order, self._seen = range(self._first, listed, self._step), listed
            return
        started = self._at if started is None else started
        fresh = np.arange(self._seen, listed, self._step, dtype=np.int64)
        # Splits that were begun keep their places, because states tell of them by these (decision 33).
        waiting = np.concatenate((self._order[started:], fresh)) if started < len(self._order) else fresh
        waiting = shuffled(waiting, self._shuffling, self._epoch, self.pass_index, self._branch)
        self._order = np.concatenate((self._order[:started], waiting)) if started else waiting
        self._seen += len(fresh) * self._step
        # Decision 33: a state holds these pairs, so that the same order comes about in the run that goes on from it.
        self._extensions.extend((started, listed))
