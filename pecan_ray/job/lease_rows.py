"""Which rows of an epoch a lease holds, where rows have numbers (or its elements, where rows are joined)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sampling.spans import Span


def rows_of(lease: Lease) -> Span:
    """Return the first row of a lease, and the one behind its last."""
    assert lease.row is not None
    (start, _), (_, stop) = lease.spans[0], lease.spans[-1]
    elements = lease.split.elements or 0
    last = elements if stop == END else min(elements, stop >> OUTPUT_BITS)
    # A split may be longer than it told: no row of it has the number of one of the next split.
    return lease.row + min(elements, start >> OUTPUT_BITS), lease.row + last


def has_row(lease: Lease, row: int) -> bool:
    """Tell whether a lease holds a row of the epoch."""
    return any(first <= row < end for first, end in intervals(lease))


def intervals(lease: Lease) -> Iterator[Span]:
    """Yield the rows of each interval of a lease."""
    return (rows_of(replace(lease, spans=(span,))) for span in lease.spans)


def is_next(run: Sequence[Lease], lease: Lease) -> bool:
    """Tell whether nothing lies between a run and a lease, so that their rows can be joined."""
    if not run:
        return True
    before = run[-1]
    if before.key == lease.key:
        return before.spans[-1][1] == lease.spans[0][0]
    if before.spans[-1][1] != END or lease.spans[0][0] != 0:
        return False
    # By places, too, where they are known: between two splits may be one that told of no element.
    adjacent = before.place is None or lease.place is None or lease.place == before.place + 1
    # By rows and not by the numbers of splits, so that the next pass follows the end of the one before.
    return adjacent and rows_of(before)[1] == rows_of(lease)[0]
