"""Trials whose trainers have several ranks, as readers of one group: they begin together and take entries in turn.

Why with `max_lag` alone: docs/decisions/sharing.md#209-ranks-of-a-trial-read-in-turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pecan_ray.errors import PlanError


@dataclass(frozen=True)
class TrialRank:
    """Which of the trainers of a trial a reader is."""

    trial: str = ""
    rank: int = 0
    world_size: int = 1


@dataclass
class TrialMember:
    """A reader that comes: alone, or as a rank that waits for the others of its trial."""

    reader: str
    epochs: int | None
    behind: int
    """The last epoch that its program has read before."""
    of: TrialRank
    requests: int = 0
    """Entries that it has room for."""


class IncompleteTrials:
    """Trials of which not all ranks have come."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[int, TrialMember]] = {}
        self.to_serve: tuple[str, ...] = ()
        """Readers of trials that are complete since somebody was served."""

    def add(self, member: TrialMember) -> list[TrialMember]:
        """Let a rank come; return all of its trial if they are complete now.  Raises PlanError if it does not fit."""
        of, ranks = member.of, self._ranks.setdefault(member.of.trial, {})
        others = {(one.epochs, one.of.world_size) for one in ranks.values()}
        if of.rank in ranks or others - {(member.epochs, of.world_size)}:
            raise PlanError(
                f"rank {of.rank} of {of.world_size} of job {of.trial!r}, which reads {member.epochs} epochs, does not "
                f"fit to the ranks that have come: {sorted(ranks)}. Ranks of a job agree in world_size and epochs, and "
                "no other job that shares the group has its name."
            )
        ranks[of.rank] = member
        if len(ranks) < of.world_size:
            return []
        del self._ranks[of.trial]
        self.to_serve += tuple(one.reader for one in ranks.values())
        # They may have read the group before, each in another process.
        behind = max(one.behind for one in ranks.values())
        return [replace(one, behind=behind) for one in ranks.values()]

    def remove(self, reader: str) -> None:
        """Let a reader go, if it is one of these."""
        if (member := self.find(reader)) is not None:
            del self._ranks[member.of.trial][member.of.rank]

    def find(self, reader: str) -> TrialMember | None:
        """Return the rank that a reader is; None: none of these."""
        return next((one for one in self.members() if one.reader == reader), None)

    def members(self) -> Iterator[TrialMember]:
        """Yield those that wait."""
        return (one for ranks in self._ranks.values() for one in ranks.values())


class RankTurns:
    """What one rank takes of an epoch's entries: every so many-th, and only of rounds that are whole."""

    def __init__(self, of: TrialRank) -> None:
        self._of = of
        self._entry: Any = None
        """This rank's one of a round that is not whole yet."""
        self.dropped = 0
        """Entries of rounds that the end of an epoch has left without the other ranks' part."""

    @property
    def is_one_of_many(self) -> bool:
        """Return whether its trial has other ranks."""
        return self._of.world_size > 1

    def take(self, index: int, entry: Any) -> Any:
        """Take the entry with a number in its epoch; return this rank's one of the round that it completes, or None."""
        turn = index % self._of.world_size
        if turn == 0:
            self.drop()
        if turn == self._of.rank:
            self._entry = entry
        if turn < self._of.world_size - 1:
            return None
        whole, self._entry = self._entry, None
        return whole

    def drop(self) -> None:
        """Drop a round that was begun and will not be whole: each rank gets as many entries as the others."""
        self.dropped += self._entry is not None
        self._entry = None
