"""In which order a job reads its items if what is cached may come before what is not (Quiver §4.7, §5.1 and §5.2).

An epoch is a random permutation of all items.  Asked for a batch, a job looks at the next ones, ten times as many as it
wants, and takes those that are cached; the others stay pending, to be looked at again in a later pass.  Where too few
are cached it reads pending items of one chunk, in random order.  Jobs that read one dataset work on the same chunk, so
that each fetches another part of it, and finds what the others have fetched.

A chunk is a stripe: of each of as many equal, contiguous partitions of the dataset one contiguous unit.  Within a chunk
every order of its items is equally likely, so that which chunks are cached says nothing about which item comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from pecan_ray.cache.checked import checked_count
from pecan_ray.errors import PlanError

LOOK_AHEAD = 10
"""Items that are looked up for each one that is wanted."""


class SubstitutionSampler:
    """The order of one job: every item exactly once an epoch, those that are cached first."""

    def __init__(self, num_items: int, chunks: int, seed: int) -> None:
        """Stand before the first epoch of a dataset with so many items, striped into so many chunks."""
        self._items = checked_count("SubstitutionSampler(num_items=...)", num_items)
        self._chunks = checked_count("SubstitutionSampler(chunks=...)", chunks)
        self._seed = checked_count("SubstitutionSampler(seed=...)", seed, least=0)
        if self._chunks > self._items:
            raise PlanError(f"SubstitutionSampler(chunks={chunks}): there are no more than {num_items} items.")
        self._chunk_of = stripes(self._items, self._chunks)
        self._chunk: int | None = None
        self._epoch, self._over = -1, False
        self._begin_epoch()

    @property
    def pending(self) -> frozenset[int]:
        """Items that have not been given in this epoch: all at its beginning, none at its end."""
        return frozenset(np.flatnonzero(np.frombuffer(self._waiting, np.uint8)).tolist())

    @property
    def epoch(self) -> int:
        """Return the number of the epoch, from 0."""
        return self._epoch

    @property
    def current_chunk(self) -> int | None:
        """Return the chunk whose items are read next from remote storage; None: that has not come up."""
        return self._chunk

    def chunk_of(self, item: int) -> int:
        """Return the chunk in which an item lies."""
        if not 0 <= item < self._items:
            raise PlanError(f"SubstitutionSampler.chunk_of({item}): items are counted from 0 to {self._items - 1}.")
        return int(self._chunk_of[item])

    def items_of(self, chunk: int) -> frozenset[int]:
        """Return the items of a chunk."""
        if not 0 <= chunk < self._chunks:
            raise PlanError(f"SubstitutionSampler.items_of({chunk}): chunks are counted from 0 to {self._chunks - 1}.")
        return frozenset(np.flatnonzero(self._chunk_of == chunk).tolist())

    def next_batch(self, size: int, cached: AbstractSet[int]) -> list[int]:
        """Return so many items to be read now, fewer only at the end of the epoch, then none; after it the next begins.

        Those in `cached` come first: if ten times as many that are looked up have too few, others of one chunk follow.
        """
        wanted = checked_count("next_batch(size=...)", size)
        if not isinstance(cached, AbstractSet):
            raise PlanError(f"next_batch(cached=...) must be a set of item numbers, but got {type(cached).__name__}.")
        if self._over:
            self._begin_epoch()
        batch = self._take_cached(wanted, cached)
        if len(batch) < wanted and self._left:
            batch += self._take_missing(wanted - len(batch), cached)
        self._over = not batch
        return batch

    def _begin_epoch(self) -> None:
        """Draw the order of all items: once as a whole, once by chunks."""
        self._epoch += 1
        order = np.random.default_rng((self._seed, self._epoch)).permutation(self._items)
        # Stable: within a chunk the items stay in the epoch's random order.
        by_chunk = order[np.argsort(self._chunk_of[order], kind="stable")]
        bounds = np.cumsum(np.bincount(self._chunk_of, minlength=self._chunks))[:-1]
        self._of_chunk = [iter(part.tolist()) for part in np.split(by_chunk, bounds)]
        self._remaining = deque(order.tolist())
        """What to look at, in passes: what is left goes to the end."""
        self._waiting = bytearray(b"\x01") * self._items
        self._left = self._items
        self._over = False

    def _take_cached(self, wanted: int, cached: AbstractSet[int]) -> list[int]:
        batch: list[int] = []
        # No item need be looked at twice for one batch.
        looks = min(LOOK_AHEAD * wanted, self._left)
        while looks and len(batch) < wanted:
            item = self._remaining.popleft()
            # Given by its chunk meanwhile: to remove it from the middle of the line would take a search.
            if not self._waiting[item]:
                continue
            looks -= 1
            if item in cached:
                batch.append(item)
                self._emit(item)
            else:
                # Decision 42: looks go on where they stopped. Drawn anew, the same items would come up again.
                self._remaining.append(item)
        return batch

    def _take_missing(self, wanted: int, cached: AbstractSet[int]) -> list[int]:
        """Take pending items of the current chunk, then of those behind it."""
        if self._chunk is None:
            self._chunk = self._chunk_to_begin_with(cached)
        batch: list[int] = []
        for _ in range(self._chunks):
            # The chunk's iterator is kept from call to call: items are not walked over again.
            pending = (item for item in self._of_chunk[self._chunk] if self._waiting[item])
            for item in islice(pending, wanted - len(batch)):
                batch.append(item)
                self._emit(item)
            if len(batch) == wanted or not self._left:
                break
            self._chunk = (self._chunk + 1) % self._chunks
        return batch

    def _emit(self, item: int) -> None:
        self._waiting[item] = 0
        self._left -= 1

    def _chunk_to_begin_with(self, cached: AbstractSet[int]) -> int:
        """Return the chunk of which most is cached, as others work on it; the first one if nothing is."""
        # The set is the caller's, and may hold other numbers than items of this dataset.
        known = np.fromiter((item for item in cached if 0 <= item < self._items), np.intp)
        return int(np.bincount(self._chunk_of[known], minlength=self._chunks).argmax())


def stripes(num_items: int, chunks: int) -> NDArray[np.intp]:
    """Return the chunk of each item: of each partition of the dataset one stripe unit goes to each chunk.

    Where partitions have fewer items than there are chunks, items are dealt out in turn.
    """
    items = np.arange(num_items)
    if num_items < chunks * chunks:
        return items % chunks
    partition = items * chunks // num_items
    starts = -(-np.arange(chunks + 1) * num_items // chunks)
    place = items - starts[partition]
    found: NDArray[np.intp] = place * chunks // (starts[1:] - starts[:-1])[partition]
    return found
