"""Chunks in line for their places in batches: as they come, or by number, up to the first one that failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.items import Item
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.python.ordered_results import ITEM_BYTES, items_bytes
from pecan_ray.engines.row_block import RowBlock

NEVER = -1
"""No chunk has this number: nothing comes behind an error."""


class RowsInLine(NamedTuple):
    """Rows of an entry, or a block, that wait for their places in batches."""

    rows: KeptRows | RowBlock
    start: int
    stop: int


class RunEnd(NamedTuple):
    """All of a run stands before it."""

    epoch: int


Piece: TypeAlias = list[Item] | RowsInLine | RunEnd
"""Elements that stand in line together, or the end of a run."""


def slice_bytes(pieces: Sequence[Piece]) -> int:
    """Return about how many bytes pieces take: the elements of each are like its first one."""
    return sum(items_bytes(one) if isinstance(one, list) else _rows_bytes(one) for one in pieces)


def _rows_bytes(piece: RowsInLine | RunEnd) -> int:
    return (
        0 if isinstance(piece, RunEnd) else (piece.stop - piece.start) * (element_bytes(piece.rows.first) + ITEM_BYTES)
    )


class ChunkLine:
    """The line; its lock is the caller's."""

    def __init__(self, strict: bool) -> None:
        """`strict`: chunks stand in line by number, and else as they come."""
        self.strict = strict
        self.pieces: deque[Piece] = deque()
        """What may be placed next, the first one first."""
        self._early: dict[int, tuple[Sequence[Piece], int]] = {}
        """Chunks that wait for an earlier one, and about how many bytes each takes, by number."""
        self._next = 0
        self._errors: dict[int, BaseException] = {}
        """Those of chunks, by number."""
        self.failed = False
        """Nothing behind what has failed is wanted."""
        self.error: BaseException | None = None
        """What ended the last chunk in line: nothing comes behind it."""

    def fail(self, number: int, error: BaseException) -> None:
        """Note what ended a chunk, before the chunk is in line: nothing behind it may be placed meanwhile."""
        self._errors[number] = error
        self.failed = True

    def early_bytes(self, number: int, pieces: Sequence[Piece]) -> int:
        """Return about how many bytes a chunk takes while it waits for an earlier one; needs no lock."""
        # If the chunk's turn comes before it is added, `add` takes the bytes off again.
        return slice_bytes(pieces) if self.strict and number != self._next else 0

    def add(self, number: int, pieces: Sequence[Piece], nbytes: int) -> int:
        """Put a chunk in line, with those that waited for it; return how many bytes more wait for an earlier one."""
        if not self.strict:
            self.pieces.extend(pieces)
            return 0
        self._early[number] = pieces, nbytes
        waiting = nbytes
        while self._next in self._early:
            due, due_bytes = self._early.pop(self._next)
            self.pieces.extend(due)
            waiting -= due_bytes
            if self._next in self._errors:
                # Chunks behind the failed one stay in `_early` for ever: nothing behind an error is delivered
                # (docs/decisions/order-and-rows.md#150-errors-at-their-place).
                self.error, self._next = self._errors[self._next], NEVER
                break
            self._next += 1
        return waiting

    def take_rows(self, most: int) -> RowsInLine:
        """Take rows of the piece that stands first, which has rows."""
        head = self.pieces[0]
        assert isinstance(head, RowsInLine)
        stop = min(head.stop, head.start + most)
        if stop < head.stop:
            self.pieces[0] = head._replace(start=stop)
        else:
            self.pieces.popleft()
        return head._replace(stop=stop)

    def take_items(self, most: int) -> list[Item]:
        """Take elements of the piece that stands first, which has elements."""
        head = self.pieces[0]
        assert isinstance(head, list)
        if len(head) <= most:
            self.pieces.popleft()
            return head
        self.pieces[0] = head[most:]
        return head[:most]
