"""What has had its turn in an epoch whose rows the trainer joins, and what elements become."""

from __future__ import annotations

from pecan_ray.job.blocks import PLACE_BITS, place_of
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.pending_leases import LeaseSpans
from pecan_ray.job.queues import Queues
from pecan_ray.plan.splits import OUTPUT_BITS

LEAST_SHARE = 1 / 64
"""Elements become this share of rows at least, as far as the window goes: behind filters that let fewer through, those
that let more of them through later do not fill memory."""


class RowsInTurn:
    """How far an epoch has come."""

    def __init__(self, shape: LedgerShape, queues: Queues) -> None:
        self._shape, self._queues = shape, queues
        self.elements = self.rows = 0
        """Elements that have had their turn, of those that splits told of, and rows that they have become."""
        self.place = 0
        """All before this place has had its turn."""
        self._in_all = 0, 0
        """Elements and rows of all epochs before this one."""

    def begin_epoch(self) -> None:
        """Begin an epoch at its first row."""
        self._in_all = self._in_all[0] + self.elements, self._in_all[1] + self.rows
        self.elements = self.rows = self.place = 0

    def add(self, spans: LeaseSpans, rows: int) -> int:
        """Note positions that have had their turn, with the rows made of them; return how many batches these fill."""
        before, self.rows = self.rows, self.rows + rows
        listing = self._queues.listings[0]
        for (_, pass_index, index), intervals in spans.items():
            for start, stop in intervals:
                # A split that is longer than it told counts as what was given out of it: the window hangs on that.
                end = min(listing[index].elements or 0, stop >> OUTPUT_BITS)
                self.elements += max(0, end - (start >> OUTPUT_BITS))
                self.place = max(self.place, place_of(pass_index * len(listing) + index, stop))
        return self.rows // self._shape.batch_size - before // self._shape.batch_size

    def rest(self) -> tuple[int, int]:
        """Return how many batches the rows that fill none become, and how many of them are dropped."""
        rest = self.rows % self._shape.batch_size
        return (0, rest) if self._shape.drop_remainder else (int(rest > 0), 0)

    def element_at(self, place: int) -> str:
        """Say in words which element is at a place."""
        listing = self._queues.listings[0]
        split, position = divmod(place, 1 << PLACE_BITS)
        return listing[split % len(listing)].where(position >> OUTPUT_BITS)

    def elements_for(self, rows: int) -> int:
        """Return how many elements become so many rows, if they do as those before."""
        # Over all epochs, because the beginning of one says little about the share that is let through.
        elements, made = self._in_all[0] + self.elements, self._in_all[1] + self.rows
        return int(rows / max(LEAST_SHARE, made / elements if elements else 1.0))
