"""Filling batches from many threads: each thread writes its elements straight into the batch that is open."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from pecan_ray.engines.contract import Produced, Slots
from pecan_ray.engines.items import Item
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.positions import SkippedPositions, merge
from pecan_ray.engines.python.chunk_line import ChunkLine, Piece, RowsInLine, RunEnd
from pecan_ray.engines.python.open_batch import OpenBatch, copy_into
from pecan_ray.engines.python.sendable import SendableItems
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.engines.row_types import kind_of
from pecan_ray.errors import BatchShapeError
from pecan_ray.options import OnError
from pecan_ray.plan.operators import Batch

MOST_IN_PIECE = 256
"""Elements of a chunk that stand in line together: as many as a chunk has (`feed.MOST_PER_CHUNK`)."""


class BatchWriter:
    """Gives rows to elements: in the order of completion, or (strict) in the order of the source.

    Elements wait in one line for their rows.  A thread opens the next batch, which may have to wait for memory, only
    when it owes no row to another one: the memory comes from batches that are finished.

    Rows that the trainer joins (their leases have a place) are given up before elements of another kind, and before one
    that fails, however few they are: there they stand in batches that this worker does not know.
    """

    def __init__(
        self,
        batch: Batch,
        slots: Slots,
        skipped_positions: SkippedPositions,
        strict: bool,
        put: Callable[[Produced | BaseException], None],
        on_error: OnError,
        made_by: str,
    ) -> None:
        """`made_by`: the operator that the elements come from.

        `put` is given batches, and, where order is kept, the error of the first chunk that failed, behind all batches
        that are full before it.
        """
        self._sendable = SendableItems(made_by, skipped_positions, on_error, strict)
        self.size = batch.size
        """Rows of a batch."""
        self._op, self._slots, self._skipped_positions = batch.name, slots, skipped_positions
        self._put = put
        self._open: OpenBatch | None = None
        self._claim_lock = threading.Lock()
        """Guards the line, and the open batch with its place in the sequence."""
        self._line = ChunkLine(strict)
        self._finishing = threading.Lock()
        """Guards the beginning of the sequence: batches are handed on one after the other."""
        self._sequence: deque[OpenBatch | RunEnd] = deque()
        self._left = False

    @property
    def strict(self) -> bool:
        """Return whether elements keep the order of the source."""
        return self._line.strict

    @property
    def failed(self) -> bool:
        """Return whether something has failed, so that nothing behind it is wanted."""
        return self._line.failed

    def leave(self) -> None:
        """Begin no other batch: nobody takes it.  A thread that waits for memory may hold the lock."""
        self._left = True

    def place(self, number: int, items: list[Item], error: BaseException | None = None) -> int:
        """Write the outputs of chunk `number`, and of others in line, into batches.

        `error`: what ended the chunk, where order is kept.  Returns how many bytes more wait for an earlier chunk: less
        than none, if it is one that others waited for.
        """
        pieces, error = self._sendable.pieces(items, error)
        if error is not None:
            with self._claim_lock:
                self._line.fail(number, error)
        # In pieces where it is long: what a batch leaves of one is copied.
        size = MOST_IN_PIECE
        return self._place(number, [one[at : at + size] for one in pieces for at in range(0, len(one), size)])

    def place_rows(
        self, number: int, rows: KeptRows | RowBlock, start: int, stop: int, error: BaseException | None = None
    ) -> int:
        """Write rows as chunk `number`, as `place` does."""
        if error is not None:
            with self._claim_lock:
                self._line.fail(number, error)
        if not self.strict and rows.plain:
            # What stands in line waits for the rest, and keeps the slot of the open batch: there is always one more.
            while stop - start >= self.size:
                self._put(self._whole(rows, start))
                start += self.size
        return self._place(number, [RowsInLine(rows, start, stop)] if start < stop else [])

    def end_run(self, number: int, epoch: int) -> int:
        """Let what comes before chunk `number` be followed by the end of its run, and the batch that is open by none.

        Only where order is kept.
        """
        return self._place(number, [RunEnd(epoch)])

    def _whole(self, rows: KeptRows | RowBlock, start: int) -> Produced:
        """Return a batch of rows of one entry, or block: nobody else has to do with it, so it takes few steps."""
        size, layout = self.size, rows.layout(self.size)
        assert layout is not None
        slot = self._slots.acquire(layout.nbytes) if layout.nbytes else None
        memory = slot.buffer if slot else b""
        columns = {}
        for name, place in layout.columns.items():
            assert place is not None
            columns[name] = into = place.view(memory)
            copy_into(into, rows.column(name, start, start + size))
        stop = start + size
        arrays = rows.part_arrays(start, stop) if isinstance(rows, RowBlock) else []
        parts = [] if isinstance(rows, RowBlock) else rows.parts(start, stop)
        # `waiting` is asked without the lock: what is added meanwhile goes with the next batch.
        waiting, bad = self._skipped_positions.take() if self._skipped_positions.waiting else ([], [])
        return Produced(
            columns,
            merge(parts + waiting, arrays),
            size,
            rows.lease.epoch,
            slot=slot,
            bad=bad,
            layout=layout,
            without_data=merge(waiting),
        )

    def _place(self, number: int, pieces: Sequence[Piece]) -> int:
        # Weighed outside of the lock.
        nbytes = self._line.early_bytes(number, pieces)
        with self._claim_lock:
            waiting = self._line.add(number, pieces, nbytes)
        # Claimed rows are written before the next claim: who waits for memory there owes no batch a row.
        while claim := self._claim():
            self._write(*claim)
        if self._line.error is not None:
            self._raise_if_due()
        return waiting

    def _write(self, batch: OpenBatch, first: int, claimed: Piece) -> None:
        """Write claimed rows, and hand on the batch if it is complete with them."""
        try:
            complete = batch.write(first, claimed) if isinstance(claimed, list) else batch.write_run(first, *claimed)
        except BatchShapeError as error:
            if not self.strict:
                raise
            batch.fail(error)
            complete = self._line.failed = True
        if complete:
            self._finish(batch)

    def _raise_if_due(self) -> None:
        """Raise the error that is due if all batches that are full before it are handed on."""
        # Both: neither may a full batch before the error be on its way, nor elements before it stand in line.
        with self._finishing:
            with self._claim_lock:
                if self._line.pieces:
                    return
                if (batch := self._open) is not None and batch.is_joined and batch.claimed < batch.stop:
                    batch.cut()
            self._flush()
            with self._claim_lock:
                error = self._line.error
                if error is None or self._line.pieces or (self._sequence and self._is_full(self._sequence[0])):
                    return
                self._line.error = None
        self._put(error)

    def _claim(self) -> tuple[OpenBatch, int, Piece] | None:
        """Take as many elements from the line as the open batch has room for, and as are of one kind."""
        while True:
            with self._claim_lock:
                if not self._line.pieces or self._left:
                    return None
                head, batch = self._line.pieces[0], self._open
                if isinstance(head, RunEnd):
                    self._line.pieces.popleft()
                    self._sequence.append(head)
                    if batch is not None and not batch.is_full:
                        batch.cut()
                elif batch is None or batch.is_full or self._matches_batch(batch, head):
                    return self._claimed(batch, head)
                else:
                    batch.cut()
            # Handed on before the next one is opened, which may wait for its memory.
            with self._finishing:
                self._flush()

    @staticmethod
    def _is_full(one: OpenBatch | RunEnd) -> bool:
        return isinstance(one, RunEnd) or one.is_full

    @staticmethod
    def _matches_batch(batch: OpenBatch, piece: list[Item] | RowsInLine) -> bool:
        """Tell whether elements are of the batch's kind, or it is an error if they are not."""
        if not batch.is_joined:
            return True
        first = piece[0] if isinstance(piece, list) else piece.rows.named(piece.start)
        return kind_of(first.value) == batch.kind

    def _claimed(self, batch: OpenBatch | None, head: list[Item] | RowsInLine) -> tuple[OpenBatch, int, Piece]:
        """Take elements for a batch, or for the next one if it is full; the caller holds the lock."""
        if batch is None or batch.is_full:
            batch = self._open = self._opened(head)
            # Only where order is kept: batches that are handed on as they are full need no line of their own.
            if self.strict:
                self._sequence.append(batch)
        first, room = batch.claimed, batch.stop - batch.claimed
        claimed: Piece
        if isinstance(head, RowsInLine):
            claimed = self._line.take_rows(room)
            batch.claimed += claimed.stop - claimed.start
        else:
            claimed = self._items_in_line(batch, room)
            batch.claimed += len(claimed)
        return batch, first, claimed

    def _opened(self, head: list[Item] | RowsInLine) -> OpenBatch:
        """Return a new batch that begins with what stands first in line; the caller holds the lock."""
        if isinstance(head, list):
            return OpenBatch(head[0], self.size, self._op, self._slots)
        layout = head.rows.layout(self.size)
        return OpenBatch(head.rows.named(head.start), self.size, self._op, self._slots, layout)

    def _items_in_line(self, batch: OpenBatch, most: int) -> list[Item]:
        """Take items from the beginning of the line, up to what does not go into the batch; the caller has the lock."""
        taken: list[Item] = []
        pieces = self._line.pieces
        while len(taken) < most and pieces and isinstance(pieces[0], list) and self._matches_batch(batch, pieces[0]):
            taken += self._line.take_items(most - len(taken))
        return taken

    def _finish(self, batch: OpenBatch) -> None:
        """Hand on a complete batch; with strict order, only after those before it."""
        if not self.strict:
            self._put(batch.finish(self._skipped_positions))
            return
        with self._finishing:
            self._flush()

    def _flush(self) -> None:
        """Hand on the batches at the beginning of the sequence, up to one that cannot be made; the caller has the lock.

        Under the lock: two threads could else exchange two batches.
        """
        while self._sequence:
            batch = self._sequence[0]
            if isinstance(batch, RunEnd):
                self._put(self._end_of(batch))
                self._sequence.popleft()
                continue
            if not batch.complete and batch.error is None:
                return
            try:
                if batch.error is not None:
                    raise batch.error
                self._put(batch.finish(self._skipped_positions))
            except BatchShapeError as error:
                self._line.failed = True
                self._sequence.clear()
                self._put(error)
                self.leave()
                return
            self._sequence.popleft()

    def _end_of(self, run: RunEnd) -> Produced:
        """Return what tells the end of a run, with positions that no batch of it carries."""
        left = self._skipped_positions.report(run.epoch)
        return Produced({}, {}, 0, run.epoch, ends_run=True) if left is None else replace(left, ends_run=True)

    def rest(self) -> Produced | None:
        """Return the batch that was not filled, once all elements are placed."""
        batch = self._open
        return None if batch is None or batch.is_full else batch.finish(None)
