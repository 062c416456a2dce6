"""The splits of one source that nobody has begun: cursors over an epoch's order instead of an object for each split."""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.order import split_permutation
from pecan_ray.sampling.randomness import random_key

_values = attrgetter(*(field.name for field in fields(Split) if field.name != "index"))
MANY = 1 << 40


class Listing:
    """What is known of a source's splits; several queues read it."""

    def __init__(self) -> None:
        self.complete = False
        self._rows: list[tuple[Any, ...]] = []
        # Bare tuples of values: the garbage collector does not visit them, where a million objects of ours would stop
        # the job for 0.2 s each time.

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Split:
        return Split(index, *self._rows[index])

    def add(self, page: Sequence[Split]) -> None:
        """Add a page; raises ValueError where a split is not named by its place."""
        for place, split in enumerate(page, len(self._rows)):
            if split.index != place:
                raise ValueError(f"split {split.index} of {split.path or 'the source'} was listed at place {place}")
        self._rows.extend(map(_values, page))


class SplitQueue:
    """Leases that wait in the passes over a source: first those that came back, then what nobody has begun.

    Without shuffling splits go in the order of the listing.  With it they go in a permutation of all of them; those
    that are asked for before the listing is complete are drawn from the ones known so far.
    """

    def __init__(
        self, listing: Listing, branch: int, seed: int | None, share: tuple[int, int] = (0, 1), passes: int | None = 1
    ) -> None:
        """`share`: (k, n), only every n-th split from number k on; n = 0: only what is put back.

        `passes`: so many in each epoch; None: no end.
        """
        self._listing, self._branch, self._seed, self._passes = listing, branch, seed, passes
        self._first, self._step = share if share[1] else (sys.maxsize, 1)
        self._returned: deque[Lease] = deque()
        self.begin(0, 0)

    def begin(self, epoch: int, repetition: int) -> None:
        """Begin a pass: all splits wait again; what came back from the pass before still goes first."""
        self._epoch, self._repetition = epoch, repetition
        self._at = 0
        self._order: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._drawable = array("q")
        self._seen = self._first

    def __len__(self) -> int:
        return len(self._returned) + self._fresh()

    def __bool__(self) -> bool:
        return bool(self._returned) or self._fresh() > 0

    def __iter__(self) -> Iterator[Lease]:
        """Yield what waits, in no particular order where it is shuffled."""
        yield from self._returned
        self._catch_up()
        left = self._drawable if self._order is None else self._order[self._at :]
        yield from (self._lease(int(index)) for index in left)

    def put_back(self, lease: Lease) -> None:
        """Let a lease be the next one."""
        self._returned.appendleft(lease)

    def clear(self) -> None:
        """Drop what came back; the epoch begins anew."""
        self._returned.clear()
        self.begin(self._epoch, 0)

    @property
    def passes_left(self) -> int:
        """How many passes may follow the current one, as far as is known; endless ones count as many."""
        if not (self._listing.complete and self.splits):
            return 0
        return MANY if self._passes is None else max(0, self._passes - self._repetition - 1)

    @property
    def splits(self) -> int:
        """Number of splits in a pass, as far as they are known."""
        return len(range(self._first, len(self._listing), self._step))

    def take(self) -> Lease | None:
        """Return the next lease, or None if none waits now."""
        if self._returned:
            return self._returned.popleft()
        if not self._fresh():
            if not self.passes_left:
                return None
            self.begin(self._epoch, self._repetition + 1)
            self._catch_up()
        if self._order is not None:
            index = int(self._order[self._at])
            self._at += 1
            return self._lease(index)
        return self._lease(self._draw())

    def _lease(self, index: int) -> Lease:
        return Lease(self._epoch, self._listing[index], branch=self._branch, repetition=self._repetition)

    def _fresh(self) -> int:
        self._catch_up()
        return len(self._drawable) if self._order is None else len(self._order) - self._at

    def _draw(self) -> int:
        assert self._seed is not None
        known, left = len(self._listing), len(self._drawable)
        drawn = random_key(self._seed, self._epoch, 0, self._branch, known, left, 0, "draw")[0] % left
        self._drawable[drawn], self._drawable[-1] = self._drawable[-1], self._drawable[drawn]
        return self._drawable.pop()

    def _catch_up(self) -> None:
        """Take notice of splits that were listed since."""
        splits = len(self._listing)
        if self._seed is None:
            if self._order is None or splits != self._seen:
                self._order, self._seen = range(self._first, splits, self._step), splits
            return
        if self._order is not None:
            return
        if self._listing.complete:
            self._order, self._drawable = self._rest_of_permutation(splits, self._seed), array("q")
        elif self._seen < splits:
            fresh = range(self._seen, splits, self._step)
            self._drawable.extend(fresh)
            self._seen += len(fresh) * self._step

    def _rest_of_permutation(self, splits: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return the order of what was not drawn before the listing was complete."""
        permutation = split_permutation(splits, seed, self._epoch, self._repetition, self._branch)
        waiting = np.zeros(splits, np.bool_)
        waiting[self._seen :: self._step] = True
        waiting[np.frombuffer(self._drawable, np.int64)] = True
        return permutation if waiting.all() else permutation[waiting[permutation]]
