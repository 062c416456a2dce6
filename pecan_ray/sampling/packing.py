"""Which token sequences share a row of fixed length: numbers in, rows out."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.errors import PlanError


@dataclass(frozen=True)
class PackedSegment:
    """A part of a sequence, all of it where it fits into a row."""

    sequence: int
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """How many it holds."""
        return self.stop - self.start


def pack_rows(lengths: Sequence[int], row: int) -> list[list[PackedSegment]]:
    """Put sequences of these lengths into rows of `row` tokens; every token is in exactly one of them.

    The longest come first, each into the fullest row that has room (best fit decreasing).  What is longer than a row is
    cut into whole rows and a rest.  Rows come in the order in which they were begun, and empty sequences nowhere.
    """
    pieces = [
        PackedSegment(number, start, min(start + row, length))
        for number, length in enumerate(lengths)
        for start in range(0, length, row)
    ]
    rows: list[list[PackedSegment]] = []
    free: list[tuple[int, int]] = []
    """Tokens for which a row has room, and its number, in this order."""
    for piece in sorted(pieces, key=lambda one: (-one.tokens, one.sequence, one.start)):
        # -1: of rows with equal room the one that was begun first.
        found = bisect.bisect_left(free, (piece.tokens, -1))
        if found == len(free):
            room, number = row, len(rows)
            rows.append([])
        else:
            room, number = free.pop(found)
        rows[number].append(piece)
        if room > piece.tokens:
            bisect.insort(free, (room - piece.tokens, number))
    return rows


def cu_seqlens(segments: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Return where segments begin in rows that are put one behind the other, and where the last one ends.

    Attention over sequences of unequal lengths takes these bounds.  The padding of a row is a sequence of its own.

    Args:
        segments: the column "segment" of a batch of packed rows, or of one row.
    """
    rows = np.asarray(segments)
    if (rows.size and rows.dtype.kind not in "iu") or rows.ndim not in (1, 2):
        raise PlanError(
            'cu_seqlens needs the column "segment" of a batch that pack made, or of one row, whole numbers '
            f"[rows, tokens], but got {rows.dtype}{list(rows.shape)}."
        )
    rows = np.atleast_2d(rows)
    # A row begins a segment also where its number is that of the last one in the row above.
    begins = np.ones(rows.shape, bool)
    begins[:, 1:] = rows[:, 1:] != rows[:, :-1]
    bounds: npt.NDArray[Any] = np.append(np.flatnonzero(begins), rows.size)
    return bounds.astype(np.int32)
