"""Batches straight from the columns of a source: slices are copied into a batch, and no row becomes an object."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pecan_ray.engines.contract import EngineOptions, Slots
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.python.item_stages import leading_element_ops
from pecan_ray.engines.python.open_batch import OpenBatch
from pecan_ray.engines.reading import Run
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.plan.operators import Batch, BatchInRows, ElementOp, Join, Op, Plan, Prefetch, Repeat, acting_ops
from pecan_ray.plan.splits import ColumnarSource, Source, as_columnar

MOST_AHEAD = 8
"""Finished batches that wait to be taken, unless `prefetch` says how many; a ring with fewer slots bounds them too."""
MOST_READERS = 4
"""Threads that read leases side by side: more of them would mostly wait for Python's lock."""


@dataclass(frozen=True)
class ColumnarPlan:
    """A plan whose source gives columns that are batched as they are."""

    source: ColumnarSource
    maps: tuple[ElementOp, ...]
    """What is done to elements, many at a time."""
    batch: Batch
    behind: tuple[Op, ...]
    """What is done to batches; empty where nothing is."""
    ready: int
    """Batches to keep ready."""


def by_columns(plan: Plan, source: Source) -> ColumnarPlan | None:
    """Divide a plan; None for one in which anything happens to single elements, before they are batched or later."""
    if isinstance(plan.head, Join):
        return None
    ops = acting_ops(plan.ops)
    maps = tuple(leading_element_ops(ops))
    batch, changes = next(iter(ops[len(maps) :]), None), ops[len(maps) + 1 :]
    if not isinstance(batch, Batch) or (maps and not _runs_in_rows(batch, maps)):
        return None
    if not all(isinstance(op, ElementOp) for op in changes):
        return None
    if (columnar := as_columnar(source)) is None:  # asked last: it may look at all of the data
        return None
    at = plan.ops.index(batch)
    behind = tuple(op for op in plan.ops[at + 1 :] if not isinstance(op, Repeat))
    # `prefetch` before `batch` counts elements, and behind it batches.
    ready = -(-prefetched(plan.ops[:at]) // batch.size)
    if not changes:
        ready, behind = ready + prefetched(behind), ()
    return ColumnarPlan(columnar, maps, batch, behind, ready or MOST_AHEAD)


def prefetched(ops: Iterable[Op]) -> int:
    """Return how many items `prefetch` asks to be kept ready, among some operators."""
    return sum(op.count for op in ops if isinstance(op, Prefetch))


def readers(options: EngineOptions) -> int:
    """Return how many threads shall read: one where the order counts."""
    # Two readers would finish their batches in the order of the scheduler.
    return 1 if options.order == "strict" else min(options.threads, MOST_READERS)


class Table:
    """The batch that is being written: threads claim rows of it, and write them side by side."""

    def __init__(self, batch: Batch, slots: Slots) -> None:
        self._size, self._op, self._slots = batch.size, batch.name, slots
        self._open: OpenBatch | None = None
        self._claim_lock = threading.Lock()
        """Guards the open batch and which of its rows are claimed."""

    def items(self, runs: Iterator[RowBlock | list[Item] | None]) -> ItemIterator:
        """Yield batches of runs as items, at the end the one that was not filled."""
        return table_items(self.written(runs), self)

    def written(self, runs: Iterator[Run | RowBlock | list[Item] | None]) -> Generator[OpenBatch | None, None, None]:
        """Write runs, or elements, and yield the batches that are complete with them; None as it comes."""
        for run in runs:
            if run is None:
                yield None
                continue
            start, rows = 0, len(run) if isinstance(run, list) else run.rows
            while start < rows:
                batch, first, stop = self._claim(run, start, rows)
                if isinstance(run, list):
                    complete = batch.write(first, run[start:stop])
                else:
                    complete = batch.write_run(first, run, start, stop)
                if complete:
                    yield batch
                start = stop

    def _claim(self, run: Run | RowBlock | list[Item], start: int, rows: int) -> tuple[OpenBatch, int, int]:
        """Return the open batch, the first of its rows that is free, and the end of what goes there.

        Who waits for memory here owes no row to another batch: the memory comes from those that are finished.
        """
        with self._claim_lock:
            batch = self._open
            if batch is None or batch.claimed == self._size:
                item = run[start] if isinstance(run, list) else run.item(start)
                batch = self._open = OpenBatch(item, self._size, self._op, self._slots)
            first = batch.claimed
            stop = min(rows, start + self._size - first)
            batch.claimed += stop - start
            return batch, first, stop

    def rest(self) -> OpenBatch | None:
        """Return the batch that was not filled, once everything is written."""
        return None if self._open is None or self._open.complete else self._open


def table_items(batches: Iterator[OpenBatch | None], table: Table) -> ItemIterator:
    """Yield the batches of a table as items, and at the end the one that was not filled."""
    for batch in batches:
        yield None if batch is None else batch.item(partial=False)
    if (rest := table.rest()) is not None:
        yield rest.item(partial=True)


def _runs_in_rows(batch: Op, maps: Sequence[Op]) -> bool:
    """Tell whether AutoOrder has found that maps before a batch run on its rows at once."""
    return isinstance(batch, BatchInRows) and batch.maps == tuple(op.name for op in maps)
