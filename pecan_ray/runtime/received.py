"""What a trainer has received: batches as they came, and those that are joined of blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray

from pecan_ray.engines.contract import SpansByKey
from pecan_ray.errors import BatchShapeError, ClusterError
from pecan_ray.job import trainer_events as events
from pecan_ray.plan.splits import Element, Split
from pecan_ray.runtime.calls import Calls
from pecan_ray.transport.joining import UnequalRowsError, joined
from pecan_ray.transport.messages import Message


class Provenance(NamedTuple):
    """Which data a batch holds: for checks, logs and exact accounting."""

    epoch: int
    worker: str
    """Who has made it, or its first rows, where these are joined with those of others."""
    spans: SpansByKey
    rows: int


class Received(NamedTuple):
    """A batch as it came, or as it was joined."""

    columns: Element
    provenance: Provenance
    message: Message


class CannotJoinError(Exception):
    """Rows of a batch do not go together."""

    def __init__(self, batch: events.ReceivedBatch, found: UnequalRowsError) -> None:
        super().__init__(batch.id)
        self.batch, self.found = batch, found


def messages_of(batch: events.ReceivedBatch) -> Sequence[Message]:
    """Return the messages of the blocks that a batch is joined of, or of a block; none where it came as a whole."""
    blocks = [piece.block for piece in batch.slices] or [batch]
    return [block.payload.message for block in blocks if block.payload is not None]


def joined_batch(batch: events.ReceivedBatch) -> Received:
    """Join a batch; raises `CannotJoinError` where its rows do not go together."""
    first = batch.slices[0]
    # Decision 144: no copy is made if a batch is all of one block.
    if len(batch.slices) == 1 and first.stop - first.start == first.block.rows + first.block.skip:
        columns = first.block.payload.columns
    else:
        try:
            columns = joined([(piece.block.payload.columns, piece.start, piece.stop) for piece in batch.slices])
        except UnequalRowsError as found:
            raise CannotJoinError(batch, found) from None
    spans = {key: list(intervals) for key, intervals in batch.spans.items()}
    provenance = Provenance(batch.epoch, batch.worker, spans, batch.rows)
    return Received(columns, provenance, Message({}, spans, batch.rows, batch.epoch))


def shape_error(failed: CannotJoinError, controller: Any, calls: Calls) -> BatchShapeError:
    """Return the error of a batch whose rows do not go together, which names the elements.

    The trainer knows elements by numbers: the job's listing knows their files.
    """
    pieces, found = failed.batch.slices, failed.found
    wheres: list[str] = []
    for piece in (pieces[found.part], pieces[0]):
        assert piece.block.row_range is not None
        key, element = piece.block.row_range.element_of(piece.start, tuple(piece.block.spans))
        split = Split(key[2])
        with contextlib.suppress(ray.exceptions.RayError, ClusterError):  # then it is named by its number
            split = calls.ask(controller.split, key[0], key[2])
        wheres.append(split.where(element))
        if not wheres[1:]:
            place = {"file": split.file_of(element), "element": split.number_of(element)}
            fields = {"op": "batch", **place, "column": found.column}
    return BatchShapeError(found.message(*wheres), **fields)
