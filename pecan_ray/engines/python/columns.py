"""Batches straight from the columns of a source: slices are copied into a batch, and no row becomes an object."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import TypeVar

from pecan_ray.engines.contract import EngineOptions, Slots
from pecan_ray.engines.python.batch_writer import OpenBatch
from pecan_ray.engines.reading import Run
from pecan_ray.plan.operators import Batch, ElementOp, Join, Plan, Prefetch, Repeat
from pecan_ray.plan.splits import ColumnarSource, Source

T = TypeVar("T")

MOST_AHEAD = 8
"""Finished batches that wait to be taken; where a ring has fewer slots, those bound them."""
MOST_READERS = 4
"""Threads that read leases side by side: more of them would mostly wait for Python's lock."""


def by_columns(plan: Plan, source: Source) -> tuple[ColumnarSource, Batch, list[ElementOp]] | None:
    """Divide a plan whose source gives columns that are batched as they are: the source, the batch, what is behind.

    None for a plan in which anything happens to single elements, before they are batched or later.
    """
    ops = [op for op in plan.ops if not isinstance(op, (Prefetch, Repeat))]  # `repeat` gives the splits out again
    if isinstance(plan.head, Join) or not isinstance(source, ColumnarSource):
        return None
    if not ops or not isinstance(batch := ops[0], Batch):
        return None
    behind = [op for op in ops[1:] if isinstance(op, ElementOp)]
    return (source, batch, behind) if len(behind) == len(ops) - 1 else None


def readers(options: EngineOptions) -> int:
    """Return how many threads shall read: one where the order counts."""
    return 1 if options.order == "strict" else min(options.threads, MOST_READERS)


class Table:
    """The batch that is being written: threads claim rows of it, and write them side by side."""

    def __init__(self, batch: Batch, slots: Slots) -> None:
        self._size, self._op, self._slots = batch.size, batch.name, slots
        self._open: OpenBatch | None = None
        self._claiming = threading.Lock()

    def written(self, runs: Iterator[Run]) -> Generator[OpenBatch, None, None]:
        """Write runs, and yield the batches that are complete with them."""
        for run in runs:
            start = 0
            while start < run.rows:
                batch, first, stop = self._claim(run, start)
                if batch.write_run(first, run, start, stop):
                    yield batch
                start = stop

    def _claim(self, run: Run, start: int) -> tuple[OpenBatch, int, int]:
        """Return the open batch, the first of its rows that is free, and the end of what goes there.

        Who waits for memory here owes no row to another batch: the memory comes from those that are finished.
        """
        with self._claiming:
            batch = self._open
            if batch is None or batch.claimed == self._size:
                batch = self._open = OpenBatch(run.item(start), self._size, self._op, self._slots)
            first = batch.claimed
            stop = min(run.rows, start + self._size - first)
            batch.claimed += stop - start
            return batch, first, stop

    def rest(self) -> OpenBatch | None:
        """Return the batch that was not filled, once everything is written."""
        return None if self._open is None or self._open.complete else self._open


def ahead(streams: Sequence[Generator[T, None, None]], most: int = MOST_AHEAD) -> Generator[T, None, None]:
    """Yield what generators yield that run in threads, `most` results ahead; raise the error that ends one."""
    changed = threading.Condition()
    ready: deque[T] = deque()
    failed: list[BaseException] = []
    running, stopped = len(streams), False

    def run(stream: Generator[T, None, None]) -> None:
        nonlocal running
        error: BaseException | None = None
        try:
            for result in stream:
                with changed:
                    ready.append(result)
                    changed.notify_all()
                    changed.wait_for(lambda: len(ready) < most or stopped)
                if stopped:
                    break
        except BaseException as caught:
            error = caught
        with changed:
            running -= 1
            if error is not None:
                failed.append(error)
            changed.notify_all()

    for stream in streams:
        threading.Thread(target=run, args=(stream,), name="pecan-read", daemon=True).start()
    try:
        while True:
            with changed:
                changed.wait_for(lambda: ready or failed or not running)
                if not ready:
                    break
                result = ready.popleft()
                changed.notify_all()
            yield result
        if failed:
            raise failed[0]
    finally:
        with changed:
            stopped = True
            changed.notify_all()
