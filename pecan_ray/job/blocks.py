"""Blocks: rows of a run in the order of the source, and the part of the epoch that they stand for.

Behind a filter it is not known beforehand which row of an epoch an element becomes.  It is known where in the source a
row comes from: its *place*, the number of its split in the epoch and a position there, as one integer.  A block stands
for an interval of places, elements that yield nothing included.  So the trainer knows whether a block follows another
one (`pecan_ray.job.row_sequence`), and joins their rows to batches (`pecan_ray.job.joiner`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pecan_ray.job.lease_rows import is_next
from pecan_ray.job.pending_leases import LeaseSpans, RowParts
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, LeaseKey
from pecan_ray.sampling.spans import Span

PLACE_BITS = 63
"""Positions of a split take so many bits; `END` is the largest one."""


def place_of(split: int, position: int) -> int:
    """Return the place of a position in a split of this number; the end of a split is the beginning of the next."""
    return (split + 1) << PLACE_BITS if position == END else split << PLACE_BITS | position


# Without slots: it travels with every batch, and Python pickles slots field by field (14 us, and 4 us without).
@dataclass(frozen=True)
class RowRange:
    """Which part of an epoch's sequence some rows stand for."""

    begin: int
    end: int
    """Places; where each element is one row, numbers of rows in the epoch."""
    first: int = 0
    """The number of the first split in the epoch; the others follow it one by one."""
    counts: tuple[int, ...] = ()
    """How many rows come from each of the splits; empty where rows have numbers."""
    ends: bytes = b""
    """The position behind each row, in its split: 64 bits each."""

    @property
    def are_joined(self) -> bool:
        """Return whether rows are to be joined to batches."""
        return bool(self.counts)

    def rows_before(self, place: int) -> int:
        """Return how many rows lie before a place."""
        rows, ends = 0, _positions(self.ends)
        for number, count in enumerate(self.counts, self.first):
            if place >= (number + 1) << PLACE_BITS:
                rows += count
            elif number == place >> PLACE_BITS:
                # Within its split alone: positions grow there, and begin anew in the next one.
                return bisect_right(ends, place - (number << PLACE_BITS), rows, rows + count)
        return rows

    def end_of(self, row: int) -> int:
        """Return the place behind a row."""
        before = 0
        for number, count in enumerate(self.counts, self.first):
            before += count
            if row < before:
                return place_of(number, _positions(self.ends)[row])
        raise IndexError(row)

    def element_of(self, row: int, keys: Sequence[LeaseKey]) -> tuple[LeaseKey, int]:
        """Return the split and the element that a row is made of; `keys`: of the splits, in order."""
        # The place behind a row may be the beginning of another element or split. The place before
        # it is the row's own.
        last = self.end_of(row) - 1
        return keys[(last >> PLACE_BITS) - self.first], (last & (1 << PLACE_BITS) - 1) >> OUTPUT_BITS


def _positions(packed: bytes) -> array[int]:
    found = array("q")
    found.frombytes(packed)
    return found


def between(spans: LeaseSpans, first: int, begin: int, end: int) -> dict[LeaseKey, list[Span]]:
    """Return the part of a block's spans that lies between two places; `first`: the number of its first split."""
    found: dict[LeaseKey, list[Span]] = {}
    for number, (key, intervals) in enumerate(spans.items(), first):
        low = begin - (number << PLACE_BITS)
        high = END if end >= (number + 1) << PLACE_BITS else end - (number << PLACE_BITS)
        mine = [(max(start, low), min(stop, high)) for start, stop in intervals if start < high and stop > low]
        if mine:
            found[key] = mine
    return found


@dataclass(frozen=True, slots=True)
class Block:
    """What a worker says of rows that follow each other."""

    spans: dict[LeaseKey, list[Span]]
    """All positions that it stands for; one interval of each split, in order."""
    row_range: RowRange


@dataclass(frozen=True, slots=True)
class BlockOfRows:
    """A block, and which rows of a batch it has: the first, and the one behind the last."""

    block: Block
    begin: int
    end: int


# Why a run ends with a block, with rows or without: docs/decisions/order-and-rows.md#144-joined-rows
class RunBlocks:
    """Cuts the runs of an assignment into blocks, as a worker finishes their rows in order.

    The last block ends where its run does.  An engine that tells where a run ends makes no batch of rows of two runs.
    Of others, a run that follows another one directly is one with it; else the batch in which the engine goes on to a
    new run is divided.  That happens where a split is longer or shorter than it told: a run that is not the last one
    of an assignment ends with a batch.
    """

    def __init__(self) -> None:
        self._stretches: deque[list[Lease]] = deque()
        """Runs that do not follow each other, without what is in blocks already: consecutive leases of one interval.

        One of which the engine tells the end stays until then, even if nothing is left of it."""
        self._told_end = False
        """Whether the engine will tell the end of the last one."""
        self._ends: dict[LeaseKey, int] = {}
        """Of splits that were read to their ends, the position behind the last element."""

    @property
    def first_place(self) -> int | None:
        """The first place that is in no block; None where there is none."""
        lease = next((stretch[0] for stretch in self._stretches if stretch), None)
        return None if lease is None or lease.place is None else place_of(lease.place, lease.spans[0][0])

    def add(self, lease: Lease) -> None:
        """Add a lease, which follows those before it in its run."""
        if not self._goes_on or not is_next(self._stretches[-1], lease):
            self._stretches.append([])
        self._stretches[-1].append(lease)
        self._told_end = lease.ends_run

    @property
    def _goes_on(self) -> bool:
        """Return whether a lease may belong to the run that was added last."""
        return bool(self._stretches) and not self._told_end

    def ended(self, key: LeaseKey, elements: int) -> None:
        """Note that a split has so many elements."""
        self._ends[key] = elements << OUTPUT_BITS

    def next(self, rows: RowParts) -> list[BlockOfRows]:
        """Return the block of the next rows, which ends behind the last of them; several where runs lie between."""
        found, begin = list[BlockOfRows](), 0
        while begin < len(rows):
            end = self._rows_of_stretch(rows, begin)
            key, _, stop = rows[-1]
            taken = self._stretches.popleft() if end < len(rows) else self._taken(key, stop)
            found.append(BlockOfRows(self._block(taken, rows[begin:end]), begin, end))
            begin = end
        return found

    def end_run(self) -> Block | None:
        """Return the block of what is left of the first run, which has ended and has no more rows; None: nothing is."""
        left = self._stretches.popleft()
        return self._block(left, ()) if left else None

    def rest(self, rows: RowParts) -> list[BlockOfRows]:
        """Return the blocks with which the runs end, of rows or of none."""
        found, begin = list[BlockOfRows](), 0
        while self._stretches:
            end = self._rows_of_stretch(rows, begin)
            if stretch := self._stretches.popleft():
                found.append(BlockOfRows(self._block(stretch, rows[begin:end]), begin, end))
            begin = end
        return found

    def _rows_of_stretch(self, rows: RowParts, begin: int) -> int:
        """Return the first of some rows that is not of the first stretch."""
        if len(self._stretches) == 1:
            return len(rows)
        here = [(lease.key, *lease.spans[0]) for lease in self._stretches[0]]
        for number in range(begin, len(rows)):
            key, start, _ = rows[number]
            if not any(key == mine and first <= start < last for mine, first, last in here):
                return number
        return len(rows)

    def _taken(self, last: LeaseKey, position: int) -> list[Lease]:
        """Take leases up to a position out of the first stretch, with the end of a split behind its last element."""
        taken: list[Lease] = []
        told_end = False
        stretch = self._stretches[0]
        while stretch:
            lease = stretch[0]
            ((start, stop),) = lease.spans
            if lease.key == last and position < min(stop, self._ends.get(last, END)):
                if start < position:
                    taken.append(replace(lease, spans=((start, position),)))
                    # The beginning of the epoch is in the block that is being cut off.
                    stretch[0] = replace(lease, spans=((position, stop),), starts_epoch=False)
                break
            taken.append(stretch.pop(0))
            told_end = taken[-1].ends_run
            if lease.key == last and position <= stop:
                break
        if not stretch and not told_end:
            self._stretches.popleft()
        return taken

    def _block(self, taken: Sequence[Lease], rows: RowParts) -> Block:
        spans: dict[LeaseKey, list[Span]] = {}
        for lease in taken:
            (start, stop) = lease.spans[0]
            # A split of several leases is one interval all the same, because the leases of a run
            # follow each other.
            spans[lease.key] = [(spans[lease.key][0][0] if lease.key in spans else start, stop)]
        # Splits without a row are counted too: `RowRange.counts` goes through the splits by number.
        ends: dict[LeaseKey, list[int]] = {key: [] for key in spans}
        for key, _, stop in rows:
            ends[key].append(stop)
        first, last = taken[0], taken[-1]
        assert first.place is not None and last.place is not None
        # An epoch's first block begins at 0 also where a run goes on in the middle: nothing before it will come.
        begin = 0 if first.starts_epoch else place_of(first.place, first.spans[0][0])
        # Packed, because there is a position for each row, and every message of a batch carries them.
        packed = array("q", [stop for mine in ends.values() for stop in mine]).tobytes()
        end = place_of(last.place, last.spans[-1][1])
        return Block(spans, RowRange(begin, end, first.place, tuple(map(len, ends.values())), packed))
