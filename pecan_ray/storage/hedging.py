"""When a read of an object store is asked for a second time: numbers in, a decision with its reason out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# All numbers: docs/decisions/storage.md#72-late-reads-are-asked-for-twice. After the median half of a
# stream's requests would be made twice.
QUANTILE = 0.95
"""A read may be late that takes longer than this share of the latest ones of its size."""
TIMES = 2.0
"""It is late if it takes so many times as long as these."""
LEAST_S = 0.5
"""It is late if it also takes longer than this: what lies ahead of the training is not worth a request for less."""
FEWEST = 32
"""Reads of a size must have come before one is late."""
SHARE = 0.05
"""Of requests, and of bytes, may be asked for again."""
# Decision 72: with more saved up, a store that stalls after an hour would be met by hundreds of requests.
MOST_SAVED = 4
"""Requests that may be asked for again at a time, however many came in time before."""
MOST_SAVED_BYTES = 32 << 20
"""Bytes, likewise."""
LOOK_S = 0.25
"""Where something is in the way of asking again, it is looked at again after this time."""


@dataclass(frozen=True)
class LateRead:
    """A read that has not come."""

    waited_s: float
    nbytes: float
    """Bytes that are expected."""
    failing: bool = False
    """It has failed and is being tried again."""


@dataclass(frozen=True)
class HedgeBudget:
    """How much may be asked for again."""

    # A process's first late read need not wait until twenty others have earned a request.
    requests: float = 1.0
    nbytes: float = MOST_SAVED_BYTES
    """Less than nothing where more has come than was expected."""

    def after_read(self, nbytes: int) -> HedgeBudget:
        """Return what it is when a read has come."""
        return HedgeBudget(min(MOST_SAVED, self.requests + SHARE), min(MOST_SAVED_BYTES, self.nbytes + SHARE * nbytes))

    def consume(self, nbytes: float) -> HedgeBudget:
        """Return what is left when a read of so many bytes is asked for again."""
        return HedgeBudget(self.requests - 1.0, self.nbytes - nbytes)

    def corrected(self, expected: float, nbytes: int) -> HedgeBudget:
        """Return what is left when a read that was asked for twice has brought more bytes than were expected."""
        return HedgeBudget(self.requests, self.nbytes - max(0.0, nbytes - expected))


@dataclass(frozen=True)
class HedgeDecision:
    """Whether a read is asked for a second time."""

    retry: bool
    reason: str
    look_s: float = LOOK_S
    """When to ask again, where it is not."""


def late_after(seconds: Sequence[float]) -> float | None:
    """Return after what time a read is late, by what the latest ones of its size took; None: they do not tell yet."""
    if len(seconds) < FEWEST:
        return None
    return max(LEAST_S, TIMES * sorted(seconds)[int(QUANTILE * len(seconds))])


def decide_hedge(read: LateRead, late_s: float, budget: HedgeBudget, *, late_together: int) -> HedgeDecision:
    """Decide whether a read is asked for again.

    `late_together`: reads that are asked for twice now, of which one or both answers have not come.
    """
    if read.waited_s < late_s:
        return HedgeDecision(False, f"it is late after {late_s:.2f} s", late_s - read.waited_s)
    # Decision 72: it is tried again already, with the pauses that the store has asked for.
    if read.failing:
        return HedgeDecision(False, "the store fails, and is asked again as it is")
    if late_together >= MOST_SAVED:
        return HedgeDecision(False, f"{late_together} others are late, too: the store or the way to it is slow")
    if budget.requests < 1.0:
        return HedgeDecision(False, f"{SHARE:.0%} of the requests were made twice")
    if budget.nbytes < read.nbytes:
        return HedgeDecision(False, f"{SHARE:.0%} of the bytes were asked for twice")
    return HedgeDecision(True, f"it has taken {read.waited_s:.2f} s, where it is late after {late_s:.2f} s")
