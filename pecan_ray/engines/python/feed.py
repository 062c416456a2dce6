"""Feeding the pool: elements go to threads in chunks, and batches come back, as many of each as are wanted."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.counting import element_bytes
from pecan_ray.engines.items import Item
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.python.batch_writer import BatchWriter
from pecan_ray.engines.python.chain import ChainProtocol, run_in_order
from pecan_ray.engines.python.chunk_line import RunEnd
from pecan_ray.engines.python.column_chain import ColumnChain
from pecan_ray.engines.python.element_time import CHUNK_S, ElementTime
from pecan_ray.engines.python.ordered_results import EARLY_BYTES, up_to_an_error
from pecan_ray.engines.python.threads import Threads
from pecan_ray.engines.row_block import RowBlock

# docs/decisions/python-engine.md#13-where-the-engines-time-goes: 40 to 60 us of CPU for an element of 0.4 ms,
# 90 to 100 with messages of 5 ms.
MESSAGE_S = 0.03
"""Chunks that are messages to another process hold about this much work: each wakes that process, and a thread here."""
# Bounds the elements that wait for one thread where each takes a microsecond or so.
MOST_PER_CHUNK = 256
ROWS_BYTES = 4 << 20
"""Rows of an entry are handed to threads in pieces of about this many bytes."""
MOST_ROWS = 4096
"""A piece has at most this many rows."""
MOST_READY = 8
"""Reading pauses while so many finished batches wait, unless `prefetch` says how many: those without arrays take no
slot that would bound them."""


@dataclass
class _Chunks:
    """Chunks that were handed out and are not finished, and what is early of the finished ones."""

    in_progress: int = 0
    in_line: int = 0
    """Of these, the ones that no thread has begun."""
    working: int = 0
    """Threads at work, on their own chunk or on elements that others have left in line."""
    early_bytes: int = 0
    """Of elements that are finished and wait for an earlier chunk, about."""

    def hand_out(self) -> None:
        """Count a chunk that a thread is to work on."""
        self.in_progress += 1
        self.in_line += 1
        self.working += 1

    def begin(self) -> None:
        """Note that a thread begins with one."""
        self.in_line -= 1

    def finish(self, early_bytes: int) -> None:
        """Note that one is finished, and how many bytes more are early with it."""
        self.in_progress -= 1
        self.working -= 1
        self.early_bytes += early_bytes


class Feeder:
    """Hands elements to the pool in chunks; bounds what is in progress and what is finished and not taken.

    What is finished and waits for an earlier chunk is bounded by bytes, and not by number: else one slow element would
    soon leave all other threads without work.
    """

    def __init__(
        self,
        pool: Threads,
        chain: ChainProtocol,
        most_ready: int = MOST_READY,
        columns: ColumnChain | None = None,
        slow: Callable[[float, list[Item] | RowBlock], None] | None = None,
    ) -> None:
        """`columns`: what runs the chain on rows, where it can; None: rows go through it as elements.

        `slow`: is told how long each chunk took.
        """
        self._slow = slow
        self._pool, self._chain, self._most_ready, self._columns = pool, chain, most_ready, columns
        # A waiting thread is woken only for what it waits for: one that wakes for nothing takes a CPU, or Python's
        # lock, from one that works.
        self._more_needed = threading.Condition()
        """Guards the counts; `_stopped` is only ever set."""
        self._chunks = _Chunks()
        self._ready: queue.SimpleQueue[Produced | BaseException | None] = queue.SimpleQueue()
        """Waiting for it takes a third of the time that a condition of Python takes, and it comes with every batch."""
        self._pass_number = 0
        """Of the rows that were handed out last."""
        self._stopped = False
        self._left = False
        """Nobody takes what becomes ready."""
        self._waiting = False
        """The reader has read enough for now.  It says so before it looks at what is ready, and is looked at after
        something was taken from there: so none of the two misses the other."""
        self._speed = ElementTime(MESSAGE_S if chain.is_out_of_process else CHUNK_S)

    def feed(
        self,
        items: Iterator[Item | KeptRows | RowBlock | RunEnd | None],
        writer: BatchWriter,
        report: Callable[[], Produced | None],
    ) -> None:
        """Read all items and hand them out; ends with None, or with the error that stopped it.

        Where a None comes, what `report` tells is a result too.
        """
        try:
            number = 0
            chunk: list[Item] = []
            # Decision 150: where order is kept, an error of the source has a place behind the elements before it.
            reading = up_to_an_error(items) if writer.strict else items
            for item in reading:
                if item is None:
                    self._pass_on(report())
                    continue
                if isinstance(item, Item):
                    chunk.append(item)
                    if len(chunk) < min(MOST_PER_CHUNK, self._speed.elements):
                        continue
                number, chunk = self._submit_chunk(number, chunk, writer), []
                if isinstance(item, BaseException):
                    self._submit({}, 1, partial(self._fail, number, item, writer))
                    return
                number = self._submit_apart(number, item, writer)
                if self._stopped or writer.failed:
                    return
            self._submit_chunk(number, chunk, writer)
            self._put_end(writer)
        except BaseException as error:
            self.put(error)

    def _submit_apart(self, number: int, item: Item | KeptRows | RowBlock | RunEnd, writer: BatchWriter) -> int:
        """Submit what is no chunk of items, if it is none; return the number of the next row."""
        if isinstance(item, KeptRows):
            return self._submit_rows(number, item, writer)
        if isinstance(item, RowBlock):
            return self._submit_block(number, item, writer)
        if isinstance(item, RunEnd):
            self._submit({}, 1, partial(self._end_run, number, item.epoch, writer))
            return number + 1
        return number

    def _put_end(self, writer: BatchWriter) -> None:
        with self._more_needed:
            # The end comes behind the last batch, which a thread may still be filling.
            self._wait(lambda: not self._chunks.working)
        if not writer.failed:  # else its place in the sequence has come, or is about to
            self.put(None)

    def _submit_chunk(self, number: int, chunk: list[Item], writer: BatchWriter) -> int:
        """Hand out a chunk, if it is not empty; return the next number."""
        if not chunk:
            return number
        self._submit(chunk[0].value, len(chunk), partial(self._work, number, chunk, writer))
        return number + 1

    def _submit_rows(self, number: int, rows: KeptRows, writer: BatchWriter) -> int:
        """Hand out rows of an entry in pieces; return the number of the next chunk."""
        first, piece = rows.first, self._rows_per_chunk(rows.first, writer)
        for start in range(0, rows.rows, piece):
            stop = min(rows.rows, start + piece)
            self._submit(first, stop - start, partial(self._write, number, rows, start, stop, writer))
            number += 1
        return number

    def _submit_block(self, number: int, block: RowBlock, writer: BatchWriter) -> int:
        """Hand out rows in pieces; return the number of the next chunk."""
        start = 0
        plain = self._columns is not None and not self._columns.steps
        if plain and block.rows and block.lease.pass_index != self._pass_number:
            # Rows that are only copied do not overtake those of the pass before them.
            with self._more_needed:
                self._wait(lambda: not self._chunks.working)
            self._pass_number = block.lease.pass_index
        while start < block.rows:
            most = self._rows_per_chunk(block.first, writer) if plain else int(min(MOST_ROWS, self._speed.elements))
            stop = min(block.rows, start + max(1, most))
            piece = block.cut(start, stop)
            self._submit(piece.first, piece.rows, partial(self._work, number, piece, writer))
            number, start = number + 1, stop
        return number

    def _rows_per_chunk(self, first: Mapping[str, Any], writer: BatchWriter) -> int:
        """Return how many rows, of which one is given, a thread shall copy into batches at a time."""
        piece = max(1, min(MOST_ROWS, ROWS_BYTES // max(1, element_bytes(first))))
        if writer.size <= 2 * piece:
            piece = max(1, piece // writer.size) * writer.size  # a batch is seldom written by two threads then
        return piece

    def _pass_on(self, report: Produced | None) -> None:
        """Add what has no batch, when there is room for it."""
        if report is not None:
            with self._more_needed:
                self._wait(lambda: self._ready.qsize() < self._most_ready)
            self.put(report)

    def _submit(self, first: Mapping[str, Any], elements: int, work: Callable[[], None]) -> None:
        """Let a thread do some work, once there is room for it; `first`: one of its elements."""
        with self._more_needed:
            if self._ready.qsize() >= self._most_ready:
                # Only this wait is the trainer's: the tuner must not take the one below for it.
                with self._pool.blocked():
                    self._wait(lambda: self._ready.qsize() < self._most_ready)
            if not self._has_room():
                # Decision 14: woken when half of the line is gone, the reader fills it up with few wake-ups.
                self._wait(lambda: self._short() and self._ready.qsize() < self._most_ready)
            if self._stopped:
                return
            self._chunks.hand_out()
        if first:
            self._pool.note_size(first, elements)
        self._pool.start(work, elements)

    def _wait(self, until: Callable[[], bool]) -> None:
        """Let the reader wait; the caller holds the lock."""
        self._waiting = True
        self._more_needed.wait_for(lambda: until() or self._stopped)
        self._waiting = False

    def _short(self) -> bool:
        """Tell whether chunks may be handed out again: several at a time, so that the reader is seldom woken."""
        return self._has_room() and self._chunks.in_line <= self._pool.queue_limit

    def _has_room(self) -> bool:
        """Tell whether another chunk may be in progress, and its results in memory."""
        return self._chunks.in_progress < self._pool.target_in_flight and self._chunks.early_bytes <= EARLY_BYTES

    def _work(self, number: int, chunk: list[Item] | RowBlock, writer: BatchWriter) -> None:
        def placed() -> int:
            started = time.perf_counter()
            done, error = self._run(chunk, writer)
            took_s = time.perf_counter() - started
            self._speed.note(took_s, len(chunk) if isinstance(chunk, list) else chunk.rows)
            if self._slow is not None:
                self._slow(took_s, chunk)
            if isinstance(done, RowBlock):
                return writer.place_rows(number, done, 0, done.rows, error)
            if done:
                self._pool.note_size(done[0].value, len(done))
            return writer.place(number, done, error)

        self._do(placed)

    def _run(
        self, chunk: list[Item] | RowBlock, writer: BatchWriter
    ) -> tuple[list[Item] | RowBlock, BaseException | None]:
        """Return what becomes of a chunk; where order is kept, up to an element that fails, and the error."""
        if isinstance(chunk, RowBlock):
            if self._columns is not None and self._columns.takes(chunk):
                rows, failed = self._columns.run(chunk)
                if failed is not None and not writer.strict:
                    raise failed
                # Rows that the trainer joins stand in a batch beside their like only.
                as_rows = rows.is_serializable and (chunk.lease.place is None or rows.is_of_one_kind)
                return rows if as_rows else rows.own_items(), failed
            chunk = chunk.own_items()
        if not writer.strict:
            return self._chain.run_all(chunk), None
        return run_in_order(self._chain, chunk)

    def _end_run(self, number: int, epoch: int, writer: BatchWriter) -> None:
        self._do(lambda: writer.end_run(number, epoch))

    def _fail(self, number: int, error: BaseException, writer: BatchWriter) -> None:
        """Let what was read be followed by the error that ended it."""
        self._do(lambda: writer.place(number, [], error))

    def _write(self, number: int, rows: KeptRows, start: int, stop: int, writer: BatchWriter) -> None:
        self._do(lambda: writer.place_rows(number, rows, start, stop))

    def _do(self, place: Callable[[], int]) -> None:
        """Do a piece of work, which tells how many bytes more wait for an earlier chunk with it."""
        waiting = 0
        with self._more_needed:
            self._chunks.begin()
        try:
            if not self._stopped:
                waiting = place()
        except BaseException as error:
            self.put(error)  # before the reader sees that it must stop, which ends with None
            self._stopped = True
        finally:
            with self._more_needed:
                self._chunks.finish(waiting)
                # Decision 14: if every result woke the reader, it would take a CPU or the GIL from threads that work.
                if self._waiting and (self._short() or not self._chunks.working):
                    self._more_needed.notify()

    def put(self, result: Produced | BaseException | None) -> None:
        """Add a finished batch, an error, or None for the end; it is dropped where nobody takes it any more."""
        with self._more_needed:
            if not self._left:
                self._ready.put(result)
                return
        _drop(result)

    def get(self) -> Produced | None:
        """Wait for the next finished batch; None at the end.  Raises the error that stopped the work."""
        result = self._ready.get()
        if self._waiting:
            with self._more_needed:
                self._more_needed.notify()
        if isinstance(result, BaseException):
            raise result
        return result

    def stop(self) -> None:
        """Let nothing new begin, and wake the reader.

        Batches that nobody has taken are dropped: a thread may wait for the memory that they are in.
        """
        with self._more_needed:
            # Under the lock: what `put` adds later is dropped there, so the loop below finds all the rest.
            self._stopped = self._left = True
            self._more_needed.notify()
        with contextlib.suppress(queue.Empty):
            while True:
                _drop(self._ready.get_nowait())


def _drop(result: Produced | BaseException | None) -> None:
    """Give back the memory of a batch, which a thread that waits for the next one may still know."""
    if isinstance(result, Produced) and result.slot is not None:
        result.slot.release()
