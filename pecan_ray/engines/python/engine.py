"""The python engine: the user's functions on a pool of threads, batches written once.

Decisions: docs/decisions/python-engine.md.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from types import CodeType
from typing import Any

from pecan_ray.engines.caching import SplitCache
from pecan_ray.engines.collate import collate
from pecan_ray.engines.contract import EngineOptions, Leases, Produced, Slots, UnderWay
from pecan_ray.engines.counting import Counts, OpCount
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.padding import collate_padded
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.produced_items import produced_of
from pecan_ray.engines.python.batch_writer import BatchWriter
from pecan_ray.engines.python.call_stacks import call_stages, calls_under
from pecan_ray.engines.python.column_chain import column_chain
from pecan_ray.engines.python.columns import ColumnarPlan, Table, by_columns, readers, table_items
from pecan_ray.engines.python.complete_calls import complete_call
from pecan_ray.engines.python.feed import Feeder
from pecan_ray.engines.python.fused import FusedPlan, fused
from pecan_ray.engines.python.open_batch import OpenBatch
from pecan_ray.engines.python.prefetch_results import prefetch_results
from pecan_ray.engines.python.processes import Processes
from pecan_ray.engines.python.serializable_items import check_serializable
from pecan_ray.engines.python.slow_elements import SlowElementLog
from pecan_ray.engines.python.stream import ItemStream
from pecan_ray.engines.python.threads import engine_threads
from pecan_ray.engines.reading import Run, reading_of, reading_stages
from pecan_ray.engines.slots import HeapSlots, into_slot, waiting_for_room
from pecan_ray.engines.stages import Recognized, ThreadStage
from pecan_ray.engines.under_way import StackWatch
from pecan_ray.engines.users_order import led_to
from pecan_ray.engines.whole import ending_with_the_last_batch
from pecan_ray.errors import BatchShapeError, OrderError
from pecan_ray.plan.operators import BatchInRows, ElementOp, Join, Plan
from pecan_ray.plan.shape import kept_points, name_of_last, plan_shape
from pecan_ray.plan.splits import Source, Split, with_seed
from pecan_ray.plan.stage_seconds import SlowElements

PUT_TOGETHER = tuple(
    function.__code__
    for function in (
        *(BatchWriter.place, BatchWriter.place_rows, OpenBatch.write_run),
        *(collate, collate_padded, into_slot),
    )
)
"""Functions that make batches of elements."""


class PythonEngine:
    """Runs a plan on this machine; one stretch at a time."""

    def __init__(self, plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> None:
        self._plan, self._options = plan, options
        self._sources = tuple(with_seed(source, options.seed) for source in sources)
        self._threads, self._slots = engine_threads(options, slots)
        self._processes: dict[str, Processes] = {}
        """For the functions of the plan, and for those of the plan as the user wrote it."""
        self._kept = kept_points(plan) if options.cache is not None else {}
        self._cache = SplitCache(options.cache) if options.cache and self._kept else None
        self._counts = None if options.count_epoch is None else Counts()
        self._slow = SlowElementLog()
        self._watch = StackWatch({**calls_under(options), **reading_of(self._sources)})
        limit_native_threads()

    def batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch."""
        order = self._options.users_order
        try:
            with self._threads.at_work():
                yield from self._batches(leases)
        except BatchShapeError as error:
            if order is None:
                raise
            # Which of the batch's elements is to blame, and whether it would fit in the user's order, is not known.
            raise OrderError(led_to(error), **error.fields) from error

    def _batches(self, leases: Leases) -> Generator[Produced, None, None]:
        skipped_positions = SkippedPositions()
        stream = ItemStream(
            self._plan,
            self._sources,
            self._options,
            leases,
            skipped_positions,
            pool=self._threads,
            call=self._callable,
            counts=self._counts,
            users_call=self._users_callable,
            cache=self._cache,
        )
        produced = self._with_the_rest(stream)
        # Forks are looked for between batches, so that elements pay nothing for it.
        for one in ending_with_the_last_batch(produced) if plan_shape(self._plan, order=False).serial else produced:
            yield one
            forks.raise_reported()
        forks.raise_reported()

    def _with_the_rest(self, stream: ItemStream) -> Generator[Produced, None, None]:
        """Yield batches in the way that suits the plan, and what is left at the end."""
        if plan_shape(self._plan, order=False).serial:
            yield from self._one_by_one(stream)
        elif (columnar := by_columns(self._plan, self._sources[0])) is not None and self._can_be_in_rows(columnar):
            yield from self._of_columns(stream, columnar)
        elif (ending := fused(self._plan)) is not None:
            yield from self._filled(stream, ending)
        else:
            yield from self._one_by_one(stream)
        if (rest := stream.skipped_positions.report(stream.epoch)) is not None:
            yield rest

    def _can_be_in_rows(self, plan: ColumnarPlan) -> bool:
        """Tell whether what is done to elements before they are batched, if anything, needs no other order."""
        if not plan.maps:
            # Where bad elements are left out in order the trainer joins rows: it is told the positions of each of them,
            # and a run as columns has those of all together.
            return self._options.order != "strict" or self._options.on_error == "raise"
        order = self._options.users_order
        return order is None or not order.is_changed(plan.maps)

    def _of_columns(self, stream: ItemStream, plan: ColumnarPlan) -> Generator[Produced, None, None]:
        """Cut batches out of the source's columns, in threads that are ahead of what takes them."""
        # What functions on batches are given is no slot of the ring: they may keep it, and return something
        # else.
        table = Table(plan.batch, HeapSlots() if plan.behind else self._slots)
        in_rows = stream.chains.rows_chain(plan.maps, plan.batch) if isinstance(plan.batch, BatchInRows) else None
        made_by = name_of_last(plan.maps)

        def runs() -> Iterator[Run | list[Item] | None]:
            # Called once for each reader, because threads cannot share a generator.
            found = stream.runs(plan.source)
            return found if in_rows is None else stream.serializable_runs(in_rows.through(found), made_by)

        writing = [table.written(runs()) for _ in range(readers(self._options))]
        with closing(prefetch_results(writing, plan.ready)) as batches:
            if plan.behind:
                yield from self._one_by_one(stream, stream.behind(table_items(batches, table), plan.behind))
                return
            for one in batches:
                if one is not None:
                    check_serializable(one.item(partial=False), made_by)
                    yield one.finish(stream.skipped_positions)
                elif (report := stream.report()) is not None:
                    yield report
            if (rest := table.rest()) is not None:
                yield rest.finish(None)

    def _one_by_one(self, stream: ItemStream, items: ItemIterator | None = None) -> Generator[Produced, None, None]:
        for item in stream.items() if items is None else items:
            if item is None:
                if (report := stream.report()) is not None:
                    yield report
                continue
            yield produced_of(item, stream.skipped_positions, self._slots)

    def _filled(self, stream: ItemStream, plan: FusedPlan) -> Generator[Produced, None, None]:
        """Run the last element operators on the pool, each thread writing its results into the batch."""
        strict = self._options.order == "strict"
        chain = stream.chains.chain(plan.ops)
        columns = column_chain(chain, plan.ops, self._options, stream.skipped_positions)
        ops = ", ".join(op.name for op in plan.ops)
        slow = partial(self._slow.note, ops=ops) if strict and ops else None  # else nobody waits for them
        feeder = Feeder(self._threads, chain, plan.ready, columns, slow)
        writer = BatchWriter(
            plan.batch,
            self._slots,
            stream.skipped_positions,
            strict,
            feeder.put,
            self._options.on_error,
            name_of_last(self._plan.ops),
        )
        reader = threading.Thread(
            target=feeder.feed,
            args=(stream.before(plan, by_columns=columns is not None), writer, stream.report),
            name="pecan-read",
            daemon=True,
        )
        reader.start()
        try:
            while (produced := feeder.get()) is not None:
                yield produced
            if (rest := writer.rest()) is not None:
                yield rest
        finally:
            # In this order: `stop` frees memory, with which a waiting thread would open a batch that nobody takes.
            writer.leave()
            feeder.stop()

    def _callable(self, op: ElementOp) -> Callable[..., Any]:
        return self._in_process("plan", self._plan, op) if op.processes else complete_call(op)

    def _users_callable(self, op: ElementOp) -> Callable[..., Any]:
        order = self._options.users_order
        assert order is not None
        return self._in_process("user's", order.plan, op) if op.processes else complete_call(op)

    def _in_process(self, whose: str, plan: Plan, op: ElementOp) -> Callable[..., Any]:
        if whose not in self._processes:
            functions = {
                other.name: complete_call(other)
                for other in plan.all_ops()
                if isinstance(other, ElementOp) and other.processes
            }
            self._processes[whose] = Processes(functions, self._options.threads)
        return self._processes[whose].function(op.name)

    @property
    def threads(self) -> int:
        """How many threads work at the moment."""
        return self._threads.count

    @cached_property  # asked for each lease
    def ends_runs(self) -> bool:
        """Return whether threads write elements into batches as the source gives them; a batch may end anywhere."""
        plan = self._plan
        # A join pairs elements: it has no place for the end of one source's run.
        if isinstance(plan.head, Join) or self._kept or plan_shape(plan, order=False).serial:
            return False
        if by_columns(plan, self._sources[0]) is not None:
            return False
        return (ending := fused(plan)) is not None and not ending.before

    def counts(self) -> dict[str, OpCount]:
        """Return what went into and came out of operators so far, where that is counted."""
        return {} if self._counts is None else self._counts.snapshot()

    @property
    def slow(self) -> SlowElements:
        """Elements that took many times as long as the others, where order is kept."""
        return self._slow.found

    def under_way(self, now: float) -> UnderWay | None:
        """Return which operator or source has been at one element for longer than a few seconds."""
        return self._watch.look(now)

    def stages(self) -> dict[CodeType, Recognized]:
        """Return the functions by which the stacks of its threads show what they do."""
        return {
            **call_stages(self._options),
            **reading_stages(self._sources),
            **waiting_for_room(self._slots),
            **dict.fromkeys(PUT_TOGETHER, lambda _: ThreadStage("batching")),
        }

    def reads(self, branch: int, split: Split) -> bool:
        """Tell whether a split of a source would be read from there, and not taken from a cache."""
        point = self._kept.get(branch)
        return self._cache is None or point is None or not self._cache.holds(point, split)

    def flush(self) -> None:
        """Wait until what was kept is where other machines find it, for a few seconds at most."""
        if self._cache is not None:
            self._cache.flush()

    def close(self) -> None:
        """Stop threads and processes."""
        # Threads first: they may be calling a process, or be recording an entry.
        self._threads.close()
        if self._cache is not None:
            self._cache.close()
        for processes in self._processes.values():
            processes.close()


build = PythonEngine


def limit_native_threads() -> None:
    """Keep OpenCV from starting threads of its own beside ours, if it is in use."""
    cv2 = sys.modules.get("cv2")
    if cv2 is not None:
        # The engine's own threads take all CPUs; each of them starting as many again would only be in the
        # way.
        cv2.setNumThreads(1)
