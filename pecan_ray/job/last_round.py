"""The rows at the end of an epoch that are too few for a batch of each rank: the ranks share them evenly."""

from __future__ import annotations

from dataclasses import dataclass


# Why shares have numbers of batches: docs/decisions/order-and-rows.md#191-the-last-round-is-made-of-runs
@dataclass(frozen=True)
class LastRound:
    """Rows in even shares, one for each rank, behind the rounds in which each rank has a full batch.

    A share is a batch, and its first row has the number that a full batch would begin with.  So the number of a row
    tells its rank as anywhere else, and between the shares some numbers have no row.
    """

    begin: int
    """The first row of the round."""
    rows: int
    """None, if no round lacks a batch, or if its rows are dropped."""
    ranks: int
    batch_size: int

    @property
    def end(self) -> int:
        """The number behind that of the last row."""
        return self.number(self.begin + self.rows - 1) + 1 if self.rows else self.begin

    def number(self, row: int) -> int:
        """Return the number of a row, which may be one of a round before."""
        if row < self.begin or not self.rows:
            return row
        within = row - self.begin
        share = ((within + 1) * self.ranks - 1) // self.rows
        return self.begin + share * self.batch_size + within - self._rows_before(share)

    def share_of(self, number: int) -> int | None:
        """Return the rank whose share holds the row of a number; None for a row of a round before."""
        return (number - self.begin) // self.batch_size if self.rows and number >= self.begin else None

    def run_end(self, number: int) -> int:
        """Return the number before which a run ends that begins with one: where the rounds before end, or a share."""
        share = self.share_of(number)
        if share is None:
            return self.begin
        return self.begin + share * self.batch_size + self._rows_before(share + 1) - self._rows_before(share)

    def _rows_before(self, share: int) -> int:
        return share * self.rows // self.ranks
