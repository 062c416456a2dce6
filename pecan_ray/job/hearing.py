"""When a party of a job is dead: the one place where silence is weighed.

A party that says nothing for its deadline is lost, but for what excuses silence:

    counted = silent * (1 - starved)  (a tenth of the silence at least)
    lost    = counted > deadline and (its process has ended, or its last sign is older than the deadline)

*Starved* is a share of time: that in which threads of its process could run, and the system gave them no CPU.  It is
known of the time in which somebody has looked at the process; where nobody can, the share holds that it told itself
before its last word.  Whoever stands in line is late, not dead.  A process that stands still, hangs in native code or
waits for a disk does not stand in line, so its silence counts in full.  Silence of the time in which the controller
itself did not run never gets here: its clock (`active_clock`) stands still meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MAX_SHARE_WITH_CPU = 0.5
"""A party that stood in line for a CPU for a larger share of its silence may be silent for no other reason."""
LEAST_COUNTED = 0.1
"""Of a silence this share counts in any case, so that a starved party is waited for ten times as long at most: its work
is then better done elsewhere."""


# Decision 202: one rule for workers and trainers, on values alone.
@dataclass(frozen=True, slots=True)
class Hearing:
    """What is known of how a party gets on."""

    last_seen: float = 0.0
    """When it said something last."""
    told_share: float | None = None
    """Share of the time before `last_seen` in which it stood in line for a CPU, as it has told; None: it has not."""
    looked_s: float = 0.0
    """Seconds since `last_seen` in which somebody has looked at it."""
    starved_s: float = 0.0
    """Of `looked_s`, seconds in which it stood in line for a CPU."""
    found: float = -math.inf
    """When its process was last found to exist, though it said nothing."""
    first_checked_at: float = -math.inf
    """When somebody was first asked to look for it in this silence."""
    checked_at: float = -math.inf
    """When somebody was last asked to look for it in any silence."""
    ended: bool = False
    """Whether its process is known to have ended."""

    @property
    def last_sign(self) -> float:
        """When it last gave a sign that its process exists."""
        return max(self.last_seen, self.found)

    @property
    def was_asked(self) -> bool:
        """Return whether somebody was asked to look for it in this silence."""
        return self.checked_at >= self.last_seen

    def heard(self, now: float, told_share: float | None = None) -> Hearing:
        """Return what is known once it has said something: what was found out before is of a silence that is over.

        `told_share`: of the time since its last report it stood in line; None: it did not say.
        """
        share = self.told_share if told_share is None else told_share
        return Hearing(now, told_share=share, found=self.found, checked_at=self.checked_at, ended=self.ended)

    def asked(self, now: float) -> Hearing:
        """Return what is known once somebody was asked to look for it."""
        return replace(self, checked_at=now, first_checked_at=self.first_checked_at if self.was_asked else now)

    def looked_for(self, now: float, *, exists: bool) -> Hearing:
        """Return what is known once somebody has looked whether its process exists."""
        return replace(self, found=now) if exists else replace(self, ended=True)

    def starved(self, seconds: float, of_s: float) -> Hearing:
        """Return what is known once somebody has seen that it stood in line for so many of some more seconds."""
        return replace(self, starved_s=self.starved_s + seconds, looked_s=self.looked_s + of_s)

    @property
    def starved_share(self) -> float:
        """In which share of this silence it stands in line for a CPU, as far as is known."""
        return min(1.0, self.starved_s / self.looked_s) if self.looked_s > 0.0 else self.told_share or 0.0

    @property
    def had_cpu(self) -> bool:
        """Whether it is known that it got a CPU in this silence, so that its own work may keep it from speaking."""
        known = self.looked_s > 0.0 or self.told_share is not None
        return known and self.starved_share <= MAX_SHARE_WITH_CPU

    def counted_s(self, now: float) -> float:
        """Return how much of its silence is held against it."""
        return (now - self.last_seen) * max(1.0 - self.starved_share, LEAST_COUNTED)

    def was_looked_at(self, now: float, within_s: float) -> bool:
        """Tell whether somebody has looked at it in this silence, or was asked so long ago that nobody can."""
        return self.looked_s > 0.0 or (self.was_asked and now - self.first_checked_at >= within_s)

    def is_silent(self, now: float, deadline_s: float) -> bool:
        """Tell whether it has said nothing for longer than a deadline, though it could have."""
        return self.counted_s(now) > deadline_s

    def is_gone(self, now: float, deadline_s: float) -> bool:
        """Tell whether its process is known to have ended, or nobody has seen a sign of it for longer than that."""
        return self.ended or now - self.last_sign > deadline_s

    def is_lost(self, now: float, deadline_s: float) -> bool:
        """Tell whether it is dead, as far as others can tell."""
        # Decision 94: a process that exists is waited for. If nobody can tell, the deadline runs from the last answer.
        return self.is_silent(now, deadline_s) and self.is_gone(now, deadline_s)

    def should_look(self, now: float, after_s: float) -> bool:
        """Tell whether somebody should look for it: nothing was seen of it, and nobody was asked, for so long."""
        return now - max(self.last_sign, self.checked_at) >= after_s
