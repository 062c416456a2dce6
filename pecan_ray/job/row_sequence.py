"""A trainer's batches in the order of their rows: what comes before its turn waits here, and is not acknowledged.

To the job such a batch is still with its worker.  If that is lost, the batch is dropped, and made again by whoever is
given its rows: so each row has its turn once, and a state knows of nothing but what came in order.

Where the worker of the next rows is slow or silent, the job lets another one make them too.  Whichever batch comes
first is taken; of those that wait for their turn both are kept, since one of the workers may be lost meanwhile.

What comes is batches, or blocks of rows that are joined to batches (`pecan_ray.job.joiner`).  Two workers cut the same
rows into different blocks: what was in one that came first is left out of the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from pecan_ray.job.blocks import PLACE_BITS, between
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.sampling.spans import Spans

BEHIND_ALL = 1 << 62
"""No row has such a number."""


class RowSequence:
    """Which row comes next, and batches of rows behind it."""

    def __init__(self) -> None:
        self._early: dict[tuple[int, int], list[ReceivedBatch]] = {}
        """By epoch and first row, or place; several workers may have made one."""
        self._order: list[tuple[int, int]] = []
        """The keys of these, as a heap."""
        self.nbytes = 0
        self._epoch, self._next = -1, 0
        self._had = Spans()
        """Rows of this epoch that have had their turn: one interval, as long as they come in order."""
        self._duplicate_batches: list[ReceivedBatch] = []
        self._given_up = False

    def __len__(self) -> int:
        return len(self._early)

    @property
    def waiting(self) -> Iterable[ReceivedBatch]:
        """Batches whose turn has not come."""
        return chain.from_iterable(self._early.values())

    def is_behind(self, epoch: int, split: int) -> bool:
        """Tell whether all of a split of an epoch has had its turn, where rows are joined."""
        return (self._epoch, self._next >> PLACE_BITS) > (epoch, split)

    def add_batch(self, batch: ReceivedBatch) -> Sequence[ReceivedBatch]:
        """Take a batch; return those whose turn has come, in order."""
        places = batch.row_range
        if places is None:
            if self._epoch < 0 or self._given_up:
                return (batch,)
            # Rows are missing in it, and the job is about to give the order up for that.
            self._keep(batch, BEHIND_ALL + batch.id)
            return ()
        if batch.epoch > self._epoch:
            # The job begins an epoch when it has all rows of the one before. So nothing of that can still be due.
            self._epoch, self._next, self._had = batch.epoch, 0, Spans()
        if batch.epoch == self._epoch and places.begin > self._next and not self._given_up:
            self._keep(batch, places.begin)
            return ()
        due: list[ReceivedBatch] = []
        self._turn(batch, due)
        self._release(due)
        return due

    def _release(self, due: list[ReceivedBatch]) -> None:
        """Add the batches that came early and whose turn has come by now."""
        while self._order and self._order[0][0] == self._epoch and self._order[0][1] <= self._next:
            following = self._early.pop(heapq.heappop(self._order))
            self.nbytes -= sum(one.nbytes for one in following)
            for one in following:
                self._turn(one, due)

    def _keep(self, batch: ReceivedBatch, first: int) -> None:
        key = batch.epoch, first
        if key not in self._early:
            heapq.heappush(self._order, key)
        self._early.setdefault(key, []).append(batch)
        self.nbytes += batch.nbytes

    def _turn(self, batch: ReceivedBatch, due: list[ReceivedBatch]) -> None:
        """Let a batch have its turn, as far as its rows have not had it."""
        places = batch.row_range
        assert places is not None
        # Decision 152: a late worker may bring rows that another one has brought before.
        if batch.epoch < self._epoch or self._has_had(batch):
            self._duplicate_batches.append(batch)
            return
        if places.are_joined and places.begin < self._next:
            batch = without_first(batch, self._next)
        due.append(batch)
        if not places.are_joined:
            self._had.add(places.begin, places.end)
        self._next = max(self._next, places.end)

    def _has_had(self, batch: ReceivedBatch) -> bool:
        places = batch.row_range
        assert places is not None
        # Once the order is given up, whole batches have their turn as they come, and may leave holes before them.
        return places.end <= self._next if places.are_joined else places.begin in self._had

    def duplicate_batches(self) -> Sequence[ReceivedBatch]:
        """Take out batches of rows that others have brought."""
        duplicate_batches, self._duplicate_batches = self._duplicate_batches, []
        return duplicate_batches

    def release_all(self) -> Sequence[ReceivedBatch]:
        """Let nothing wait any more; return what has."""
        self._given_up = True
        due: list[ReceivedBatch] = []
        for batch in self._taken(lambda batch: True):
            due += self.add_batch(batch)
        return due

    def lose(self, worker: str) -> Sequence[ReceivedBatch]:
        """Take out what a worker has made that is lost."""
        return self._taken(lambda batch: batch.worker == worker)

    def leave(self, before: int) -> Sequence[ReceivedBatch]:
        """Take out the batches of epochs before one, which the training loop has left."""
        return self._taken(lambda batch: batch.epoch < before)

    def clear(self) -> Sequence[ReceivedBatch]:
        """Take out everything."""
        return self._taken(lambda batch: True)

    def _taken(self, wanted: Callable[[ReceivedBatch], bool]) -> Sequence[ReceivedBatch]:
        taken: list[ReceivedBatch] = []
        for place in sorted(self._early):
            mine = [batch for batch in self._early[place] if wanted(batch)]
            left = [batch for batch in self._early[place] if not wanted(batch)]
            taken += mine
            if left:
                self._early[place] = left
            else:
                del self._early[place]
        self._order = sorted(self._early)  # a sorted list is a heap
        self.nbytes -= sum(batch.nbytes for batch in taken)
        return taken


def without_first(block: ReceivedBatch, place: int) -> ReceivedBatch:
    """Return a block without what lies before a place."""
    places = block.row_range
    assert places is not None
    rows = places.rows_before(place)
    left = between(block.spans, places.first, place, places.end)
    spans = {key: left.get(key, []) for key in block.spans}  # splits are known by their places among them
    return replace(block, spans=spans, rows=block.rows - rows, skip=block.skip + rows, since=place)
