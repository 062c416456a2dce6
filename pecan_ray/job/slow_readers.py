"""How long a group waits: for anybody to read, and for the readers that hold all others back.

Pure: time is told to it.

Decisions: docs/decisions/sharing.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.job.waiting import SAY_AFTER_S

TELL_AGAIN_S = 60.0
"""The same readers are named again after so long, so that a reader of many slow steps fills no log."""
MAX_NAMED = 4
"""Readers that are named in a text, or a report: a line has room for them."""
RANK_PATIENCE_S = 1800.0
"""A rank of a trial cannot go on alone: to be left behind ends its trial.  Longer than validations take."""
LONGEST_STEP_S = 5.0
"""Time that passes at once counts for so much: beyond that it was this process that stood still."""


@dataclass(frozen=True)
class IdleReader:
    """A reader that could read on, and does not, while others wait."""

    reader: str
    read: int
    """How many entries it has read: while that changes, it is slow, and not idle."""
    holds: bool
    """It is one of those for which the others wait."""
    is_rank: bool = False


class SlowReaders:
    """Counts for how long readers hold the others back, and decides who is named, and who is left behind."""

    def __init__(self, linger_s: float, patience_s: float) -> None:
        """`linger_s`: without readers the group ends; `patience_s`: others wait for one that reads nothing."""
        self._linger_s, self._patience_s = linger_s, patience_s
        self._now: float | None = None
        self._empty_since: float | None = None
        self._idle: dict[IdleReader, float] = {}
        """For how long each has read nothing, while others waited for one of them."""
        self._told: tuple[tuple[str, ...], float] = (), 0.0
        """Who was named last, and when."""
        self._held_s: dict[str, float] = {}
        """For how long each reader has held the others back in all, also those that are gone."""

    def passes(self, now: float, idle: tuple[IdleReader, ...], *, empty: bool) -> None:
        """Let time pass.

        Args:
            now: Seconds of a clock that never goes back.
            idle: Who has read nothing in it, while others waited; nobody, if none waited.
            empty: There is no reader at all.
        """
        step = 0.0 if self._now is None else min(max(0.0, now - self._now), LONGEST_STEP_S)
        self._now = now
        # Whoever reads on, however slowly, has its time anew.
        before = {(one.reader, one.read): seconds for one, seconds in self._idle.items()}
        self._idle = {one: before.get((one.reader, one.read), -step) + step for one in idle}
        for one in idle:
            if one.holds:
                self._held_s[one.reader] = self._held_s.get(one.reader, 0.0) + step
        self._empty_since = (now if self._empty_since is None else self._empty_since) if empty else None

    def is_over(self, now: float) -> bool:
        """Tell whether nobody has read for long."""
        return self._empty_since is not None and now - self._empty_since >= self._linger_s

    def to_name(self, now: float) -> dict[str, float]:
        """Return the readers of which those that wait should hear now, if any, and how long they have read nothing."""
        idle = {one.reader: seconds for one, seconds in self._idle.items() if one.holds and seconds >= SAY_AFTER_S}
        names, (told, at) = tuple(idle), self._told
        if not names or (names == told and now - at < TELL_AGAIN_S):
            return {}
        self._told = names, now
        return idle

    def left_behind(self) -> dict[str, float]:
        """Return the readers for which nobody waits any more, and for how long they have read nothing."""
        return {
            one.reader: seconds
            for one, seconds in self._idle.items()
            if one.holds and seconds >= self.patience_s(is_rank=one.is_rank)
        }

    def patience_s(self, *, is_rank: bool) -> float:
        """Return for how long the others wait for a reader that reads nothing."""
        return max(self._patience_s, RANK_PATIENCE_S) if is_rank else self._patience_s

    @property
    def held_back_s(self) -> tuple[tuple[str, float], ...]:
        """Who has held the others back longest, and for how many seconds in all."""
        long = [(name, seconds) for name, seconds in self._held_s.items() if seconds >= SAY_AFTER_S]
        return tuple(sorted(long, key=lambda one: -one[1])[:MAX_NAMED])
