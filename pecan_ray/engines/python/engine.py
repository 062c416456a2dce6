"""The python engine: the user's functions on a pool of threads, batches written once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

from pecan_ray.engines.contract import EngineOptions, Leases, Produced, Slots
from pecan_ray.engines.counting import Counts, OpCount
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import UndeliveredPositions, merge
from pecan_ray.engines.python.batch_writer import BatchWriter, OpenBatch
from pecan_ray.engines.python.chain import complete_call
from pecan_ray.engines.python.columns import Table, ahead, by_columns, readers
from pecan_ray.engines.python.feed import Feeder
from pecan_ray.engines.python.processes import Processes
from pecan_ray.engines.python.stream import ItemStream
from pecan_ray.engines.python.threads import engine_threads
from pecan_ray.engines.slots import HeapSlots, into_slot
from pecan_ray.engines.whole import ending_with_the_last_batch
from pecan_ray.plan.operators import Batch, ElementOp, Op, Plan, Prefetch
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import ColumnarSource, Source


class PythonEngine:
    """Runs a plan on this machine; one stretch at a time."""

    def __init__(self, plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> None:
        self._plan, self._sources, self._options = plan, sources, options
        self._threads, self._slots = engine_threads(options, slots)
        self._processes: Processes | None = None
        self._counts = None if options.count_epoch is None else Counts()
        limit_native_threads()

    def batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch."""
        with self._threads.at_work():
            yield from self._batches(leases)

    def _batches(self, leases: Leases) -> Generator[Produced, None, None]:
        undelivered = UndeliveredPositions()
        stream = ItemStream(
            self._plan,
            self._sources,
            self._options,
            leases,
            undelivered,
            pool=self._threads,
            call=self._callable,
            counts=self._counts,
        )
        if plan_shape(self._plan).serial:
            yield from ending_with_the_last_batch(self._one_by_one(stream))
        elif (table := by_columns(self._plan, self._sources[0])) is not None:
            yield from self._of_columns(stream, *table)
        elif (fused := _fused(self._plan)) is not None:
            yield from self._filled(stream, *fused)
        else:
            yield from self._one_by_one(stream)

    def _of_columns(
        self, stream: ItemStream, source: ColumnarSource, batch: Batch, behind: list[ElementOp]
    ) -> Generator[Produced, None, None]:
        """Cut batches out of the source's columns, in threads that are ahead of what takes them."""
        table = Table(batch, HeapSlots() if behind else self._slots)
        streams = [table.written(stream.runs(source)) for _ in range(readers(self._options))]
        with closing(ahead(streams)) as batches:
            if behind:
                items = (one.item(partial) for one, partial in _and_rest(batches, table))
                yield from self._one_by_one(stream, stream.behind(items, behind))
                return
            for one, partial in _and_rest(batches, table):
                yield one.finish(stream.undelivered, partial)
        yield from self._last(None, stream)

    def _one_by_one(self, stream: ItemStream, items: Iterator[Item] | None = None) -> Generator[Produced, None, None]:
        for item in stream.items() if items is None else items:
            parts, bad = stream.undelivered.take()
            columns, slot = into_slot(item.value, self._slots)
            spans = merge(item.parts + parts)
            yield Produced(columns, spans, item.rows, item.lease.epoch, partial=item.partial, slot=slot, bad=bad)
        yield from self._last(None, stream)

    def _filled(
        self, stream: ItemStream, before: list[Op], ops: list[ElementOp], batch: Batch
    ) -> Generator[Produced, None, None]:
        """Run the last element operators on the pool, each thread writing its results into the batch."""
        strict = self._options.order == "strict"
        feeder = Feeder(self._threads, stream.chain(ops))
        writer = BatchWriter(batch.size, batch.name, self._slots, stream.undelivered, strict, feeder.put)
        reader = threading.Thread(
            target=feeder.feed, args=(stream.items(before), writer), name="pecan-read", daemon=True
        )
        reader.start()
        try:
            while (produced := feeder.get()) is not None:
                yield produced
            yield from self._last(writer.rest(), stream)
        finally:
            feeder.stop()

    @staticmethod
    def _last(rest: Produced | None, stream: ItemStream) -> Generator[Produced, None, None]:
        """Yield what did not fill a batch, or the positions that no batch has carried."""
        if rest is None:
            parts, bad = stream.undelivered.take()
            if not parts and not bad:
                return
            rest = Produced({}, merge(parts), 0, stream.epoch, partial=True, bad=bad)
        yield rest

    def _callable(self, op: ElementOp) -> Callable[..., Any]:
        if not op.processes:
            return complete_call(op)
        if self._processes is None:
            functions = {
                other.name: complete_call(other)
                for other in self._plan.all_ops()
                if isinstance(other, ElementOp) and other.processes
            }
            self._processes = Processes(functions, self._options.threads)
        return self._processes.function(op.name)

    @property
    def threads(self) -> int:
        """How many threads work at the moment."""
        return self._threads.count

    def counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators so far, where that is counted."""
        return {} if self._counts is None else self._counts.snapshot()

    def close(self) -> None:
        """Stop threads and processes."""
        self._threads.close()
        if self._processes is not None:
            self._processes.close()


def _fused(plan: Plan) -> tuple[list[Op], list[ElementOp], Batch] | None:
    """Divide a plan that ends with element operators and a batch: what lies before them, they, and the batch."""
    ops = list(plan.ops)
    while ops and isinstance(ops[-1], Prefetch):
        ops.pop()
    if not ops or not isinstance(batch := ops.pop(), Batch):
        return None
    run: list[ElementOp] = []
    while ops and isinstance(op := ops[-1], ElementOp):
        run.insert(0, op)
        ops.pop()
    return ops, run, batch


def _and_rest(batches: Iterator[OpenBatch], table: Table) -> Iterator[tuple[OpenBatch, bool]]:
    """Yield the batches of a table, and at the end the one that was not filled; with whether it is that one."""
    for batch in batches:
        yield batch, False
    if (rest := table.rest()) is not None:
        yield rest, True


def limit_native_threads() -> None:
    """Keep OpenCV from starting threads of its own beside ours, if it is in use."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        cv2.setNumThreads(1)
