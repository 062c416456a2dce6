"""Where a worker's finished batches wait until they are sent, and which client is given which."""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.counting import element_bytes

MOST_BATCHES = 32
"""Most batches in one message to a client: small batches are sent together, large ones are rarely waiting."""
MESSAGE_BYTES = 1 << 20
"""Most bytes of several batches in one message: its reader waits for all of it before it has the first one."""
# Sixteen messages of MOST_BATCHES.
MOST_WAITING = 512
"""Of batches that wait with one address, or with none."""


class _Waiting(NamedTuple):
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
        # Decision 21: one for each taker, so that only those wake who can send something.
        self.changed = threading.Condition(lock)
        """Of the outbox's lock, which guards all of this."""
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


class _Dealt:
    """How many batches of each epoch the ranks were given, and whose turn it is."""

    def __init__(self, ranks: int, first: int) -> None:
        """`first`: of so many `ranks` the one that is served first."""
        self._ranks, self._first = ranks, first
        self._counts: dict[int, Counter[int]] = {}
        """By epoch and rank."""

    def of_epoch(self, epoch: int) -> Counter[int]:
        """Return how many batches of an epoch the ranks were given."""
        return Counter(self._counts.get(epoch))

    def note(self, epoch: int, rank: int) -> None:
        """Note that a rank was given a batch; the epochs before the one before this are forgotten."""
        if epoch not in self._counts:
            self._counts = {known: ranks for known, ranks in self._counts.items() if known >= epoch - 1}
            self._counts[epoch] = Counter()
        self._counts[epoch][rank] += 1

    def take_back(self, epoch: int, rank: int) -> None:
        """Note that a batch did not reach the rank that it was given to."""
        if epoch in self._counts:
            self._counts[epoch][rank] -= 1

    def served(self) -> set[int]:
        """Return the ranks that were given anything."""
        return {rank for ranks in self._counts.values() for rank, count in ranks.items() if count}

    def turn(self, rank: int) -> int:
        """Return the place of a rank among those that were given equally many."""
        # Dealt by who has waited longest, batches of several workers came out unevenly.
        # Ranks with more gave theirs back at the end of an epoch, and these were made again.
        return (rank - self._first) % self._ranks


class Outbox:
    """Finished batches until a client may be sent them; some are addressed to one rank.

    Who calls `take` has a credit of its rank's client.  A batch without an address goes to the rank that was given
    the fewest of its epoch, among those that wait; of several to the next one in turn, and each worker begins with
    another rank.  So ranks have equally many when an epoch ends: what some have beyond others is made again.
    """

    def __init__(self, most_bytes: float = math.inf, ranks: int = 1, first: int = 0) -> None:
        """`most_bytes`: of the batches that wait with one address, unless one alone is larger.

        Columns of strings and of objects take no slot, so that no ring bounds them.  `first`: of so many `ranks` the
        one that is served first.
        """
        self._most_bytes, self._dealt = most_bytes, _Dealt(ranks, first)
        self._lock = threading.Lock()
        """Guards everything here."""
        self._room = threading.Condition(self._lock)
        self._batches: dict[int | None, deque[_Waiting]] = {}
        """By address; none is empty."""
        self._bytes: Counter[int | None] = Counter()
        self._waiters: list[_Taker] = []
        """Those that wait, the longest first."""
        self._requested_addresses: set[int | None] = {None}
        """Addresses of the batches that those who wait may have."""
        self._at_end: list[tuple[int, Callable[[], None]]] = []
        self._first = self._next = 0
        self._closed, self.left = False, 0
        """Whether no more comes, and before which epoch nothing is kept."""
        self._readers: set[int] | None = None
        """The only ranks for which anything is kept; None: all."""

    def put(self, produced: Produced, rank: int | None) -> None:
        """Add a batch, for one rank or for whoever may have it; waits while many, or large ones, of this address wait.

        So a batch never waits behind those with other addresses, and this ends.  Without an address: a client that
        starves has granted a credit, and takes what is there.  With one: batches are dealt to all ranks in turn, so
        whoever starves was given as many as the rank that these are for, and those that wait here besides.  That rank
        is behind, then, and not waiting for the other: it uses what is in its queue, and grants a credit.
        """
        nbytes = element_bytes(produced.columns)
        with self._lock:
            self._room.wait_for(
                lambda: self._closed or not self._is_wanted(rank, produced.epoch) or self._has_room(rank, nbytes)
            )
            if not self._is_wanted(rank, produced.epoch):
                release_slot(produced)
                return
            batch = _Waiting(self._next, rank, produced, nbytes)
            self._next += 1
            self._batches.setdefault(rank, deque()).append(batch)
            self._bytes[rank] += nbytes
            self._notify_waiters()

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
            self._waiters.append(taker)
            self._requested_addresses.add(rank)
            try:
                while wanted():
                    taker.woken = False
                    early = not_before - time.monotonic()
                    if early <= 0 or self._can_serve_all():
                        self._assign_batches()
                        if taker.share:
                            return self._pop_for(taker)
                        if self._over(rank):
                            return []
                    taker.changed.wait(early if early > 0 else None)
                return []
            finally:
                # What was left to this one may go to others now: they are woken below.
                self._waiters.remove(taker)
                self._requested_addresses = {None, *(other.rank for other in self._waiters)}
                self._notify_waiters()

    def put_back(self, rank: int, batches: list[Produced]) -> None:
        """Let batches that a rank was given be the next that it is given: another way to it has failed."""
        with self._lock:
            for produced in reversed(batches):
                # Numbers below all others, so that these go before all that was finished since.
                self._first -= 1
                batch = _Waiting(self._first, rank, produced, element_bytes(produced.columns))
                self._batches.setdefault(rank, deque()).appendleft(batch)
                self._bytes[rank] += batch.nbytes
                self._dealt.take_back(produced.epoch, rank)
            self._notify_waiters()

    def wake(self) -> None:
        """Let those who wait see whether they still want batches."""
        with self._lock:
            self._wake(self._waiters)

    def at_end(self, rank: int, call: Callable[[], None]) -> None:
        """Have a function called once there will be no more for a rank; it must not call the outbox."""
        with self._lock:
            self._at_end.append((rank, call))
            self._tell()

    def leave_epochs(self, before: int) -> None:
        """Drop the batches of epochs before one, also those that are yet to be put here: nobody wants them."""
        with self._lock:
            self.left = max(self.left, before)
            dropped = self._drop_unwanted()
        # Outside of the lock, since the slots' ring has one of its own.
        for batch in dropped:
            release_slot(batch.produced)

    def drain(self) -> None:
        """Drop what is for ranks that were given nothing so far: one that has never met this worker takes nothing.

        Else these batches would keep the memory that the next one waits for.  The job has them made again.
        """
        with self._lock:
            # Also what is yet to be put here: a rank that lacks its first batches would take a later one for the first.
            if self._readers is None:
                self._readers = self._dealt.served()
            dropped = self._drop_unwanted()
        for batch in dropped:
            release_slot(batch.produced)

    def _is_wanted(self, rank: int | None, epoch: int) -> bool:
        """Tell whether to keep a batch with an address."""
        return epoch >= self.left and (rank is None or self._readers is None or rank in self._readers)

    def _drop_unwanted(self) -> list[_Waiting]:
        """Take out the batches that nobody wants, so that there is room for others."""
        lots = [(rank, batch) for rank, lot in self._batches.items() for batch in lot]
        dropped = [(rank, batch) for rank, batch in lots if not self._is_wanted(rank, batch.produced.epoch)]
        for rank in {rank for rank, _ in dropped}:
            kept = deque(batch for batch in self._batches.pop(rank) if self._is_wanted(rank, batch.produced.epoch))
            self._bytes[rank] = sum(batch.nbytes for batch in kept)
            if kept:
                self._batches[rank] = kept
        self._room.notify_all()
        return [batch for _, batch in dropped]

    def close(self) -> None:
        """No more batches come: takers get what is left, then nothing."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            self._wake(self._waiters)
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

    def _has_room(self, rank: int | None, nbytes: int) -> bool:
        """Tell whether a batch with an address may be added: the first one always may."""
        waiting = len(self._batches.get(rank, ()))
        return not waiting or (waiting < MOST_WAITING and self._bytes[rank] + nbytes <= self._most_bytes)

    # --- who is given what ---------------------------------------------------------------------------------

    def _can_serve_all(self) -> bool:
        """Tell whether nobody has to wait for more: there is a message for everybody who waits, or the last one."""
        count = nbytes = 0
        for address in self._requested_addresses:
            if address in self._batches:
                count += len(self._batches[address])
                nbytes += self._bytes[address]
        if self._closed or count >= min(sum(taker.most for taker in self._waiters), MOST_WAITING):
            return True
        return nbytes >= sum(taker.most_bytes for taker in self._waiters)

    def _assign_batches(self) -> None:
        """Share the batches out among those who wait, as far as they go into a message to each."""
        for taker in self._waiters:
            taker.clear()
        lots = [self._batches[address] for address in self._requested_addresses if address in self._batches]
        # Each lot is in order already, and no more of it is looked at than goes into messages.
        batches = lots[0] if len(lots) == 1 else heapq.merge(*lots, key=lambda batch: batch.number)
        if len(self._waiters) == 1:
            all(map(self._waiters[0].add, batches))  # until it is full
            return
        able = list(self._waiters)
        given: dict[int, Counter[int]] = {}
        for batch in batches:
            epoch = batch.produced.epoch
            if epoch not in given:
                given[epoch] = self._dealt.of_epoch(epoch)
            self._assign_to_least_loaded(batch, able, given[epoch])
            if not able:
                break

    def _assign_to_least_loaded(self, batch: _Waiting, able: list[_Taker], given: Counter[int]) -> None:
        """Add a batch to the message of the rank that was given fewest; who has no room is able no more."""
        while fitting := [taker for taker in able if batch.rank in (None, taker.rank)]:
            poorest = min(fitting, key=lambda one: (given[one.rank], self._dealt.turn(one.rank)))
            if poorest.add(batch):
                given[poorest.rank] += 1
                return
            able.remove(poorest)

    def _pop_for(self, taker: _Taker) -> list[Produced]:
        """Take out what was allotted."""
        behind: set[int] = set()
        for batch in taker.share:
            lot = self._batches[batch.rank]
            # Mostly the first ones are taken; those from the midst are taken out together below.
            if lot[0] is batch:
                lot.popleft()
            else:
                behind.add(batch.number)
            self._bytes[batch.rank] -= batch.nbytes
            self._dealt.note(batch.produced.epoch, taker.rank)
        for address in {batch.rank for batch in taker.share}:
            if behind:
                self._batches[address] = deque(one for one in self._batches[address] if one.number not in behind)
            if not self._batches[address]:
                del self._batches[address]
        self._room.notify_all()
        if self._closed:
            self._tell()
            self._wake(self._waiters)
        return [batch.produced for batch in taker.share]

    def _notify_waiters(self) -> None:
        """Wake those who have something to take now, each once."""
        asleep = [taker for taker in self._waiters if not taker.woken]
        # The cheap question first, because this is asked for each batch.
        if not asleep or self._requested_addresses.isdisjoint(self._batches):
            return
        if not self._can_serve_all():
            now = time.monotonic()
            asleep = [taker for taker in asleep if taker.not_before <= now]
            if not asleep:
                return
        self._assign_batches()
        self._wake(taker for taker in asleep if taker.share)

    @staticmethod
    def _wake(consumers: Iterable[_Taker]) -> None:
        for taker in consumers:
            taker.woken = True
            taker.changed.notify()


def release_slot(produced: Produced) -> None:
    """Give a batch's memory back."""
    if produced.slot is not None:
        produced.slot.release()
