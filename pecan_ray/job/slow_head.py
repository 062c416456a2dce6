"""When the rows that a trainer waits for are given to a second worker."""

from __future__ import annotations

import math

from pecan_ray.job.ledger import Ledger

HELP_AFTER_S = 1.0
"""The trainer waits at least so long for its next rows before another worker helps, who makes them anew."""
HELP_TIMES = 4.0
"""It also waits so many times as long as a worker needs for a batch: functions and a garbage collector may run late."""
RUN_TIMES = 2.0
"""The same where rows are joined, for a worker's run: that is a part of a batch, and costs little to make again."""
PATIENCE = 1.5
"""After a worker was late and yet the first to bring its rows, one may be late for so many times as long: there are
elements that take long, and a second worker makes them no faster."""
ALONE = 2
"""The first wait is one for workers that start, so the second one replaces it."""


class SlowHead:
    """How long the next rows have been waited for."""

    def __init__(self) -> None:
        self._at, self._since = (-1, -1), 0.0
        self._stands_since, self._patience_s = 0.0, HELP_AFTER_S
        """Since when the head has not moved, and how long it may do so."""
        self._last_check, self._waits_s = 0.0, 0.0
        """When this was last looked at, and so long the trainer has had no batch since the head of the rows has moved:
        what it took for its own work says nothing about workers."""
        self._waited_s, self._rows, self._moves = 0.0, 0.0, 0
        """Seconds that it waited lately, the rows that it waited for, and how often the head has moved."""

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
            self._learn(ledger, now)
            self._at, self._since, self._stands_since, self._waits_s = at, now, now, 0.0
            return ""
        waits_s = now - self._since
        if queued or waits_s < self._patience_s or waits_s < self._late_s(ledger, row):
            return ""
        # Decision 152: counted anew, so that at most once in each such time a second worker is given rows.
        self._since, self._waits_s = now, 0.0
        helped = ledger.seconds.help(ledger.workers, row)
        # Workers that wait may take these rows now.
        ledger.changes += 1
        return helped

    def _learn(self, ledger: Ledger, now: float) -> None:
        """Wait longer where a second worker was of no use, and no longer than usual where it was."""
        if (use := ledger.seconds.take_use()) is not None:
            longest = max(self._patience_s, PATIENCE * (now - self._stands_since))
            self._patience_s = HELP_AFTER_S if use else longest

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
