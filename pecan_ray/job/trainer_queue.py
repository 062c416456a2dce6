"""A trainer's queue: batches that were received and not used, and how many of each epoch were either.

They are used in the order in which they came; those of coordinated reads in the order of their rounds' turns, and a
batch whose round has none yet waits with its worker's others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from pecan_ray.errors import ElementError, SourceError
from pecan_ray.job.joiner import Joiner
from pecan_ray.job.joins import Joins
from pecan_ray.job.left_epochs import NOWHERE, LoopPlace
from pecan_ray.job.messages import TrainerUpdate
from pecan_ray.job.rounds import Turns, expand_rounds
from pecan_ray.job.row_sequence import RowSequence
from pecan_ray.job.trainer_events import ReceivedBatch


class TrainerQueue:
    """Batches in the order in which they are used, and those without a turn."""

    def __init__(self, world_size: int = 1, joins: Joins | None = None) -> None:
        self.nbytes, self._alone = 0, world_size == 1
        self._batches: deque[ReceivedBatch] = deque()
        self._without_turn: dict[str, deque[ReceivedBatch]] = {}
        """By worker, in the order in which they came; none is empty."""
        self._with_turn = 0
        """Number of batches that have got their turn."""
        self._received: Counter[int] = Counter()
        """Batches of each epoch that were received and not given back."""
        self._used: Counter[int] = Counter()
        """Of those received, the ones that the training loop has, or has left."""
        self.early = RowSequence()
        """What has come before its turn, where rows come in order: it is not received yet."""
        self.joiner = Joiner(joins or Joins(1))
        """What has had its turn and fills no batch yet, where rows are joined."""
        self._joined: list[ReceivedBatch] = []
        """Batches that were joined since this was asked for."""
        self._consumed: list[ReceivedBatch] = []
        """Blocks of which nothing is used, likewise."""
        self._accepted = -1
        """The newest batch of which its worker knows that it is the trainer's."""
        self.place = NOWHERE
        """Which epochs the loop has left, as the job is told."""
        self.passed = self.passed_rows = 0
        """Batches that were passed over since their epochs are left, and their elements."""

    def __len__(self) -> int:
        return len(self._batches) + sum(map(len, self._without_turn.values()))

    def __iter__(self) -> Iterator[ReceivedBatch]:
        return chain(self._batches, *self._without_turn.values())

    @property
    def head(self) -> ReceivedBatch | None:
        """The batch that is used next; None: there is none, or its turn is not known."""
        return self._batches[0] if self._batches else None

    @property
    def latest(self) -> ReceivedBatch | None:
        """The batch that came last; None: there is none."""
        # Only rounds put batches in another order than the one in which they came.
        return max(self, key=lambda batch: batch.id) if self._without_turn else next(reversed(self._batches), None)

    def used(self, epoch: int) -> int:
        """Return how many batches of an epoch the training loop has."""
        return self._used[epoch]

    def has_left(self, epoch: int, jobs: int) -> bool:
        """Tell whether nothing more comes of an epoch, where the job is in epoch `jobs`.

        The job goes on to the next one when the ranks have all of one.
        """
        return jobs > epoch if self.head is None else self.head.epoch > epoch

    def receive(self, batch: ReceivedBatch, *, in_turn: bool = True) -> Sequence[ReceivedBatch]:
        """Take a batch that has come; return those that are received with it, as `add` does."""
        received = self.early.add_batch(batch)
        for one in received:
            if one.row_range is not None and one.row_range.are_joined:
                self._add_joined(self.joiner.add(one))
                # A block without rows is there for its turn alone, so its memory goes back.
                if not one.rows:
                    self._consumed.append(one)
            else:
                self.add(one, in_turn=in_turn)
        return received

    def _add_joined(self, batches: Sequence[ReceivedBatch]) -> None:
        self._joined += batches
        for batch in batches:
            self.add(batch)

    def end_epoch(self, epoch: int) -> None:
        """Note that the job has come to an epoch: what is left of the one before fills no batch."""
        self._consumed += self.joiner.blocks if epoch > self.joiner.epoch and self.joiner.drops else ()
        self._add_joined(self.joiner.end(epoch))

    def joined(self) -> Sequence[ReceivedBatch]:
        """Return, once, the batches that were joined."""
        joined, self._joined = self._joined, []
        return joined

    def stop_ordering(self) -> Sequence[ReceivedBatch]:
        """Let no batch wait for rows before it, from now on; return what did, which is received now."""
        received = self.early.release_all()
        for one in received:
            self.add(one)
        return received

    def duplicate_batches(self) -> Sequence[ReceivedBatch]:
        """Take out what another worker has brought, too, and what brought nothing."""
        spent, self._consumed = self._consumed, []
        return [*self.early.duplicate_batches(), *spent]

    def not_yet_transferred(self) -> Sequence[ReceivedBatch]:
        """Return, once, the batches of which their workers do not know that they are the trainer's."""
        whole = (batch for batch in self if not batch.slices)
        # Ids grow, so one number tells which batches were told of before.
        found = [one for one in (*whole, *self.joiner.blocks, *self.early.waiting) if one.id > self._accepted]
        self._accepted = max((batch.id for batch in found), default=self._accepted)
        return found

    def add(self, batch: ReceivedBatch, *, in_turn: bool = True) -> None:
        """Add a batch that has come; unless `in_turn`, it is used when its round has its turn."""
        if in_turn:
            self._batches.append(batch)
        else:
            self._without_turn.setdefault(batch.worker, deque()).append(batch)
        self.nbytes += batch.nbytes
        self._received[batch.epoch] += 1

    def apply_schedule(self, first: int, turns: Turns) -> None:
        """Put batches in the order of turns, of which the first one has this number."""
        for worker in expand_rounds(first, turns, self._with_turn):
            mine = self._without_turn[worker]
            self._batches.append(mine.popleft())
            self._with_turn += 1
            if not mine:
                del self._without_turn[worker]

    def usable(self, update: TrainerUpdate) -> bool:
        """Tell whether the next batch is here and may be used: all ranks have as many, or its round has its turn."""
        head = self.head
        # The job has left earlier epochs behind, so every rank has its full number of batches of these.
        if head is None or self._alone or update.coordinated or head.epoch < update.epoch:
            return head is not None
        return head.epoch == update.epoch and self.used(head.epoch) < update.allowed

    def is_before_error(self, error: BaseException, update: TrainerUpdate) -> bool:
        """Tell whether the next batch is of rows before those that an error is about, and may be used."""
        # Decision 150: only an error of data has a place among the rows. All others are raised at once.
        head, of_data = self.head, isinstance(error, (ElementError, SourceError))
        in_order = head is not None and bool(head.row_range or head.slices) and not update.unordered
        return of_data and in_order and self.usable(update)

    @property
    def held_bytes(self) -> int:
        """Bytes of what has come, and was not used."""
        return self.nbytes + self.early.nbytes + self.joiner.nbytes

    @property
    def waiting_for_rows(self) -> bool:
        """Return whether all that is here waits for rows before it, or for more of them."""
        return bool(self.early or self.joiner) and not self._batches

    def makes_next(self, worker: str, update: TrainerUpdate) -> bool:
        """Tell whether a worker makes what comes next, where whole splits are under way; else all do."""
        if update.next_makers is None:
            return True
        # The job hears later of what has had its turn here, and who makes what follows is not known until then.
        behind = self.early.is_behind(update.epoch, update.next_makers.split)
        return worker in update.next_makers.workers and not behind

    def accepts_without_room(self, update: TrainerUpdate, up_to_date: bool) -> bool:
        """Tell whether to take more without room: what is regrouped, unless the loop will make some by itself.

        While all that is here waits for rows before it, or for those of other ranks, these are taken: how much may wait
        the job has bounded.  With a batch of a later epoch here, nothing is regrouped any more: these orders are of the
        past.  `up_to_date`: the job has answered with all in mind that has come here.
        """
        if self.waiting_for_rows:
            return True
        newest = self.latest
        if newest is None or newest.epoch > update.epoch:
            return False
        # What is for a certain rank stays so when the order is given up, and may be all that is left.
        in_turn = up_to_date and (newest.row_range is not None or update.unordered)
        return (update.merge_leftovers or in_turn) and not self.usable(update)

    def starved(self, update: TrainerUpdate, workers: Iterable[str]) -> list[str]:
        """Return the workers that may send without room while this rank has no batch to use.

        Those whose rounds it may hold up: else ranks could fill their queues with different rounds, and each wait for
        what another one has no room for.  And those that drain: what they have finished for this rank nobody else can
        have, and it lies in the memory that a batch for another rank needs.
        """
        if not update.addressed or self.usable(update):
            return []
        return [
            worker
            for worker in workers
            if worker in update.settle or (update.coordinated and worker not in self._without_turn)
        ]

    def revoke(self, worker: str) -> list[ReceivedBatch]:
        """Take out the batches of a worker that have no turn, and never will."""
        mine = list(self._without_turn.pop(worker, ()))
        self.nbytes -= sum(batch.nbytes for batch in mine)
        for batch in mine:
            self._received[batch.epoch] -= 1
        return mine

    def use(self) -> ReceivedBatch:
        """Take out the batch that is used next."""
        batch = self._batches.popleft()
        self.nbytes -= batch.nbytes
        self._used[batch.epoch] += 1
        return batch

    def leave(self, epoch: int) -> Sequence[ReceivedBatch]:
        """Note that the loop has left an epoch: a rank that is alone takes nothing of it any more, and drops it."""
        left_before = max(self.place.left, epoch + 1)
        self.place = LoopPlace(left_before, left_before if self._alone else self.place.closed)
        left = list(self.early.leave(self.place.closed))
        if self.joiner.epoch < self.place.closed:
            left += self.joiner.blocks
            self.joiner.leave()
        return left

    def pass_over(self, update: TrainerUpdate) -> list[ReceivedBatch]:
        """Take out what comes next of epochs that the loop has left, as far as it may be used."""
        mine: list[ReceivedBatch] = []
        # Only what may be used: a rank that ran ahead would take the part of those that go on in the epoch.
        while self.head is not None and self.head.epoch < self.place.left and self.usable(update):
            mine.append(self.use())
        self.passed += len(mine)
        self.passed_rows += sum(batch.rows for batch in mine)
        return mine

    def close(self, epoch: int, keep: int) -> list[ReceivedBatch]:
        """Take nothing of an epoch any more that all ranks have left; return what is here beyond so many batches."""
        self.place = replace(self.place, closed=max(self.place.closed, epoch + 1))
        # Decision 106: no round of the epoch gets a turn any more.
        without_turn = [batch for worker in list(self._without_turn) for batch in self.revoke(worker)]
        return without_turn + self.take_unused(epoch, keep)

    def take_unused(self, epoch: int, keep: int) -> list[ReceivedBatch]:
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
        batches = [*self, *self.joiner.blocks, *self.early.clear()]
        self.joiner.leave()
        self._batches.clear()
        self._without_turn.clear()
        self.nbytes = 0
        return batches

    def forget_before(self, epoch: int) -> None:
        """Count epochs before this one no longer."""
        for counts in (self._received, self._used):
            for gone in [known for known in counts if known < epoch]:
                del counts[gone]
