"""A trainer's batches in the order of their rows: what comes before its turn waits here, and is not acknowledged.

To the job such a batch is still with its worker.  If that is lost, the batch is dropped, and made again by whoever is
given its rows: so each row has its turn once, and a state knows of nothing but what came in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pecan_ray.job.trainer_events import ReceivedBatch


class RowSequence:
    """Which row comes next, and batches of rows behind it."""

    def __init__(self) -> None:
        self._early: dict[tuple[int, int], ReceivedBatch] = {}
        """By epoch and first row."""
        self.nbytes = 0
        self._epoch, self._next = -1, 0
        self._given_up = False

    def __len__(self) -> int:
        return len(self._early)

    @property
    def waiting(self) -> Iterable[ReceivedBatch]:
        """Batches whose turn has not come."""
        return self._early.values()

    def came(self, batch: ReceivedBatch) -> Sequence[ReceivedBatch]:
        """Take a batch; return those whose turn has come, in order."""
        if batch.row is None or self._given_up:
            return (batch,)
        if batch.epoch > self._epoch:
            self._epoch, self._next = batch.epoch, 0
        if batch.row > self._next:
            self._early[batch.epoch, batch.row] = batch
            self.nbytes += batch.nbytes
            return ()
        due = [batch]
        self._next = max(self._next, batch.row + batch.rows)
        while (following := self._early.pop((batch.epoch, self._next), None)) is not None:
            due.append(following)
            self.nbytes -= following.nbytes
            self._next += following.rows
        return due

    def give_up(self) -> Sequence[ReceivedBatch]:
        """Let nothing wait any more; return what has."""
        self._given_up = True
        return self._taken(lambda batch: True)

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
        places = sorted(place for place, batch in self._early.items() if wanted(batch))
        taken = [self._early.pop(place) for place in places]
        self.nbytes -= sum(batch.nbytes for batch in taken)
        return taken
