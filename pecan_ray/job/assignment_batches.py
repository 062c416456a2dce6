"""What a worker makes of one assignment: which number each batch has, whom it is for, and what fills no batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pecan_ray.job.blocks import BlockOfRows, RowRange
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import EndAssignment, EndData, Lengths, SplitOpenFailure
from pecan_ray.job.worker_events import BatchProduced, EngineBatch, PutOut, Release
from pecan_ray.plan.splits import LeaseKey
from pecan_ray.sampling.spans import Span


class AssignmentBatches:
    """The batches of one assignment."""

    def __init__(self, assignment: Assignment, shape: LedgerShape) -> None:
        self.assignment, self._shape = assignment, shape
        self._numbers = assignment.numbers()
        # The batches that the plan begins behind are of its batches, too, whose number the job is
        # told at the end.
        self._produced = assignment.behind
        self.leftovers: list[BatchProduced] = []
        """What fills no batch."""

    def put_out(self, batch: EngineBatch, places: RowRange | None) -> PutOut | Release:
        """Number a batch; let the rank have it that it is for, unless it has it from a worker before this one.

        `places`: which part of the epoch its rows are, where these come in order.
        """
        assignment, number = self.assignment, next(self._numbers)
        self._produced += not batch.partial  # those at the end were counted before
        if not assignment.delivered:
            rank = assignment.rank if batch.rank is None else batch.rank
            if places is not None and self._shape.world_size > 1:
                rank, places = self._in_rank(places)
            return PutOut(batch, assignment.epoch, rank, places)
        if assignment.has(number):
            return Release(batch)
        return PutOut(batch, assignment.epoch, number % len(assignment.delivered), places)

    def _in_rank(self, places: RowRange) -> tuple[int | None, RowRange | None]:
        """Return whom a batch of some rows is for, and which of the rows of that rank they are.

        Of w ranks, batch n is batch n div w of rank n mod w.
        """
        number, within = divmod(places.begin, self._shape.batch_size)
        if within:
            return None, None  # a split was longer or shorter than it told: the job is about to give the order up
        turn, rank = divmod(number, self._shape.world_size)
        first = turn * self._shape.batch_size
        return rank, RowRange(first, first + places.end - places.begin)

    def put_blocks(self, batch: EngineBatch | None, blocks: Sequence[BlockOfRows]) -> Iterator[PutOut | Release]:
        """Let the trainer have blocks, of the rows of a batch or of none."""
        divided = batch is not None and all(one.end - one.begin < batch.rows for one in blocks)
        for one in blocks:
            mine = batch if one.begin < one.end else None
            rows = (one.begin, one.end) if divided and mine is not None else None
            yield PutOut(mine, self.assignment.epoch, None, one.block.row_range, one.block.spans, rows)
        if divided and batch is not None:
            yield Release(batch)  # its rows were copied

    def is_batch(self, remainder_part: EngineBatch) -> bool:
        """Tell whether what is left at the end is a batch for somebody, if it is not returned."""
        wanted = remainder_part.rows > 0 and not self._shape.drop_remainder
        # Elements that no rank can get are for none in particular.
        for_ranks = self._shape.coordinated or self._shape.tail_ranks > 1
        return wanted and (remainder_part.rank is not None or not for_ranks)

    def ending(self, lengths: Lengths, split_open_failures: tuple[SplitOpenFailure, ...]) -> EndAssignment:
        """Return the question of what becomes of the leftovers."""
        spans: dict[LeaseKey, list[Span]] = {}
        batches, rows = self._produced, 0
        for remainder_part in (one.batch for one in self.leftovers):
            for key, intervals in remainder_part.spans.items():
                spans.setdefault(key, []).extend(intervals)
            batches += self.is_batch(remainder_part)
            rows += remainder_part.rows
        return EndAssignment(self.assignment.epoch, spans, batches, lengths, rows, split_open_failures)

    def end_data(self, made: BatchProduced) -> EndData:
        """Return the news that data yields no batch."""
        return EndData(self.assignment.epoch, made.batch.spans, made.batch.rows, made.left_out)
