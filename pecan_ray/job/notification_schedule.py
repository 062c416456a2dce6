"""Which trainers are told of new orders, and when: changes within a few milliseconds travel together.

With many trainers, those that only may use more batches are told later: most of them have heard it by then as the
answer to a report, and need not be told again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

GATHER_S = 0.002
"""Changes within this time reach the trainers together."""
GATHER_PER_TRAINER_S = 0.0005
"""Added to `GATHER_S` for each trainer, because each of them is answered."""
MANY_TRAINERS = 100
"""With more trainers than these, those that only may use more are answered later."""
ALLOWANCE_PER_TRAINER_S = 0.012
"""Seconds later for each trainer: most of them have reported by then."""


class NotificationSchedule:
    """When each rank, of those for which there is something new, shall have it at the latest."""

    def __init__(self) -> None:
        self._due: dict[int, float] = {}

    def changed(self, ranks: Iterable[int], listening: int, now: float, *, only_limit_raised: bool = False) -> float:
        """Note that these ranks have new orders, while so many listen; return when `take_due` shall look.

        `only_limit_raised`: all that has changed is how much they may use.
        """
        delay = max(GATHER_S, GATHER_PER_TRAINER_S * listening)
        if only_limit_raised:
            delay += ALLOWANCE_PER_TRAINER_S * max(0, listening - MANY_TRAINERS)
        for rank in ranks:
            # A rank that is due sooner for another change keeps the sooner time.
            self._due[rank] = min(now + delay, self._due.get(rank, math.inf))
        return now + delay

    def is_due(self, rank: int, known: int, newest: int, now: float) -> bool:
        """Tell whether a rank that listens is to be answered now; `known`, `newest`: numbers of orders."""
        if newest <= known:
            self._due.pop(rank, None)
            return False
        # Numbers of orders begin at 1: a rank that knows none has just come, and has nothing to do without them.
        return known == 0 or self._due.get(rank, math.inf) <= now

    def mark_sent(self, rank: int) -> None:
        """Note that a rank gets its orders now, also as the answer to a report: it is not told of them again."""
        self._due.pop(rank, None)

    def take_due(self, listening: Collection[int], now: float) -> tuple[list[int], float | None]:
        """Return which of those that listen are to be answered now, and when to look again; None: not by itself."""
        # What is due within the gathering time goes along, so that a look is worth its wake-up.
        soon = now + GATHER_S
        due = [rank for rank, at in self._due.items() if at <= soon and rank in listening]
        # They stay due until `mark_sent`, however late they are answered.
        self._due.update(dict.fromkeys(due, -math.inf))
        return due, min((at for at in self._due.values() if at > soon), default=None)
