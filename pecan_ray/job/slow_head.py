"""When the rows that a trainer waits for are given to a second worker."""

from __future__ import annotations

import math

from pecan_ray.job.ledger import Ledger

HELP_AFTER_S = 1.0
"""The trainer waits at least so long for its next rows,"""
HELP_TIMES = 4.0
"""and so many times as long as a worker needs for a batch: several functions may run late, and a garbage collector."""
PACE_SHARE = 0.2
"""Share of the newest batches in the mean,"""
ALONE = 2
"""but of the first ones: the first wait is one for workers that start, so the second one replaces it."""


class SlowHead:
    """How long the next rows have been waited for."""

    def __init__(self) -> None:
        self._at, self._since = (-1, -1), 0.0
        self._last_check, self._waited_s = 0.0, 0.0
        """When this was last looked at, and so long the trainer has had no batch since the head of the rows has moved:
        what it took for its own work says nothing about workers."""
        self._batch_s, self._observed = math.inf, 0
        """So long it waits for a batch, lately, and how often this was measured."""

    def look(self, ledger: Ledger, queued: int, now: float) -> str:
        """Let a second worker help where it is time; return the name of the one that is helped.

        `queued`: batches that the trainer has and did not use.
        """
        if not ledger.runs.kept or ledger.finished:
            return ""
        self._waited_s += 0.0 if queued else now - self._last_check
        self._last_check = now
        epoch, row = at = ledger.epoch, ledger.rows_in_turn
        if at != self._at:
            batches = (row - self._at[1]) // ledger.shape.batch_size if epoch == self._at[0] else 0
            if batches > 0:
                self._update_from(self._waited_s / batches)
            self._at, self._since, self._waited_s = at, now, 0.0
            return ""
        # All workers together bring a batch in `_batch_s`, so one of them needs that times their number.
        late_s = max(HELP_AFTER_S, HELP_TIMES * self._batch_s * len(ledger.workers))
        if queued or now - self._since < late_s:
            return ""
        # Decision 152: counted anew, so that at most once in each such time a second worker is given rows.
        self._since, self._waited_s = now, 0.0
        helped = ledger.seconds.help(ledger.workers, row)
        # Workers that wait may take these rows now.
        ledger.changes += 1
        return helped

    def _update_from(self, batch_s: float) -> None:
        self._observed += 1
        mean_s = self._batch_s
        self._batch_s = batch_s if self._observed <= ALONE else mean_s + PACE_SHARE * (batch_s - mean_s)
