"""Epochs that training loops leave before their ends.

A rank whose loop has left an epoch passes over what comes of it, in step with the others, so that those that go on get
their part of it.  Once all ranks have left it there is a *level*: so many of its batches every rank keeps as received.
What a rank has beyond that it gives back, and from then on it *takes* nothing of the epoch any more, whatever is still
on its way.  When all ranks have said so, all that is known of the epoch is forgotten, and the next one begins.  A rank
that is alone has no other to agree with: it takes nothing more as soon as it leaves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopPlace:
    """How far a rank's training loop has come in the epochs, as far as it has left any."""

    left: int = 0
    """Epochs before this one are left, or over."""
    closed: int = 0
    """Of epochs before this one nothing is taken any more."""


NOWHERE = LoopPlace()
"""Where every loop begins: it has left nothing."""


# Why a new iterator does not go on:
# docs/decisions/randomness-and-passes.md#106-a-new-iterator-is-a-new-pass
class LeftEpochs:
    """Which epochs all ranks have left, and how many of them had not ended."""

    def __init__(self, ranks: int) -> None:
        self._ranks = [NOWHERE] * ranks
        self.count, self._reported_epoch = 0, -1
        """Number of epochs that were left before their ends, and the last one."""

    def note_report(self, rank: int, place: LoopPlace) -> bool:
        """Note what a rank tells; return whether that is something new."""
        before = self._ranks[rank]
        now = LoopPlace(max(before.left, place.left), max(before.closed, place.closed))
        self._ranks[rank] = now
        return now != before

    def by_all(self, epoch: int) -> bool:
        """Tell whether all ranks have left an epoch."""
        return min(one.left for one in self._ranks) > epoch

    def closed_by_all(self, epoch: int) -> bool:
        """Tell whether no rank takes anything of an epoch any more."""
        return min(one.closed for one in self._ranks) > epoch

    def consumers(self, epoch: int) -> list[int]:
        """Return the ranks that have yet to say that they take nothing of an epoch any more."""
        return [rank for rank, one in enumerate(self._ranks) if one.closed <= epoch]

    def note(self, epoch: int) -> None:
        """Count an epoch of which something was left, once."""
        self.count += epoch > self._reported_epoch
        self._reported_epoch = max(self._reported_epoch, epoch)
