"""A trainer's batches in the order of their rows: what comes before its turn waits here, and is not acknowledged.

To the job such a batch is still with its worker.  If that is lost, the batch is dropped, and made again by whoever is
given its rows: so each row has its turn once, and a state knows of nothing but what came in order.

Where the worker of the next rows is slow or silent, the job lets another one make them too.  Whichever batch comes
first is taken; of those that wait for their turn both are kept, since one of the workers may be lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.sampling.spans import Spans

BEHIND_ALL = 1 << 62
"""No row has such a number."""


class RowSequence:
    """Which row comes next, and batches of rows behind it."""

    def __init__(self) -> None:
        self._early: dict[tuple[int, int], list[ReceivedBatch]] = {}
        """By epoch and first row; several workers may have made one."""
        self.nbytes = 0
        self._epoch, self._next = -1, 0
        self._had = Spans()
        """Rows of this epoch that have had their turn: one interval, as long as they come in order."""
        self._doubles: list[ReceivedBatch] = []
        self._given_up = False

    def __len__(self) -> int:
        return len(self._early)

    @property
    def waiting(self) -> Iterable[ReceivedBatch]:
        """Batches whose turn has not come."""
        return chain.from_iterable(self._early.values())

    def came(self, batch: ReceivedBatch) -> Sequence[ReceivedBatch]:
        """Take a batch; return those whose turn has come, in order."""
        if batch.row is None and (self._epoch < 0 or self._given_up):
            return (batch,)
        if batch.row is None:  # rows are missing in it, and the job is about to give the order up for that
            self._early.setdefault((batch.epoch, BEHIND_ALL + batch.id), []).append(batch)
            self.nbytes += batch.nbytes
            return ()
        if batch.epoch > self._epoch:
            self._epoch, self._next, self._had = batch.epoch, 0, Spans()
        if batch.epoch < self._epoch or batch.row in self._had:
            self._doubles.append(batch)
            return ()
        if batch.row > self._next and not self._given_up:
            self._early.setdefault((batch.epoch, batch.row), []).append(batch)
            self.nbytes += batch.nbytes
            return ()
        due = [batch]
        self._turn(batch.row, batch.rows)
        while following := self._early.pop((batch.epoch, self._next), None):
            self.nbytes -= sum(one.nbytes for one in following)
            due.append(following[0])
            self._doubles += following[1:]
            self._turn(self._next, following[0].rows)
        return due

    def _turn(self, row: int, rows: int) -> None:
        self._had.add(row, row + rows)
        self._next = max(self._next, row + rows)

    def doubles(self) -> Sequence[ReceivedBatch]:
        """Take out batches of rows that others have brought."""
        doubles, self._doubles = self._doubles, []
        return doubles

    def give_up(self) -> Sequence[ReceivedBatch]:
        """Let nothing wait any more; return what has."""
        self._given_up = True
        due: list[ReceivedBatch] = []
        for batch in self._taken(lambda batch: True):
            due += self.came(batch)
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
        self.nbytes -= sum(batch.nbytes for batch in taken)
        return taken
