"""Who fetches which of the blocks that belong to a node, where several nodes miss them at the same time.

The first that asks for a block fetches it, and the others are told who does.  A turn ends when the block has come, when
whoever has it gives up, or after a while: who fetches may be slow.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

# docs/decisions/shared-cache-and-pipe.md#77-one-of-several-nodes-fetches.
TURN_S = 5.0
"""As long as those on one node wait for one another."""
MOST_TURNS = 1 << 16
"""Of more blocks, 64 GiB of them, it is not known who fetches them: some ten MB of memory."""


class Fetcher(NamedTuple):
    """A read that fetches what it misses."""

    node: str
    process: int
    number: int
    """Of the process's reads."""


class FetchClaims:
    """The turns at the blocks of one node."""

    def __init__(self) -> None:
        self._claims: OrderedDict[str, tuple[Fetcher, float]] = OrderedDict()
        """By the block: who fetches it, and until when; the oldest first."""
        self._rejected: OrderedDict[str, float] = OrderedDict()
        """Blocks that came and found no room, and until when that is remembered: nobody waits for one of these."""

    def __len__(self) -> int:
        return len(self._claims)

    def take(self, key: str, by: Fetcher, now: float) -> Fetcher | None:
        """Let `by` fetch a block from now on, and return None; or return who does already."""
        self._end_old(now)
        # A block that is not kept never arrives here, so waiting for it would last a whole turn.
        if key in self._rejected:
            return None
        found = self._claims.get(key)
        if found is not None:
            return None if found[0] == by else found[0]
        if len(self._claims) < MOST_TURNS:
            self._claims[key] = by, now + TURN_S
        return None

    def complete(self, key: str) -> None:
        """End the turn at a block that has come, whoever has sent it."""
        self._claims.pop(key, None)

    def rejected(self, key: str, now: float) -> None:
        """Let everybody fetch a block that has come and is not kept."""
        self._claims.pop(key, None)
        # Taken out first, so that it goes to the end: `_end_old` relies on their order.
        self._rejected.pop(key, None)
        self._rejected[key] = now + TURN_S
        if len(self._rejected) > MOST_TURNS:
            self._rejected.popitem(last=False)

    def cancel_fetch(self, keys: Iterable[str], by: Fetcher) -> None:
        """End the turns that `by` has at some blocks."""
        for key in keys:
            # Its turn may have ended, and belong to another reader by now.
            if (found := self._claims.get(key)) is not None and found[0] == by:
                del self._claims[key]

    def _end_old(self, now: float) -> None:
        while self._rejected and now >= next(iter(self._rejected.values())):
            self._rejected.popitem(last=False)
        # All turns last equally long, so they end in the order in which they began.
        while self._claims:
            key, (_, until) = next(iter(self._claims.items()))
            if now < until:
                break
            del self._claims[key]
