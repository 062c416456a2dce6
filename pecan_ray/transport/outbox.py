"""Where a worker's finished batches wait until they are sent, and which client is given which."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pecan_ray.engines.contract import Produced

MOST_BATCHES = 32
"""Most batches in one message to a client: small batches are sent together, large ones are rarely waiting."""
MESSAGE_BYTES = 1 << 20
"""Most bytes of several batches in one message."""
MOST_WAITING = 512
"""Batches without arrays take no slot: the number that waits with one address, or with none, is bounded instead."""


@dataclass(frozen=True)
class _Waiting:
    """A finished batch; of two the one with the lower number goes first."""

    number: int
    rank: int | None
    """Whom it is for; None: whoever is there."""
    produced: Produced
    nbytes: int


class _Taker:
    """A way to a client that may send a message and waits for what to put into it."""

    def __init__(self, rank: int, most: int, most_bytes: float, not_before: float, lock: threading.Lock) -> None:
        self.rank, self.not_before = rank, not_before
        self.most, self.most_bytes = most, most_bytes
        self.changed = threading.Condition(lock)
        self.woken = False
        self.share: list[_Waiting] = []
        """What it would take now."""
        self._share_bytes = 0

    def clear(self) -> None:
        """Begin with an empty message."""
        self.share, self._share_bytes = [], 0

    def add(self, batch: _Waiting) -> bool:
        """Add a batch to the message; False if it is full."""
        if len(self.share) >= self.most or (self.share and self._share_bytes + batch.nbytes > self.most_bytes):
            return False
        self.share.append(batch)
        self._share_bytes += batch.nbytes
        return True


class Outbox:
    """Finished batches until a client may be sent them; some are addressed to one rank.

    Who calls `take` has a credit of its rank's client.  A batch without an address goes to the rank that was given
    the fewest of its epoch, among those that wait; of several to the one that has waited longest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards everything here."""
        self._room = threading.Condition(self._lock)
        self._batches: dict[int | None, deque[_Waiting]] = {}
        """By address; none is empty."""
        self._bytes: Counter[int | None] = Counter()
        self._takers: list[_Taker] = []
        """Those that wait, the longest first."""
        self._given: dict[int, Counter[int]] = {}
        """Batches by epoch and rank."""
        self._at_end: list[tuple[int, Callable[[], None]]] = []
        self._first = self._next = 0
        self._closed = False

    def put(self, produced: Produced, rank: int | None) -> None:
        """Add a batch, for one rank or for whoever may have it; waits while very many with this address are there.

        So a batch never waits behind those with other addresses.  While very many without an address are there,
        nobody starves: a client that has nothing has granted a credit, and takes them.  Addressed batches are dealt
        to all ranks in turn: if the next one waits behind many for its own rank, which has no credit, then every other
        rank has been dealt as many, and can have them with a credit.  So whoever starves is ahead of that rank by all
        that wait; that rank has batches in its queue that it may use, and grants a credit when it does.
        """
        with self._lock:
            self._room.wait_for(lambda: self._closed or len(self._batches.get(rank, ())) < MOST_WAITING)
            batch = _Waiting(self._next, rank, produced, _weight(produced))
            self._next += 1
            self._batches.setdefault(rank, deque()).append(batch)
            self._bytes[rank] += batch.nbytes
            self._rouse()

    def take(
        self,
        rank: int,
        most: int = MOST_BATCHES,
        most_bytes: float = math.inf,
        wanted: Callable[[], bool] = lambda: True,
        not_before: float = 0.0,
    ) -> list[Produced]:
        """Wait for batches that a rank may have; an empty list means that there will be none, or none is wanted.

        `most_bytes` bounds their sum, unless the first one alone is larger.  `not_before`: the monotonic time until
        which the batches are left to become more, unless there are enough for a message to everybody who waits.
        """
        with self._lock:
            taker = _Taker(rank, most, most_bytes, not_before, self._lock)
            self._takers.append(taker)
            try:
                while wanted():
                    taker.woken = False
                    early = not_before - time.monotonic()
                    if early <= 0 or self._plenty():
                        self._allot()
                        if taker.share:
                            return self._give(taker)
                        if self._over(rank):
                            return []
                    taker.changed.wait(early if early > 0 else None)
                return []
            finally:
                self._takers.remove(taker)
                self._rouse()

    def put_back(self, rank: int, batches: list[Produced]) -> None:
        """Let batches that a rank was given be the next that it is given: another way to it has failed."""
        with self._lock:
            for produced in reversed(batches):
                self._first -= 1
                batch = _Waiting(self._first, rank, produced, _weight(produced))
                self._batches.setdefault(rank, deque()).appendleft(batch)
                self._bytes[rank] += batch.nbytes
                if produced.epoch in self._given:
                    self._given[produced.epoch][rank] -= 1
            self._rouse()

    def wake(self) -> None:
        """Let those who wait see whether they still want batches."""
        with self._lock:
            self._wake(self._takers)

    def at_end(self, rank: int, call: Callable[[], None]) -> None:
        """Have a function called once there will be no more for a rank; it must not call the outbox."""
        with self._lock:
            self._at_end.append((rank, call))
            self._tell()

    def close(self) -> None:
        """No more batches come: takers get what is left, then nothing."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            self._wake(self._takers)
            self._tell()

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._batches.values()))

    def _over(self, rank: int) -> bool:
        return self._closed and not any(self._batches.get(address) for address in (None, rank))

    def _tell(self) -> None:
        """Call those who wait for the end of a rank that has come."""
        if self._closed:
            ended = [(rank, call) for rank, call in self._at_end if self._over(rank)]
            self._at_end = [(rank, call) for rank, call in self._at_end if not self._over(rank)]
            for _, call in ended:
                call()

    # --- who is given what ---------------------------------------------------------------------------------

    def _plenty(self) -> bool:
        """Tell whether nobody has to wait for more: there is a message for everybody who waits, or the last one."""
        batches = [self._batches[address] for address in self._wished() if address in self._batches]
        count = sum(map(len, batches))
        if self._closed or count >= min(sum(taker.most for taker in self._takers), MOST_WAITING):
            return True
        nbytes = sum(self._bytes[address] for address in self._wished())
        return nbytes >= sum(taker.most_bytes for taker in self._takers)

    def _wished(self) -> set[int | None]:
        """Return the addresses of what those who wait may have."""
        return {None, *(taker.rank for taker in self._takers)}

    def _allot(self) -> None:
        """Share the batches out among those who wait, as far as they go into a message to each."""
        for taker in self._takers:
            taker.clear()
        able = list(self._takers)
        given: dict[int, Counter[int]] = {}
        lots = [self._batches[address] for address in self._wished() if address in self._batches]
        for batch in heapq.merge(*lots, key=lambda batch: batch.number):
            epoch = batch.produced.epoch
            counts = given.setdefault(epoch, Counter(self._given.get(epoch)))
            while fitting := [taker for taker in able if batch.rank in (None, taker.rank)]:
                poorest = _poorest(fitting, counts)
                if poorest.add(batch):
                    counts[poorest.rank] += 1
                    break
                able.remove(poorest)
            if not able:
                break

    def _give(self, taker: _Taker) -> list[Produced]:
        """Take out what was allotted."""
        for address in {batch.rank for batch in taker.share}:
            numbers = {batch.number for batch in taker.share if batch.rank == address}
            left = deque(batch for batch in self._batches[address] if batch.number not in numbers)
            if left:
                self._batches[address] = left
            else:
                del self._batches[address]
        for batch in taker.share:
            self._bytes[batch.rank] -= batch.nbytes
            self._count(batch.produced.epoch, taker.rank)
        self._room.notify_all()
        if self._closed:
            self._tell()
            self._wake(self._takers)
        return [batch.produced for batch in taker.share]

    def _count(self, epoch: int, rank: int) -> None:
        if epoch not in self._given:
            self._given = {known: ranks for known, ranks in self._given.items() if known >= epoch - 1}
            self._given[epoch] = Counter()
        self._given[epoch][rank] += 1

    def _rouse(self) -> None:
        """Wake those who have something to take now, each once."""
        asleep = [taker for taker in self._takers if not taker.woken]
        if not asleep or not any(address in self._batches for address in self._wished()):
            return
        if not self._plenty():
            now = time.monotonic()
            asleep = [taker for taker in asleep if taker.not_before <= now]
            if not asleep:
                return
        self._allot()
        self._wake(taker for taker in asleep if taker.share)

    @staticmethod
    def _wake(takers: Iterable[_Taker]) -> None:
        for taker in takers:
            taker.woken = True
            taker.changed.notify()


def _poorest(takers: list[_Taker], given: Counter[int]) -> _Taker:
    """Return whose rank was given the fewest batches."""
    return min(takers, key=lambda taker: given[taker.rank]) if len(takers) > 1 else takers[0]


def nbytes(produced: Produced) -> int:
    """Return the bytes of a batch's arrays."""
    return sum(getattr(column, "nbytes", 0) for column in produced.columns.values())


def _weight(produced: Produced) -> int:
    """Estimate the bytes of a batch, those of its strings included."""
    weight = nbytes(produced)
    for column in produced.columns.values():
        if isinstance(column, np.ndarray) and column.dtype.hasobject:
            weight += sum(len(value) for value in column.flat if isinstance(value, (bytes, str)))
    return weight
