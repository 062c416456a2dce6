"""Rounds of coordinated reads: a batch for each rank, all of one bucket and from one worker.

A worker makes its rounds one after the other, and each rank receives its batches of a worker in order: so numbers tell
all, and what every rank has received of a worker are its *complete* rounds.  A complete round gets its *turn*, once and
for all: ranks use their batches in the order of turns.  Let c(w) be the complete rounds of worker w and n(w, r) what
rank r has received of it: then c(w) = min over r of n(w, r), and rank r holds n(w, r) - c(w) batches without a turn.
When w is gone and all ranks have settled about it, they give these back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Turns: TypeAlias = tuple[tuple[str, int], ...]
"""Workers, and how many rounds in a row each of them gives."""


# Why rounds have no fixed order of workers: docs/decisions/batches-and-groups.md#47-rounds
class Rounds:
    """Which rounds are complete, in which order they are used, and what must be given back."""

    def __init__(self, ranks: int, *, made: bool = True) -> None:
        """`made`: rounds are made at all."""
        self._ranks, self._produced = ranks, made
        self._received: dict[str, list[int]] = {}
        """By worker: batches that each rank has received of it."""
        self._left = False
        """All ranks have left the epoch: no round of it gets complete any more."""
        self._complete: dict[str, int] = {}
        self._waiting: dict[str, int] = {}
        """Complete rounds that have no turn yet; the worker whose turn is next comes first."""
        self._schedule: deque[tuple[str, int]] = deque()
        self.first = self.count = 0
        """Number of the first turn that is kept, and of all there have been."""
        self.in_epoch = 0
        """Complete rounds of this epoch."""
        self._lost_workers: list[str] = []
        """Workers that are gone, of which ranks may have batches that they must give back."""
        self._pending_returns = [0] * ranks
        """Of each rank, how many such batches it has yet to give back."""

    def received(self, rank: int, worker: str, batches: int) -> None:
        """Note batches that a rank has received of a worker."""
        if not self._produced or self._left:
            return
        counts = self._received.setdefault(worker, [0] * self._ranks)
        counts[rank] += batches
        fresh = min(counts) - self._complete.get(worker, 0)
        if fresh:
            self._complete[worker] = self._complete.get(worker, 0) + fresh
            self._waiting[worker] = self._waiting.get(worker, 0) + fresh
            self.in_epoch += fresh

    def schedule_rounds(self, used_by_all: int) -> Sequence[str]:
        """Give the complete rounds their turns, one of each worker after the other; return whose they are.

        Every rank has used so many batches: nobody needs to be told of their turns any more.
        """
        taken: list[str] = []
        if not self._waiting:
            return taken
        while self._schedule and self.first + self._schedule[0][1] <= used_by_all:
            self.first += self._schedule.popleft()[1]
        # Whoever had the last turn goes behind the others, so that workers take turns from call to call, too.
        if self._schedule and self._schedule[-1][0] in self._waiting:
            self._waiting[self._schedule[-1][0]] = self._waiting.pop(self._schedule[-1][0])
        while self._waiting:
            worker, rounds = next(iter(self._waiting.items()))
            del self._waiting[worker]
            # Turns of one worker in a row are one entry, because orders carry all that some rank has not used.
            now = rounds if not self._waiting else 1
            if rounds > now:
                self._waiting[worker] = rounds - now
            if self._schedule and self._schedule[-1][0] == worker:
                self._schedule[-1] = (worker, self._schedule[-1][1] + now)
            else:
                self._schedule.append((worker, now))
            taken += [worker] * now
        self.count += len(taken)
        return taken

    @property
    def schedule(self) -> Turns:
        """The turns from `first` on."""
        return tuple(self._schedule)

    def leave_epoch(self) -> None:
        """Note that all ranks have left the epoch: what is complete by now is used or passed over, and no more."""
        self._left = True

    def begin_epoch(self) -> None:
        """Note that an epoch begins; what was left of the one before is with nobody any more."""
        self.in_epoch = 0
        if self._left:
            self._left = False
            self._received.clear()
            self._complete.clear()
            self._lost_workers.clear()
            self._pending_returns = [0] * self._ranks

    def note_lost(self, worker: str) -> None:
        """Note that a worker is gone, and that all ranks have told what they have received of it."""
        if self._left:
            return
        counts, complete = self._received.pop(worker, []), self._complete.pop(worker, 0)
        if max(counts, default=0) > complete:
            self._lost_workers.append(worker)
            self._pending_returns = [
                owed + count - complete for owed, count in zip(self._pending_returns, counts, strict=True)
            ]

    def given_back(self, rank: int, batches: int) -> None:
        """Note that a rank has given back batches without a turn."""
        self._pending_returns[rank] -= batches if self._produced and not self._left else 0
        if not any(self._pending_returns):
            self._lost_workers.clear()

    @property
    def lost_workers(self) -> tuple[str, ...]:
        """Workers of which ranks must give back what has no turn; empty once all have."""
        return tuple(self._lost_workers)

    def missing(self) -> list[int]:
        """Return the ranks that lack their batch of an incomplete round: one of the worker that came first."""
        for worker, counts in self._received.items():
            complete = self._complete.get(worker, 0)
            if max(counts) > complete:
                return [rank for rank, count in enumerate(counts) if count == complete]
        return []


def expand_rounds(first: int, turns: Turns, known: int) -> Sequence[str]:
    """Return the workers of the turns from number `known` on, where the first of `turns` has number `first`."""
    workers: list[str] = []
    at = first
    for worker, rounds in turns:
        begin = max(at, known)
        at += rounds
        workers += [worker] * max(0, at - begin)
    return workers


class HeldUp:
    """For how long ranks waited for others that had not received their batch of a round."""

    def __init__(self, ranks: int) -> None:
        self.seconds = [0.0] * ranks
        """By rank that they waited for."""
        self.by: Sequence[int] = ()
        """Ranks that are waited for now."""
        self._since = 0.0

    def look(self, now: float, rounds: Rounds, waiting: Iterable[int]) -> None:
        """See which ranks are waited for from now on; `waiting`: what ranks have used that wait for others."""
        by = rounds.missing() if rounds.count in waiting else ()  # who has used fewer can go on
        for rank in self.by:
            self.seconds[rank] += now - self._since
        self.by, self._since = by, now
