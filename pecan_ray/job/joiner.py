"""Joining: the trainer makes batches of blocks of rows, which workers have made and which come in the source's order.

A block is acknowledged when it has had its turn.  Rows that fill no batch yet are kept by the trainer, which tells the
job of them with each report: a state that is taken then has them among what is missing.  Nothing goes back to workers,
so nothing is made twice, and an epoch ends with the one batch that is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

from pecan_ray.job.blocks import PLACE_BITS, between
from pecan_ray.job.delivery_log import Delivery
from pecan_ray.job.joins import Joins
from pecan_ray.job.pending_leases import LeaseSpans
from pecan_ray.job.trainer_events import BlockSlice, ReceivedBatch
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.spans import Span

# No stream brings so many batches, so the two kinds of ids never meet.
FIRST_ID = 1 << 48
"""Ids of joined batches are larger than those of what comes."""


# Why rows are joined at the trainer: docs/decisions/order-and-rows.md#144-joined-rows
class Joiner:
    """Rows that fill no batch yet."""

    def __init__(self, joins: Joins) -> None:
        self._joins = joins
        self.epoch = -1
        """Whose rows are joined."""
        self._pending_chunks: list[BlockSlice] = []
        self._spans: dict[LeaseKey, list[Span]] = {}
        self._rows, self._bytes = 0, 0.0
        self._created = FIRST_ID

    def __bool__(self) -> bool:
        return bool(self._pending_chunks)

    @property
    def drops(self) -> bool:
        """Return whether rows that fill no batch at an epoch's end are dropped."""
        return self._joins.drop_remainder

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that wait."""
        return int(self._bytes)

    @property
    def blocks(self) -> Sequence[ReceivedBatch]:
        """The blocks that these rows are in."""
        return [piece.block for piece in self._pending_chunks]

    @property
    def rest(self) -> Delivery | None:
        """What the rows that wait stand for; None where none do, and nothing that they would be known by."""
        return Delivery(0, self.epoch, dict(self._spans)) if self._spans else None

    def add(self, block: ReceivedBatch) -> Sequence[ReceivedBatch]:
        """Take the block that comes next; return the batches that are full with it."""
        places = block.row_range
        assert places is not None
        # The first block of an epoch may come before the orders that tell of this epoch.
        made = [*self.end(block.epoch)]
        self.epoch = block.epoch
        if self._is_batch(block):
            made.append(self._made((BlockSlice(block, 0, block.rows),), block.spans, block.rows, block.nbytes))
            return made
        at, since = 0, block.since or place_of_first(block)
        while block.rows - at >= self._joins.batch_size - self._rows:
            stop = at + self._joins.batch_size - self._rows
            # Decision 144: a batch ends at the place behind its last row, so a state holds a beginning of the sequence.
            until = places.end_of(block.skip + stop - 1)
            self._take(block, at, stop, since, until)
            at, since = stop, until
            made.append(self._batch())
        # Also if no row is left: what lies behind the last full batch counts as missing until the next one.
        self._take(block, at, block.rows, since, places.end)
        return made

    def _is_batch(self, block: ReceivedBatch) -> bool:
        """Tell whether a block is a batch as it is, with nothing before it or behind its last row."""
        places = block.row_range
        assert places is not None
        whole = block.rows == self._joins.batch_size and not block.skip
        return whole and not self._spans and places.end_of(block.rows - 1) == places.end

    def _take(self, block: ReceivedBatch, start: int, stop: int, since: int, until: int) -> None:
        """Let some rows of a block wait, and what lies between two places."""
        assert block.row_range is not None
        if start < stop:
            self._pending_chunks.append(BlockSlice(block, block.skip + start, block.skip + stop))
            self._rows += stop - start
            # The bytes are those of all rows, and `rows` leaves out the first `skip` ones, which
            # another worker has brought.
            self._bytes += block.nbytes * (stop - start) / (block.rows + block.skip)
        for key, spans in between(block.spans, block.row_range.first, since, until).items():
            mine = self._spans.setdefault(key, [])
            for start_at, stop_at in spans:
                if mine and mine[-1][1] == start_at:
                    mine[-1] = (mine[-1][0], stop_at)
                else:
                    mine.append((start_at, stop_at))

    def end(self, epoch: int) -> Sequence[ReceivedBatch]:
        """Note that the job has come to an epoch; return the smaller batch with which the one before has ended."""
        # Orders and blocks both tell of a new epoch, in any order.
        if epoch <= self.epoch:
            return ()
        made = (self._batch(),) if self._pending_chunks and not self.drops else ()
        self.leave()
        return made

    def _batch(self) -> ReceivedBatch:
        batch = self._made(tuple(self._pending_chunks), self._spans, self._rows, self.nbytes)
        self.leave()
        return batch

    def _made(self, pieces: tuple[BlockSlice, ...], spans: LeaseSpans, rows: int, nbytes: int) -> ReceivedBatch:
        self._created += 1
        return ReceivedBatch(self._created, pieces[0].block.worker, self.epoch, spans, rows, nbytes, slices=pieces)

    def leave(self) -> None:
        """Forget the rows that wait."""
        self._pending_chunks, self._spans, self._rows, self._bytes = [], {}, 0, 0.0


def place_of_first(block: ReceivedBatch) -> int:
    """Return the place of the first position of a block."""
    assert block.row_range is not None
    ((start, _),) = next(iter(block.spans.values()))
    return block.row_range.first << PLACE_BITS | start
