"""A trainer's queue: batches that were received and not used, and how many of each epoch were either."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from pecan_ray.job.trainer_events import ReceivedBatch


class TrainerQueue:
    """Batches in the order in which they came."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._batches: deque[ReceivedBatch] = deque()
        self._received: Counter[int] = Counter()
        """Batches of each epoch that were received and not given back;"""
        self._used: Counter[int] = Counter()
        """of these, those that the training loop has."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ReceivedBatch]:
        return iter(self._batches)

    @property
    def head(self) -> ReceivedBatch:
        """The batch that is used next."""
        return self._batches[0]

    @property
    def newest(self) -> ReceivedBatch:
        """The batch that came last."""
        return self._batches[-1]

    def used(self, epoch: int) -> int:
        """Return how many batches of an epoch the training loop has."""
        return self._used[epoch]

    def has_left(self, epoch: int, jobs: int) -> bool:
        """Tell whether nothing more comes of an epoch, where the job is in epoch `jobs`.

        The job goes on to the next one when the ranks have all of one.
        """
        return self.head.epoch > epoch if self else jobs > epoch

    def add(self, batch: ReceivedBatch) -> None:
        """Add a batch that has come."""
        self._batches.append(batch)
        self.nbytes += batch.nbytes
        self._received[batch.epoch] += 1

    def use(self) -> ReceivedBatch:
        """Take out the batch that is used next."""
        batch = self._batches.popleft()
        self.nbytes -= batch.nbytes
        self._used[batch.epoch] += 1
        return batch

    def give_back(self, epoch: int, keep: int) -> list[ReceivedBatch]:
        """Take out the newest batches of an epoch beyond so many, but none that is used."""
        too_many = self._received[epoch] - max(keep, self._used[epoch])
        if too_many <= 0:
            return []
        mine = [batch for batch in self._batches if batch.epoch == epoch][-too_many:]
        returned = {batch.id for batch in mine}
        self._batches = deque(batch for batch in self._batches if batch.id not in returned)
        self.nbytes -= sum(batch.nbytes for batch in mine)
        self._received[epoch] -= len(mine)
        return mine

    def clear(self) -> list[ReceivedBatch]:
        """Take out everything."""
        batches = list(self._batches)
        self._batches.clear()
        self.nbytes = 0
        return batches

    def forget_before(self, epoch: int) -> None:
        """Count epochs before this one no longer."""
        for counts in (self._received, self._used):
            for gone in [known for known in counts if known < epoch]:
                del counts[gone]
