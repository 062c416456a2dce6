"""The leases of a `zip` whose inputs are read in step: those of its first source, and the same rows of the others."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from pecan_ray.engines.contract import Leases
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, Source, Split


class InStepLeases:
    """Takes leases of the first source from a job, which knows no other one, and derives those of the others.

    Whichever source is asked for first takes the next lease, and the others find theirs: one may be read ahead.
    """

    def __init__(self, leases: Leases, sources: Sequence[Source]) -> None:
        self._leases = leases
        self._splits = [tuple(source.splits()) for source in sources]
        self._starts = [[split.start for split in splits] for splits in self._splits]
        self._waiting: list[deque[Lease]] = [deque() for _ in sources]
        """By source: what others have taken, and it has not."""
        self._over = False
        self._lock = threading.Lock()
        """Guards both: prefetching inputs ask in threads of their own."""

    def take(self, branch: int = 0) -> Lease | None:
        """Return the next lease of a source; None when there are no more."""
        with self._lock:
            mine = self._waiting[branch]
            # The end is asked for once: a job that has said "no more" need not answer the other inputs.
            if not (mine or self._over):
                self._take_for_all()
            return mine.popleft() if mine else None

    def _take_for_all(self) -> None:
        lease = self._leases.take(0)
        self._over = lease is None
        if lease is not None:
            self._waiting[0].append(lease)
            for branch in range(1, len(self._splits)):
                self._waiting[branch].extend(self._same_rows(lease, branch))

    def _same_rows(self, lease: Lease, branch: int) -> Iterator[Lease]:
        """Yield leases of the rows of another source that belong to those of a lease, in their order."""
        for first, stop in _rows_of(lease):
            # The other source is cut into splits of its own, so one lease may be parts of several of them.
            place = bisect_right(self._starts[branch], first) - 1
            while first < stop:
                split = self._splits[branch][place]
                end = min(stop, split.start + (split.elements or 0))
                span = ((first - split.start) << OUTPUT_BITS, (end - split.start) << OUTPUT_BITS)
                # With the split's own numbers, so random numbers and errors are those that the input has by
                # itself.
                yield Lease(lease.epoch, split, (span,), branch, lease.pass_index)
                first, place = end, place + 1

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements a split of the first source holds; the job asks for no other."""
        # The job knows the first source alone (docs/decisions/exactly-once.md#171-zips-in-step).
        if lease.branch == 0:
            self._leases.ended(lease, elements)


def _rows_of(lease: Lease) -> Iterator[tuple[int, int]]:
    """Yield the rows of the source that a lease stands for, as intervals."""
    split: Split = lease.split
    for start, stop in lease.spans:
        elements = min(stop >> OUTPUT_BITS, split.elements or 0)
        yield split.start + (start >> OUTPUT_BITS), split.start + elements
