"""When the rows that a trainer waits for are given to a second worker."""

from __future__ import annotations

import math

from pecan_ray.job.ledger import Ledger

HELP_AFTER_S = 1.0
"""The trainer waits at least so long for its next rows,"""
HELP_TIMES = 4.0
"""and so many times as long as a worker needs for a batch: several functions may run late, and a garbage collector;"""
RUN_TIMES = 2.0
"""where rows are joined, as it needs for its run: that is a part of a batch, so to make it again costs little."""
ALONE = 2
"""The first wait is one for workers that start, so the second one replaces it."""


class SlowHead:
    """How long the next rows have been waited for."""

    def __init__(self) -> None:
        self._at, self._since = (-1, -1), 0.0
        self._last_check, self._waits_s = 0.0, 0.0
        """When this was last looked at, and so long the trainer has had no batch since the head of the rows has moved:
        what it took for its own work says nothing about workers."""
        self._waited_s, self._rows, self._moves = 0.0, 0.0, 0
        """So long it waited lately, for so many rows, and how often the head has moved."""

    def look(self, ledger: Ledger, queued: int, now: float) -> str:
        """Let a second worker help where it is time; return the name of the one that is helped.

        `queued`: batches that the trainer has and did not use.
        """
        if not ledger.runs.kept or ledger.finished:
            return ""
        self._waits_s += 0.0 if queued else now - self._last_check
        self._last_check = now
        epoch, row = at = ledger.epoch, ledger.rows_in_turn
        if at != self._at:
            self._note_rows(row - self._at[1] if epoch == self._at[0] else 0, ledger)
            self._at, self._since, self._waits_s = at, now, 0.0
            return ""
        waits_s = now - self._since
        if queued or waits_s < HELP_AFTER_S or waits_s < self._late_s(ledger, row):
            return ""
        # Decision 152: counted anew, so that at most once in each such time a second worker is given rows.
        self._since, self._waits_s = now, 0.0
        helped = ledger.seconds.help(ledger.workers, row)
        # Workers that wait may take these rows now.
        ledger.changes += 1
        return helped

    def _late_s(self, ledger: Ledger, row: int) -> float:
        """Return how long the next rows may be waited for."""
        if not self._rows:
            return math.inf
        # All workers together bring a row in that time, so one of them needs it times their number.
        row_s = self._waited_s / self._rows * len(ledger.workers)
        if not ledger.runs.joins:
            return max(HELP_AFTER_S, HELP_TIMES * row_s * ledger.shape.batch_size)
        return max(HELP_AFTER_S, RUN_TIMES * row_s * ledger.seconds.rows_with(ledger.workers, row))

    def _note_rows(self, rows: int, ledger: Ledger) -> None:
        """Note that rows have come, and for how long the trainer has waited for them."""
        if rows <= 0:  # another epoch has begun, or ranks have given batches back
            return
        self._moves += 1
        if self._moves == ALONE:
            self._waited_s, self._rows = 0.0, 0.0
        # A batch of each worker has half of the weight of the next ones: some come together, then none for long.
        elif self._rows >= len(ledger.workers) * ledger.shape.batch_size:
            self._waited_s, self._rows = self._waited_s / 2, self._rows / 2
        self._waited_s, self._rows = self._waited_s + self._waits_s, self._rows + rows
