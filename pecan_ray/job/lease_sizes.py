"""How much of a split a worker gets at a time near the end of an epoch, so that all workers end together.

A worker gets half of an even share of the elements that wait (guided self-scheduling, Polychronopoulos and Kuck, 1987),
but never less than a batch, and so many that what it has got in all fills batches.  A split that is longer is cut, if
its length is known: another worker gets the rest.  Where every element becomes one row, no worker is then left with
elements that fill no batch, but for those of the epoch's last batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease
from pecan_ray.sampling.spans import Span

PIECES = 8
"""A split that several workers read at a time is cut into so many pieces for each of them, at most: the reader of each
seeks, or reads what comes before."""


@dataclass(frozen=True)
class SideBySide:
    """How a worker reads its leases."""

    streams: int = 1
    """Leases that it reads at a time, to mix them."""
    reading: int = 0
    """Leases that it has and has not read to their ends."""
    workers: int = 1
    """Workers of the job, those that are starting included: each has its share."""

    @property
    def is_interleaved(self) -> bool:
        """Return whether several leases are read at a time: those that wait at the worker are of the same kind."""
        return self.streams > 1


ONE_BY_ONE = SideBySide()


def interleave_size(side: SideBySide, waiting: int, split_elements: int | None, batch_size: int) -> float:
    """Return how many elements of another split a worker may read at a time with others; 0: none.

    Where lengths are known, its leases are pieces that are together half of an even share of what waits; near the end
    of an epoch, where these would be too small, they are fewer.  Elsewhere its leases are whole splits, and an even
    share of them at most.

    Args:
        side: what the worker reads.
        waiting: leases that wait for any worker.
        split_elements: of one of them, where lengths are known.
        batch_size: elements in a batch.
    """
    workers = max(1, side.workers)
    if split_elements is None:
        return math.inf if (waiting + side.reading) // workers > side.reading else 0
    share = waiting * split_elements // (2 * workers)
    least = batch_size * max(1, math.ceil(split_elements / (PIECES * workers * batch_size)))
    most = share // side.streams // batch_size * batch_size
    if most >= least:
        return most
    return least if side.reading < share // least else 0


def lot(waiting: int, workers: int, batch_size: int, taken: int) -> int:
    """Return how many elements a worker gets now.

    Args:
        waiting: Elements that wait, those included that it may get.
        workers: Workers that share them.
        batch_size: Elements in a batch.
        taken: Elements that the worker has got before.
    """
    full = max(1, waiting // (2 * max(1, workers)) // batch_size) * batch_size
    return full - taken % batch_size


def elements_in(lease: Lease) -> int | None:
    """Return how many elements a lease asks for; None where that is not known."""
    counts = [_elements(lease, span) for span in lease.spans]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def may_be_cut(lease: Lease, elements: int) -> bool:
    """Tell whether a lease may have more than so many elements: one that ends with an estimated split always may."""
    open_end = lease.split.about is not None and lease.spans[-1][1] == END
    return open_end or elements < (elements_in(lease) or 0)


def cut(lease: Lease, elements: int) -> tuple[Lease, Lease]:
    """Cut a lease behind so many of its elements, of which it may have more."""
    mine: list[Span] = []
    rest: list[Span] = []
    for span in lease.spans:
        count = _elements(lease, span) or 0
        # Behind the estimated end of a split may lie any number of elements.
        is_open = span[1] == END and lease.split.about is not None
        if rest:
            rest.append(span)
        elif count <= elements and not is_open:
            mine.append(span)
            elements -= count
        else:
            # A span may begin within an element, so with no element wanted the place would lie before it.
            place = max(span[0], ((span[0] >> OUTPUT_BITS) + elements) << OUTPUT_BITS)
            mine += [(span[0], place)] * (span[0] < place)
            rest.append((place, span[1]))
    return replace(lease, spans=tuple(mine)), replace(lease, spans=tuple(rest))


def _elements(lease: Lease, span: Span) -> int | None:
    """Count the elements that a span touches."""
    start, stop = span
    if stop != END:
        return ((stop - 1) >> OUTPUT_BITS) + 1 - (start >> OUTPUT_BITS)
    length = lease.split.elements
    return None if length is None else max(0, length - (start >> OUTPUT_BITS))
