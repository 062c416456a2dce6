"""Numbered rows that an engine was given and has not made yet, and how long it takes for one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LeaseRows:
    """Numbered rows of a lease that are in no batch yet."""

    branch: int
    first: int
    rows: int
    since: float
    """When the engine was given them."""


class UnmadeRows:
    """The numbered rows of an assignment that are in no batch yet, in the order in which they were given."""

    def __init__(self) -> None:
        self._in_line: deque[LeaseRows] = deque()
        self._made_rows, self._made_at = 0, 0.0
        """Rows that were made, of leases whose rows are not all made, and since when."""

    @property
    def first(self) -> int | None:
        """The first row that is in no batch; None where rows are not numbered."""
        return self._in_line[0].first if self._in_line else None

    def add(self, rows: LeaseRows) -> None:
        """Note rows that the engine was given."""
        self._in_line.append(rows)

    def clear(self) -> None:
        """Forget the rows of an assignment that is over."""
        self._in_line.clear()
        self._made_rows = 0

    def note_made(self, rows: int, now: float) -> tuple[int, float] | None:
        """Note that so many of the first rows are in batches; return a branch, and seconds for a row of it.

        None while a lease is not made to its end.  By what is made and not by what is read: an engine reads rows long
        before it has made those before them.
        """
        if not self._in_line:
            return None
        self._made_at = max(self._made_at, self._in_line[0].since) if not self._made_rows else self._made_at
        branch, left = self._in_line[0].branch, len(self._in_line)
        while self._in_line and rows:
            taken = self._in_line.popleft()
            made = min(rows, taken.rows)
            if made < taken.rows:
                self._in_line.appendleft(replace(taken, first=taken.first + made, rows=taken.rows - made))
            self._made_rows, rows = self._made_rows + made, rows - made
        # A split that told of no element has no row, and may hold some all the same.
        if len(self._in_line) == left or not self._made_rows:
            return None
        row_s = (now - self._made_at) / self._made_rows
        self._made_rows, self._made_at = 0, now
        return branch, row_s
