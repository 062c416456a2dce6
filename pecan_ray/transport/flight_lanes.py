"""What a worker has sent to a client and does not know to have arrived: the memory of streams that may break.

A *lane* is the way to one client, and outlives the streams that it is served by: when one breaks, the client opens the
next and says how many lots it has received.  These are confirmed; the others are sent again, in the
same lots and order, for which no other credit is needed.  A stream that was replaced, but does not know it yet, takes
nothing more: it has lost its turn.
"""

from __future__ import annotations

import threading
from collections import deque

from pecan_ray.engines.contract import Produced
from pecan_ray.transport.credits import Credits
from pecan_ray.transport.outbox import MOST_BATCHES, Outbox

LOT_BYTES = 256 << 10
"""Small batches travel together up to this size, if they are waiting; a larger one travels alone, because a message
then costs little beside its bytes."""


class Lane:
    """The lots for one client, from the outbox to their confirmation."""

    def __init__(self, rank: int, outbox: Outbox) -> None:
        """Prepare to send to the client of a rank."""
        self._rank, self._outbox = rank, outbox
        self._credits = Credits()
        self._granted = 0
        self._total_lock = threading.Lock()
        """Guards how much was granted."""
        self._kept: deque[list[Produced]] = deque()
        self._confirmed = 0
        self._turn = 0
        self._take_lock = threading.Lock()
        """Guards the way from the outbox: one stream takes lots at a time, so that they keep their order."""
        self._keeping = threading.Lock()
        """Guards what is kept, how many lots are confirmed, and the turn; held for moments only."""
        self.finished = threading.Event()
        """The client has everything, or gets the rest another way."""
        # A stream that waits for a credit would otherwise never see that there is no more.
        outbox.at_end(rank, self._credits.close)

    def granted(self, total: int) -> None:
        """Note how many lots the client has granted since it began."""
        with self._total_lock:
            # Decision 21: clients tell sums since the beginning, because an answer may be lost with its stream.
            more = total - self._granted
            if more > 0:
                self._granted = total
                self._credits.add(more)

    def open(self, received: int) -> int:
        """Begin a stream to a client that has received so many lots; return the turn that identifies it."""
        # Before the lock: the older stream holds it while it waits, and lets go once it has lost its turn.
        turn = self._next_turn()
        with self._take_lock:
            self.confirm(received)
        return turn

    def _next_turn(self) -> int:
        with self._keeping:
            self._turn += 1
            turn = self._turn
        self._credits.wake()
        self._outbox.wake()
        return turn

    def current(self, turn: int) -> bool:
        """Tell whether no newer stream was opened."""
        return self._turn == turn

    def lot(self, number: int, turn: int) -> list[Produced] | None:
        """Return a lot that is not confirmed, or the next one, waiting for a credit and for batches.

        None: there is no more, or the stream has lost its turn.
        """
        with self._take_lock:
            if not self.current(turn):
                return None
            with self._keeping:
                place = number - self._confirmed
                # It was paid for with a credit when it was sent first.
                if place < len(self._kept):
                    return self._kept[place]
            if not self._credits.wait(lambda: self.current(turn)):
                return None
            taken = self._outbox.take(self._rank, MOST_BATCHES, LOT_BYTES, lambda: self.current(turn))
            if not taken:
                # Back to the client: nothing was sent for it.
                self._credits.add(1)
                return None
            with self._keeping:
                self._kept.append(taken)
            return taken

    def confirm(self, received: int) -> None:
        """Note how many lots the client has received in all: their memory can be used again."""
        arrived: list[Produced] = []
        with self._keeping:
            # No more than was sent, whatever a client says.
            while self._confirmed < received and self._kept:
                arrived += self._kept.popleft()
                self._confirmed += 1
        # Outside the lock, which is held for moments only: a slot takes the ring's lock.
        for produced in arrived:
            if produced.slot is not None:
                produced.slot.release()

    def close(self, received: int) -> None:
        """End the lane: what the client has not received goes back to the outbox, in order."""
        # First: the stream that is open holds the lock while it waits, and lets go once it has lost its turn.
        self._next_turn()
        with self._take_lock:
            self.confirm(received)
            with self._keeping:
                rest = [produced for lot in self._kept for produced in lot]
                self._kept.clear()
            if rest:
                self._outbox.put_back(self._rank, rest)
        self.finished.set()
