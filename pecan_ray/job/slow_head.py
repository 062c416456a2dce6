"""When the rows that a trainer waits for are given to a second worker."""

from __future__ import annotations

import math

from pecan_ray.job.ledger import Ledger

HELP_AFTER_S = 1.0
"""The trainer waits at least so long for its next rows,"""
HELP_TIMES = 4.0
"""and so many times as long as a worker needs for a batch: several functions may run late, and a garbage collector."""
PACE_SHARE = 0.2
"""Share of the newest batches in the mean."""


class SlowHead:
    """How long the next rows have been waited for."""

    def __init__(self) -> None:
        self._at, self._since = (-1, -1), 0.0
        self._batch_s = math.inf
        """So often a batch has its turn, lately."""

    def look(self, ledger: Ledger, queued: int, now: float) -> str:
        """Let a second worker help where it is time; return the name of the one that is helped.

        `queued`: batches that the trainer has and did not use.
        """
        if not ledger.runs.kept or ledger.finished:
            return ""
        epoch, row = at = ledger.epoch, ledger.rows_in_turn
        if at != self._at:
            batches = (row - self._at[1]) // ledger.shape.batch_size if epoch == self._at[0] else 0
            if batches > 0:
                took = (now - self._since) / batches
                slower = took - self._batch_s
                self._batch_s = took if self._batch_s == math.inf else self._batch_s + PACE_SHARE * slower
            self._at, self._since = at, now
            return ""
        late_s = max(HELP_AFTER_S, HELP_TIMES * self._batch_s * len(ledger.workers))
        if queued or now - self._since < late_s:
            return ""
        self._since = now
        helped = ledger.seconds.help(ledger.workers, row)
        ledger.changes += bool(helped)
        return helped
