"""Which data came with which batch, for those that some rank has not used: a state may be taken before any of them.

Of those that all have used a few are kept, so that states of ranks out of step can be merged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from pecan_ray.job.pending_leases import LeaseSpans

MOST_STEPS = 8
"""Batches by which ranks may be out of step when their states are merged."""
MOST_KEPT = 512
"""Batches that all ranks have used and that are kept: with many ranks they may be out of step by fewer."""
MOST_AHEAD = 8
"""The number of batches that a loop may have been given and not used yet: JAX and Lightning fetch two ahead at most,
and Keras on TensorFlow as many as this, several of which may be one execution."""
MOST_UNUSED = MOST_AHEAD + 1
"""With one more that was handed over in a wait which a signal's handler has ended: the loop has not got it."""


@dataclass(frozen=True)
class Delivery:
    """One batch that a rank has received."""

    id: int
    """Names it to the trainer."""
    epoch: int
    spans: LeaseSpans
    """What yields the elements in it."""
    worker: str = ""
    """Who made it."""


# Why no rank stops for a state: docs/decisions/states-and-resume.md#33-what-a-state-holds
class DeliveryLog:
    """The last deliveries of all ranks, from the first on that some rank has not used.

    Ranks use batches in the order in which they came, and those of rounds in the order of turns; those that were given
    back are never used.
    """

    def __init__(self, world_size: int, *, rounds: bool = False) -> None:
        self._received_by_rank: list[deque[Delivery]] = [deque() for _ in range(world_size)]
        self._rounds = rounds
        self._without_turn: list[dict[str, deque[Delivery]]] = [{} for _ in range(world_size)]
        """Of each rank, by worker, batches of rounds that have no turn yet."""
        self._kept = [0] * world_size
        """Batches that each rank has received and not given back, and that have their turn."""
        self._remaining_parts: dict[int, Delivery] = {}
        """By rank: what has come of that it has made no batch yet."""
        self.used_by_all = 0
        """Batches that every rank has used."""
        # A rank that is alone has no other state to be merged with.
        self._steps = min(MOST_STEPS, MOST_KEPT // world_size) if world_size > 1 else 0
        self._used_and_kept = max(MOST_UNUSED, self._steps)

    def received(
        self,
        rank: int,
        kept: int,
        delivery_records: Iterable[Delivery],
        returned: Iterable[int] = (),
        rest: Delivery | None = None,
    ) -> None:
        """Note what has come, but for what goes back: `kept` batches in all, and a `rest` that fills none yet.

        A rank that is alone leaves out what it has used, but for the last ones.
        """
        gone = set(returned)
        self._remaining_parts = {other: one for other, one in self._remaining_parts.items() if other != rank}
        if rest is not None:
            self._remaining_parts[rank] = rest
        if self._rounds:
            self._keep_for_schedule(rank, delivery_records, gone)
            return
        known = self._received_by_rank[rank]
        # Before the filter below, because a batch may come and go back within one report.
        known.extend(delivery_records)
        if gone:
            known = self._received_by_rank[rank] = deque(one for one in known if one.id not in gone)
        # As it was told, because a rank that is alone leaves out what it has used.
        self._kept[rank] = kept
        self._forget(rank)

    def _keep_for_schedule(self, rank: int, delivery_records: Iterable[Delivery], gone: set[int]) -> None:
        """Keep what a rank has received, by its worker, until that worker's turn has come."""
        waiting = self._without_turn[rank]
        for one in delivery_records:
            waiting.setdefault(one.worker, deque()).append(one)
        if gone:
            left = ((worker, deque(one for one in mine if one.id not in gone)) for worker, mine in waiting.items())
            self._without_turn[rank] = {worker: mine for worker, mine in left if mine}

    def note_schedule(self, workers: Sequence[str]) -> None:
        """Note the turns of rounds, by the workers that have made these: of each, every rank's next batch is used."""
        for rank, waiting in enumerate(self._without_turn if workers else ()):
            for worker in workers:
                mine = waiting[worker]
                self._received_by_rank[rank].append(mine.popleft())
                if not mine:
                    del waiting[worker]
            self._kept[rank] += len(workers)
            self._forget(rank)

    def _forget(self, rank: int) -> None:
        known = self._received_by_rank[rank]
        # A state of the first one that is known tells of the steps before it.
        for _ in range(len(known) - (self._kept[rank] - max(0, self.first_known - self._steps))):
            known.popleft()

    def used(self, batches: Sequence[int]) -> None:
        """Note how many batches each rank has used: what all have used is forgotten, rank by rank as they report."""
        self.used_by_all = min(batches)

    def first_known_epoch(self, newest: int) -> int:
        """Return the first epoch of which something is known here; `newest`: where nothing is."""
        return min((known[0].epoch for known in self._received_by_rank if known), default=newest)

    def has_all(self, batches: int) -> bool:
        """Tell whether every rank has told of so many batches, and what came since is not forgotten."""
        return min(self._kept) >= batches >= self.first_known

    @property
    def first_known(self) -> int:
        """After so many batches of each rank a state may still be taken."""
        return max(0, self.used_by_all - self._used_and_kept)

    def beyond(self, batches: int) -> Iterator[Delivery]:
        """Yield what the ranks have beyond so many batches each."""
        for kept, delivery_records in zip(self._kept, self._received_by_rank, strict=True):
            yield from islice(reversed(delivery_records), max(0, kept - batches))
        # Decision 47: a batch of a round without a turn was used by nobody, so it counts as missing.
        for waiting in self._without_turn:
            for mine in waiting.values():
                yield from mine
        yield from self._remaining_parts.values()

    def last(self, batches: int) -> list[Delivery]:
        """Return the last of so many batches of each rank, as far as they are known."""
        ranks = zip(self._kept, self._received_by_rank, strict=True)
        places = [(kept - batches + 1, known) for kept, known in ranks]
        return [known[-place] for place, known in places if place <= len(known)]

    def at_epoch_start(self, epoch: int, batches: int) -> bool:
        """Tell whether the last of so many batches of each rank are all of epochs before this one."""
        last = [kept - batches + 1 for kept in self._kept]
        ranks = zip(self._received_by_rank, last, strict=True)
        return all(0 < place <= len(known) and known[-place].epoch < epoch for known, place in ranks)

    def before(self, batches: int) -> Iterator[tuple[Delivery, ...]]:
        """Yield what each rank has as its last one of so many batches, as the one before that, and so on."""
        for back in range(min(self._steps, batches)):
            places = [kept - batches + back + 1 for kept in self._kept]
            yield tuple(known[-place] for known, place in zip(self._received_by_rank, places, strict=True))
