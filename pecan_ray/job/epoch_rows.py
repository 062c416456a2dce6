"""Which rows of the source an epoch has here, and what is known of the rows that a lease holds."""

from __future__ import annotations

import itertools
from dataclasses import replace

from pecan_ray.job.lease_rows import rows_of
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.queues import Queues
from pecan_ray.plan.splits import Lease
from pecan_ray.sampling.spans import Span

MANY = 1 << 40
"""More rows than an epoch has."""


class EpochRows:
    """The rows of an epoch, numbered from the first one that this job gives out."""

    def __init__(self, shape: LedgerShape, queues: Queues, *, continues: bool) -> None:
        """`continues`: a run before this one has used a part of the epoch."""
        self._shape, self._queues = shape, queues
        self._bounds: Span | None = None if continues else (0, MANY)
        """The rows of the source that the epoch has, as far as there are so many; None: not known yet."""
        self.start = 0, 0
        """The first split and position of the epoch, or of what is left of it, by the split's number in the epoch."""

    @property
    def known(self) -> bool:
        """Whether it is known with which row of the source the epoch begins here."""
        return self._bounds is not None

    def begin_epoch(self) -> None:
        """Begin an epoch at its first row."""
        self._bounds, self.start = (0, MANY), (0, 0)

    def find(self) -> bool:
        """Find the rows with which a run goes on, if it is time; tell whether some between them are used."""
        # With which row a job goes on from a state follows from the lengths of all splits, so these must be listed.
        if self.known or not self._queues.is_complete:
            return False
        queue, listing = self._queues.common[0], self._queues.listings[0]
        if not listing.has_counts:
            self._bounds = 0, MANY  # the order is given up with the first split that is not counted
            return False
        begun = queue.pass_index * listing.elements + listing.elements_before(min(queue.cursor().taken, len(listing)))
        spans = [(self.number(one), span) for one in queue.returned for span in one.spans]
        parts = sorted(rows_of(replace(lease, spans=(span,))) for lease, span in spans)
        parts = [(first, end) for first, end in parts if first < end]
        places = [(lease.pass_index * len(listing) + lease.split.index, span[0]) for lease, span in spans]
        cursor = queue.cursor()
        self.start = min([*places, (cursor.pass_index * len(listing) + cursor.taken, 0)])
        # If all is begun, the rest was left with the epoch, or fills no batch.
        goes_on = not parts or begun != (self._shape.num_passes or MANY) * listing.elements
        if goes_on:
            parts.append((begun, begun))
        self._bounds = parts[0][0], MANY if goes_on else parts[-1][1]
        # Decision 135: with gaps between the rows that are left no run of numbered rows can follow.
        return any(end != first for (_, end), (first, _) in itertools.pairwise(parts))

    def number(self, lease: Lease) -> Lease:
        """Return a lease with its row, where all splits before it are counted."""
        listing, index = self._queues.listings[0], lease.split.index
        before = listing.elements_before(index) if listing.has_counts else 0
        return replace(lease, row=lease.pass_index * listing.elements + before - self._first)

    def left(self, given: int) -> int:
        """Return how many rows are behind those that were given; where that is not known, there are many."""
        passes, listing = self._shape.num_passes, self._queues.listings[0]
        if passes is None or not listing.complete:
            return MANY
        return passes * listing.elements - self._first - given

    def end_of_rounds(self) -> int:
        """Return the row at which runs end: several ranks get equally many batches, as far as rows are known."""
        passes, listing, ranks = self._shape.num_passes, self._queues.listings[0], self._shape.world_size
        complete, size = listing.complete, self._shape.batch_size
        if ranks == 1 or (complete and passes is None) or not listing.has_counts:
            return MANY
        first, behind = self._bounds or (0, MANY)
        rows = min(behind, listing.elements * (passes if complete and passes else 1)) - first
        batches = -(-rows // size) if complete and not self._shape.drop_remainder else rows // size
        end = batches // ranks * ranks * size
        return MANY if complete and end >= rows else end

    @property
    def _first(self) -> int:
        return 0 if self._bounds is None else self._bounds[0]
