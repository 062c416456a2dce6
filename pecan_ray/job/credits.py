"""How many messages each worker may send to a trainer: a few ahead where there is room, else one from each."""

from __future__ import annotations

from collections.abc import Callable

MOST_AHEAD = 4
"""Messages of one worker that are under way at a time: they keep the trainer busy until the worker is woken."""
EARLY_SHARE = 0.75
"""Of the bytes that may be queued, the share that rows of whole splits have which come before their turn: the next rows
have the rest, so that they come ahead of the training loop."""
FEW_AHEAD = 2
"""With more than so many nothing is granted: each grant wakes the worker."""


# Why workers send nothing without a credit: docs/decisions/transport.md#21-credits
class MessageQuota:
    """Credits that were granted and not used, by worker."""

    def __init__(self, prefetch_bytes: int) -> None:
        self._prefetch_bytes = prefetch_bytes
        self._open: dict[str, int] = {}
        self._message_bytes = 0.0
        """Mean size of a message, lately."""
        self._without: set[str] = set()
        """Open streams that have no credit, since there was no room."""

    def room(self, queued_bytes: int) -> bool:
        """Tell whether the queue has room for another message."""
        return queued_bytes < self._prefetch_bytes

    @property
    def lacking(self) -> bool:
        """Whether an open stream has no credit."""
        return bool(self._without)

    def room_early(self, early_bytes: int) -> bool:
        """Tell whether there is room for rows that come before their turn, of which so many bytes are here."""
        return early_bytes < EARLY_SHARE * self._prefetch_bytes

    def opened(self, worker: str, may_send: Callable[[str], bool]) -> dict[str, int]:
        """Note a new stream; return the credits to grant."""
        self._open[worker] = 0
        self._without.add(worker)
        return self.freed(may_send)

    def closed(self, worker: str) -> None:
        """Note that a stream is over."""
        self._open.pop(worker, None)
        self._without.discard(worker)

    def granted(self, worker: str) -> int:
        """Return how many messages may be on their way from a worker."""
        return self._open.get(worker, 0)

    def freed(self, may_send: Callable[[str], bool]) -> dict[str, int]:
        """Return the credits to grant now: every stream has one whose worker may send."""
        # Sorted, because the order of a set differs from process to process.
        granted = dict.fromkeys(filter(may_send, sorted(self._without)), 1)
        self._open.update(granted)
        self._without.difference_update(granted)
        return granted

    def used(self, worker: str, nbytes: int, queued_bytes: int, room: bool) -> dict[str, int]:
        """Note that a message has come; return the credits to grant."""
        self._message_bytes = nbytes if not self._message_bytes else 0.8 * self._message_bytes + 0.2 * nbytes
        if worker not in self._open:
            return {}
        self._open[worker] = max(0, self._open[worker] - 1)
        if self._open[worker] > FEW_AHEAD:
            return {}
        granted = 0
        # Decision 21: what is granted is read at once when it comes, so it counts as if it were in the queue.
        under_way = queued_bytes + sum(self._open.values()) * self._message_bytes
        while (
            room
            and self._open[worker] < MOST_AHEAD
            # One message of each worker may exceed the bound: a batch larger than the queue would never come otherwise.
            and (not self._open[worker] or under_way + self._message_bytes <= self._prefetch_bytes)
        ):
            self._open[worker] += 1
            under_way += self._message_bytes
            granted += 1
        if not self._open[worker]:
            self._without.add(worker)
        return {worker: granted} if granted else {}
