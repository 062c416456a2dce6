"""Which rows of the source an epoch has here, and what is known of the rows that a lease holds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.job.blocks import place_of
from pecan_ray.job.last_round import LastRound
from pecan_ray.job.lease_rows import is_next, rows_of
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.queues import Queues
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey, Split
from pecan_ray.sampling.spans import Span

MANY = 1 << 40
"""More rows than an epoch has."""


def _end_of(split: Split) -> int:
    """Return the number behind that of a split's last element; that of the last position where it is estimated."""
    return END >> OUTPUT_BITS if split.about is not None else split.elements or 0


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
        """Return whether it is known with which row of the source the epoch begins here."""
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
        if not (listing.has_counts and len(listing)):
            self._bounds = 0, MANY  # the order is given up with the first split that is not counted
            return False
        taken = min(queue.cursor().taken, len(listing))
        behind = queue.pass_index * len(listing) + taken
        parts, places = self._left_parts(behind)
        # If all is begun, the rest was left with the epoch, or fills no batch.
        goes_on = not parts or behind < self._num_splits()
        first, last = parts[0] if parts else (behind, 0, 0), (behind - 1, 0, END) if goes_on else parts[-1]
        self._bounds = self._row_at(first[0], first[1]), MANY if goes_on else self._row_at(last[0], last[2])
        # Decision 135: where something between is used, no run of numbered rows can follow.
        places += [(place_of(behind, 0), MANY)] * goes_on
        has_gaps = any(end != begin for (_, end), (begin, _) in itertools.pairwise(places))
        if self._shape.joined and not has_gaps:
            self._fill_places(first, last)
        return has_gaps

    def _num_splits(self) -> int:
        return (self._shape.num_passes or MANY) * len(self._queues.listings[0])

    def _left_parts(self, behind: int) -> tuple[list[tuple[int, int, int]], list[Span]]:
        """Return what came back and may have data, in order: split, begin and end, and the places of both."""
        returned = self._queues.common[0].returned
        parts = sorted((self.split_number(lease.key), *span) for lease in returned for span in lease.spans)
        places = [(self._data_from(n, start, behind), self._data_from(n, stop, behind)) for n, start, stop in parts]
        # A split that told how many elements it holds has nothing behind them.
        filled = [both for both in zip(parts, places, strict=True) if both[1][0] < both[1][1]]
        return [part for part, _ in filled], [place for _, place in filled]

    def _data_from(self, number: int, position: int, behind: int) -> int:
        """Return the first place from a position of a split on that may have data, of splits before the one behind."""
        listing = self._queues.listings[0]
        if position >> OUTPUT_BITS < _end_of(listing[number % len(listing)]):
            return place_of(number, position)
        number += 1
        while number < behind and not _end_of(listing[number % len(listing)]):
            number += 1
        return place_of(number, 0)

    def _row_at(self, number: int, position: int) -> int:
        """Return the row of the source that lies at a position of a split, or behind its last one."""
        listing = self._queues.listings[0]
        pass_index, index = divmod(number, len(listing))
        rows = min(position >> OUTPUT_BITS, listing[index].elements or 0)
        return pass_index * listing.elements + listing.elements_before(index) + rows

    def _fill_places(self, first: tuple[int, int, int], last: tuple[int, int, int]) -> None:
        """Let nothing be missing between the places of what a run before this one has left: from one part to another.

        Where rows were numbered, what lies behind the last element of a split is done, and so are splits without any.
        """
        queue, listing = self._queues.common[0], self._queues.listings[0]
        left = {self.split_number(lease.key): lease for lease in queue.returned}
        number, start, _ = first
        # What may lie behind the last elements of the splits before is read, too, as far as nothing between is used.
        while not start and number - 1 in left and left[number - 1].spans[-1][1] == END:
            number, start = number - 1, left[number - 1].spans[-1][0]
        self.start = number, start
        queue.returned.clear()
        for each in range(number, last[0] + 1):
            pass_index, index = divmod(each, len(listing))
            stop = END if each < last[0] or last[2] >> OUTPUT_BITS >= _end_of(listing[index]) else last[2]
            lease = replace(left[number], split=listing[index], pass_index=pass_index)
            queue.returned.append(replace(lease, spans=((start if each == number else 0, stop),)))

    def number(self, lease: Lease) -> Lease:
        """Return a lease with its row, where all splits before it are counted."""
        listing, index = self._queues.listings[0], lease.split.index
        before = listing.elements_before(index) if listing.has_counts else 0
        row = lease.pass_index * listing.elements + before - self._first
        first = row + (lease.spans[0][0] >> OUTPUT_BITS)
        # Decision 191: rows of the last round skip numbers. A lease is cut before its next row does.
        return replace(lease, row=row + self.last_round().number(first) - first)

    def placed(self, lease: Lease) -> Lease:
        """Return a lease with its place in the epoch."""
        place = self.split_number(lease.key)
        return replace(lease, place=place, starts_epoch=(place, lease.spans[0][0]) == self.start)

    def follows(self, before: Lease, lease: Lease) -> bool:
        """Tell whether nothing lies between two leases, not even a split that told of no element."""
        return is_next([self.placed(before)], self.placed(lease))

    def split_number(self, key: LeaseKey) -> int:
        """Return the number of a split in the epoch."""
        _, pass_index, index = key
        return pass_index * len(self._queues.listings[0]) + index

    def left(self, given: int) -> int:
        """Return how many rows are behind those that were given; where that is not known, there are many."""
        passes, listing = self._shape.num_passes, self._queues.listings[0]
        if passes is None or not listing.complete:
            return MANY
        return passes * listing.elements - self._first - given

    def last_round(self) -> LastRound:
        """Return the round in which ranks share what is left, behind as many rounds as are known to be full."""
        complete, ranks, size = self._queues.listings[0].complete, self._shape.world_size, self._shape.batch_size
        begin, rows = self._end_of_rounds(), self._listed_rows()
        # Under drop_remainder no smaller batch is wanted, and of fewer rows than ranks some rank would have none.
        shared = self.known and complete and not self._shape.drop_remainder and rows - begin >= ranks
        return LastRound(begin, rows - begin if shared else 0, ranks, size)

    def is_apart(self, lease: Lease, run: Sequence[Lease]) -> bool:
        """Tell whether a lease cannot follow a run: it is of another share, or behind all rounds known to be full."""
        share = self.share(lease)
        if share is not None:
            return not (run and self.share(run[0]) == share)
        return bool(run) and rows_of(lease)[0] >= self.last_round().begin

    def share(self, lease: Lease) -> int | None:
        """Return the rank whose share of the last round a lease belongs to; None for a round before."""
        return self.last_round().share_of(rows_of(lease)[0])

    def end(self) -> int:
        """Return the number behind that of the last row that is in a run; many while that is not known."""
        end, listing = self.last_round().end, self._queues.listings[0]
        known = self._shape.world_size > 1 and listing.complete and listing.has_counts and self._shape.num_passes
        return min(end, self._listed_rows()) if known and end >= MANY else end

    def _end_of_rounds(self) -> int:
        """Return the row behind the last round in which each rank has a batch; many where no round lacks one."""
        passes, listing, ranks = self._shape.num_passes, self._queues.listings[0], self._shape.world_size
        complete, size = listing.complete, self._shape.batch_size
        if ranks == 1 or (complete and passes is None) or not listing.has_counts:
            return MANY
        rows = self._listed_rows()
        batches = -(-rows // size) if complete and not self._shape.drop_remainder else rows // size
        end = batches // ranks * ranks * size
        return MANY if complete and end >= rows else end

    def _listed_rows(self) -> int:
        """Return how many rows the epoch has: of one pass alone while splits are still being listed."""
        passes, listing = self._shape.num_passes, self._queues.listings[0]
        first, behind = self._bounds or (0, MANY)
        return min(behind, listing.elements * (passes if listing.complete and passes else 1)) - first

    @property
    def _first(self) -> int:
        return 0 if self._bounds is None else self._bounds[0]
