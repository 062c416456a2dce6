"""Elements that were left out: each counted once, however often it is read, and how many of them a job bears.

Those that no batch takes to a trainer (nothing of theirs fills one, or their workers died of them) are told to one of
the trainers, which keeps them as it keeps the others.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Hashable, Iterable, Set
from dataclasses import replace

from pecan_ray.errors import ErrorBudgetError
from pecan_ray.job.messages import LeftOutElement
from pecan_ray.job.resume_point import ResumePoint
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.budget import BadCount, over_budget

MOST_REMEMBERED = 100_000
"""Identities that are kept: the oldest ones are forgotten first."""
MOST_TOLD = 8192
"""Digests in a state, which take some 25 KB."""
MOST_KEPT_BYTES = 64 * 2**20
"""Of elements that wait for a trainer to take them; of more their names alone are told, so that bad data cannot fill
the controller."""


def digest_of(identity: Hashable) -> int:
    """Return a number that stands for a bad element in any process."""
    # Not hash(): that of a text differs from process to process.
    return zlib.crc32(repr(identity).encode())


class BadElements:
    """Counts bad elements against the error budget."""

    def __init__(self, job: str, share: float, start: ResumePoint | None = None) -> None:
        """`start`: where a run before this one was; what it has dealt with may be read again."""
        self._job, self._share, self._start = job, share, start
        self._handled = frozenset(start.bad if start is not None else ())
        self._known: dict[Hashable, int | None] = {}
        """With the epochs in which they were read."""
        self.bad_count = BadCount()
        self.last: LeftOutElement | None = None
        self._epoch = -1
        self.of_splits: dict[LeaseKey, set[int]] = {}
        """Which elements are bad of each split, in the epoch at hand."""
        self.abandoned = 0
        """Good elements of epochs that the loops left before trainers had them: nobody else gets them."""

    def begin_epoch(self, epoch: int) -> bool:
        """Note the epoch at hand; return whether another one was before."""
        if epoch == self._epoch:
            return False
        self._epoch, self.of_splits = epoch, {}
        return True

    def add(self, elements: Iterable[LeftOutElement]) -> list[LeftOutElement]:
        """Take reports of bad elements; return those that were not known."""
        fresh = []
        for one in elements:
            if one.identity in self._known or (self._handled and digest_of(one.identity) in self._handled):
                continue
            self._known[one.identity] = None if one.origin is None else one.origin.epoch
            # A dict keeps the order of insertion, so its first key is the oldest.
            while len(self._known) > MOST_REMEMBERED:
                del self._known[next(iter(self._known))]
            self.bad_count = self.bad_count.plus(one.elements, estimated=one.estimated, open_end=one.open_end)
            self.last = one
            if (at := one.origin) is not None and at.epoch == self._epoch:
                self.of_splits.setdefault((at.branch, at.repetition, at.split), set()).add(at.element)
            fresh.append(one)
        return fresh

    @property
    def count(self) -> int:
        """Return the number of bad elements, or the least that it can be."""
        return self.bad_count.elements

    def digests(self, epoch: int) -> tuple[int, ...]:
        """Return what stands for the bad elements of an epoch, those included that a run before this one has had of it.

        By these they are known where a plan that cannot be cut is run again.  Of very many only some are told.
        """
        continues = self._start is not None and self._start.epoch == epoch
        # Elements without an origin are of no known epoch, so they count for each one.
        mine = [digest_of(identity) for identity, known in self._known.items() if known in (epoch, None)]
        return tuple(sorted({*mine[-MOST_TOLD:], *(self._handled if continues else ())})[:MOST_TOLD])

    @property
    def identities(self) -> Set[Hashable]:
        """Name those that are known."""
        return self._known.keys()

    def over_budget(self, good: int) -> ErrorBudgetError | None:
        """Return the error that ends a job with too many of them beside so many good ones."""
        if self.last is None:
            return None
        last = f"{self.last.where} in {self.last.op}: {self.last.error}"
        return over_budget(self._job, self.bad_count, good, self._share, last)


class QuarantineQueue:
    """The bad elements that a trainer must yet be told of."""

    def __init__(self) -> None:
        self._waiting: deque[LeftOutElement] = deque()
        self._bytes = 0
        self.taken = 0
        """The number of those that a trainer has taken."""

    def add(self, elements: Iterable[LeftOutElement]) -> None:
        """Let elements wait for a trainer."""
        for one in elements:
            if self._bytes + len(one.kept) > MOST_KEPT_BYTES:
                one = replace(one, kept=b"", error=f"{one.error} (not kept: too much waited to be)")
            self._bytes += len(one.kept)
            self._waiting.append(one)

    def note_taken(self, count: int) -> None:
        """Note that a trainer has taken so many in all."""
        while self.taken < count and self._waiting:
            self._bytes -= len(self._waiting.popleft().kept)
            self.taken += 1

    @property
    def waiting(self) -> tuple[LeftOutElement, ...]:
        """The elements that a trainer must be told of."""
        return tuple(self._waiting)
