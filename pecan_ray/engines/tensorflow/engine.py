"""The tensorflow engine: leases in, batches out, by one tf.data graph per stretch.

Decisions: docs/decisions/tensorflow-engine.md.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import CodeType
from typing import Any

import numpy as np
import tensorflow as tf

import pecan_ray.engines.tensorflow.meta as meta
from pecan_ray.engines.batch_rows import check_rows
from pecan_ray.engines.caching import SplitCache
from pecan_ray.engines.contract import BadElement, EngineOptions, Leases, Produced, Slots, UnderWay
from pecan_ray.engines.counting import OpCount
from pecan_ray.engines.items import ItemIterator
from pecan_ray.engines.lease_replay import LeaseReplay
from pecan_ray.engines.lease_tracker import LeaseTracker, ReturnedLeases
from pecan_ray.engines.own_results import NOTHING
from pecan_ray.engines.positions import Part, SkippedPositions, join, merge, whole_parts
from pecan_ray.engines.reading import reading_of, reading_stages
from pecan_ray.engines.row_types import rows_of_one_kind
from pecan_ray.engines.side_by_side import Streams
from pecan_ray.engines.slots import HeapSlots, into_slot, waiting_for_room
from pecan_ray.engines.stages import Recognized
from pecan_ray.engines.tensorflow.chunks import Signature
from pecan_ray.engines.tensorflow.columns import as_column, stacked
from pecan_ray.engines.tensorflow.elements import NoTensorsError, OneLease, items_of
from pecan_ray.engines.tensorflow.failure_locator import (
    InGraph,
    error_of,
    failed_call,
    failing_element,
    find_bad_elements,
    graph_failure,
    run_alone,
)
from pecan_ray.engines.tensorflow.feed import GraphFeed, KeptPoint
from pecan_ray.engines.tensorflow.graph import Data, Graph
from pecan_ray.engines.tensorflow.graph_assignment import CurrentAssignment, GraphAssignment
from pecan_ray.engines.tensorflow.iterating import Elements, while_waiting
from pecan_ray.engines.tensorflow.native import native_computing, run_native
from pecan_ray.engines.tensorflow.native_batches import reads_batches, run_batches
from pecan_ray.engines.tensorflow.shard_batches import NotInBatchesError, elements_of_first_batch
from pecan_ray.engines.tensorflow.sums import Sums
from pecan_ray.engines.under_way import Recognize, StackWatch, ThreadActivity
from pecan_ray.engines.whole import ending_with_the_last_batch
from pecan_ray.errors import ElementError, OpError, OrderError, PecanError, PlanError
from pecan_ray.plan.operators import BatchingOp, ElementOp, FixedSizeBatchingOp, Join, Op, Plan, wants_rng
from pecan_ray.plan.point_at_end import is_at_end
from pecan_ray.plan.shape import (
    element_ops_from,
    keeps_source_order,
    kept_points,
    last_batching,
    name_of_last,
    plan_shape,
)
from pecan_ray.plan.splits import AtWork, Lease, Source, Split, with_seed
from pecan_ray.sampling.random_keys import split_order_of
from pecan_ray.sources.tf_data import TfDataSource


def without_batching(plan: Plan) -> Plan:
    """Return a plan that yields elements."""
    last = last_batching(plan)
    return replace(plan, ops=tuple(op for op in plan.ops if op is not last))


def _order_error(found: ElementError) -> OrderError:
    return OrderError(
        f"{found.message.splitlines()[0]}, in an order of operators that AutoOrder chose and not in yours: the job "
        "goes back to your order",
        **found.fields,
    )


def _computed(elements: Elements, stretch: GraphAssignment) -> tuple[dict[str, Any], Any] | None:
    """Return the graph's next result; None at the end."""
    # `graph_computing` finds `elements` and `stretch` in this frame by their names.
    return next(elements, None)


def graph_computing() -> dict[CodeType, Recognize]:
    """Return the function by which a stack shows that a graph computes and does not wait for leases."""

    def inspect_locals(local: Mapping[str, Any]) -> ThreadActivity | None:
        feeds: list[GraphFeed] = local["stretch"].feeds
        given = [where for feed in feeds if (where := feed.last_given())]
        if not given or any(feed.is_waiting for feed in feeds):
            return None
        text = f"the graph has yielded nothing for {{seconds}}, since it was given {' and '.join(given)}"
        return ThreadActivity((local["stretch"].epoch, local["elements"].given, *given), text, AtWork("the graph"))

    return {_computed.__code__: inspect_locals}


def _check_no_processes(plan: Plan) -> None:
    for op in plan.all_ops():
        if isinstance(op, ElementOp) and op.processes:
            raise PlanError(f'{op.name}: processes=True needs engine="python"; graphs do not hold the GIL.')


def _drops_nothing(plan: Plan) -> bool:
    """Tell whether an element that goes into the graph comes out, is noted as filtered, or has failed."""
    last = last_batching(plan)
    drops = any(isinstance(op, BatchingOp) and op.drop_remainder and op is not last for op in plan.ops)
    return not isinstance(plan.head, Join) and not drops


def _may_be_joined(plan: Plan, options: EngineOptions) -> bool:
    """Tell whether the trainer may join rows to batches: it does where leases have places (`Lease.place`)."""
    return options.order == "strict" and options.on_error == "raise" and keeps_source_order(plan)


def _last_function_on_batches(plan: Plan, last: Op | None) -> str:
    """Return the name of the last function behind the `last` operator that makes batches; empty if there is none."""
    behind = plan.ops[plan.ops.index(last) + 1 :] if last is not None else ()
    return name_of_last(behind) if any(isinstance(op, ElementOp) for op in behind) else ""


class TensorFlowEngine:
    """Runs a plan as a tf.data graph; one stretch at a time."""

    def __init__(self, plan: Plan, sources: Sequence[Source], options: EngineOptions, slots: Slots) -> None:
        _check_no_processes(plan)
        self._plan, self._options, self._slots = plan, options, slots
        self._sources = tuple(with_seed(source, options.seed) for source in sources)
        self._serial = plan_shape(plan, order=False).serial
        last = last_batching(plan)
        self._batched = last is not None
        self._changes = _last_function_on_batches(plan, last)
        """The last function on batches, if there is one."""
        self._drops_nothing = _drops_nothing(plan)
        self._size = last.size if isinstance(last, FixedSizeBatchingOp) else 0
        counted = [op for op in plan.all_ops() if isinstance(op, ElementOp)]
        self._uses_rng = any(wants_rng(op.fn) for op in counted)
        self._sums = None if options.count_epoch is None else Sums(counted)
        self._in_graph = InGraph()
        self._stretch_numbers = itertools.count()
        self._signature_by_branch: dict[int, Signature | None] = {}
        self._reads_batches = reads_batches(plan, options)
        self._one_by_one = False
        """The graph gives elements: which of them may be in one block only shows when they come."""
        self._current_assignment = GraphAssignment([], SkippedPositions())
        self._kept = kept_points(plan)
        self._cache = SplitCache(options.cache) if options.cache is not None and self._kept else None
        self._before_point = self._engine_before_point()
        """Computes what is kept behind functions; None: what the source gives is kept, or nothing."""
        self._begin_graph()
        self._reading = StackWatch(reading_of(self._sources))
        self._computing = StackWatch({**graph_computing(), **native_computing()})

    def _engine_before_point(self) -> TensorFlowEngine | None:
        """Return an engine for what stands before a point behind functions, whose results this one takes as a source's.

        Other points behind functions have no key: within a graph nothing is kept.
        """
        point = self._kept.get(0)
        if self._cache is None or point is None or not is_at_end(self._plan, point):
            return None
        before = replace(self._plan, ops=self._plan.ops[: self._plan.ops.index(point)])
        return TensorFlowEngine(before, self._sources, replace(self._options, cache=None), HeapSlots())

    def _begin_graph(self) -> None:
        """Begin with graphs that nothing runs of: those of a stretch that was left run on until they are given up."""
        self._running = CurrentAssignment()
        plan = without_batching(self._plan) if self._one_by_one else self._plan
        if self._before_point is not None:
            plan = replace(plan, ops=plan.ops[plan.ops.index(self._kept[0]) :])
        self._graph = Graph(plan, self._options, self._running.note_dropped, self._stretch_numbers, self._sums)

    def batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch."""
        if self._before_point is None:
            yield from self._stretch(leases)
            return
        given = LeaseTracker(leases)
        try:
            for produced in self._stretch(given):
                given.mark_processed(produced.spans)
                yield produced
        except NoTensorsError as error:
            assert self._cache is not None
            self._cache.cannot_keep(self._kept[0], str(error))
            self._kept, self._before_point = {}, None
            self._begin_graph()
            given.close()  # a thread may be asking for the next lease
            yield from self._stretch(ReturnedLeases(given.missing(), leases))

    def _stretch(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch in the way that suits the plan."""
        (head, *others) = self._sources
        if isinstance(head, TfDataSource) and not others and not self._plan.ops:
            yield from run_native(head, leases, self._options, self._slots)
        elif self._reads_batches:
            yield from self._native_batches(leases)
        elif not self._serial and _may_be_joined(self._plan, self._options):
            yield from self._in_blocks(leases)
        else:
            yield from self._assignment(leases)

    def _native_batches(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the batches of one stretch; from what cannot be read in batches on, element by element."""
        given = LeaseTracker(leases)
        (source,) = self._sources
        assert isinstance(source, TfDataSource)
        try:
            for produced in run_batches(source, self._size, given, self._options.threads, self._slots):
                given.mark_processed(produced.spans)
                yield produced
        except (NotInBatchesError, tf.errors.OpError):
            self._reads_batches = False  # nor could it next time
            given.close()  # a thread may be asking for the next lease
            yield from self._assignment(ReturnedLeases(given.missing(), leases))

    def _in_blocks(self, leases: Leases) -> Generator[Produced, None, None]:
        """Yield the rows of one stretch, which the trainer may join to batches: in blocks, up to an element that fails.

        In a graph that makes batches, what stands before such an element is lost with it, and shapes that change along
        the data are an error.  What came of it then goes through one that gives elements.
        """
        given = LeaseTracker(leases)
        while True:
            rest: Produced | None = None
            try:
                for produced in self._assignment(given):
                    if produced.partial:
                        rest = produced  # the last one; an error of the source may follow
                        continue
                    given.mark_processed(produced.spans)
                    yield produced
                if rest is not None:
                    yield rest
                return
            except PecanError as error:
                if not given.is_joined:
                    raise
                if self._one_by_one or not (self._batched and isinstance(error, ElementError)):
                    if rest is not None:
                        # A block may have any number of rows: what stands before the error is delivered as it
                        # is.
                        rest.partial = False
                        yield rest
                    raise
            self._one_by_one = True
            given.close()  # a thread of the graph may ask for a lease
            given = LeaseTracker(ReturnedLeases(given.missing(), leases))

    def _assignment(self, leases: Leases) -> Generator[Produced, None, None]:
        skipped_positions = SkippedPositions()
        shuffled = plan_shape(self._plan, order=False).shuffled
        orders = split_order_of(shuffled, self._options.seed)
        runs = LeaseReplay(leases, orders) if self._serial else None
        skipped_positions.first_runs_only = self._serial
        feeds = [
            GraphFeed(
                branch,
                source,
                leases,
                skipped_positions,
                self._options,
                self._signature_by_branch.get(branch),
                keyed=self._uses_rng and self._before_point is None,  # functions run before the point, if there is one
                runs=runs,
                streams=Streams.of(shuffled[branch], source),
                elements_at_a_time=elements_of_first_batch(self._plan),
                kept=self._kept_of(branch),
            )
            for branch, source in enumerate(self._sources)
        ]
        # The last stretch was left: its graph may still run, and would note positions in this one.
        if self._running.graph_assignment is not None:
            self._begin_graph()
        self._current_assignment = self._running.graph_assignment = GraphAssignment(feeds, skipped_positions, runs)
        # Calls that a stretch that was left has begun would be taken for failures of this one.
        self._graph.calls.take()
        self._graph.failed = None
        produced = self._run(self._current_assignment)
        try:
            yield from ending_with_the_last_batch(produced) if self._serial else produced
        finally:
            for feed in feeds:
                # Graphs end in threads of their own, and are given nothing more meanwhile.
                feed.stopped = True

    def _kept_of(self, branch: int) -> KeptPoint | None:
        """Return where what goes into the graph is kept; None: nowhere."""
        point, before = self._kept.get(branch), self._before_point
        if self._cache is None or point is None:
            return None
        return KeptPoint(self._cache, point, None if before is None else before.elements)

    def elements(self, lease: Lease, leases: Leases, skipped_positions: SkippedPositions) -> ItemIterator:
        """Yield what comes out of the graph of a lease, for a plan that makes no batches."""
        return self.items(OneLease(lease, leases), skipped_positions)

    def items(self, leases: Leases, skipped_positions: SkippedPositions) -> ItemIterator:
        """Yield what comes out of the graph of a stretch, for a plan that makes no batches."""
        produced = self._assignment(leases)
        return items_of(produced, lambda key: self._current_assignment.feeds[key[0]].lease_of(key), skipped_positions)

    def _run(self, stretch: GraphAssignment) -> Generator[Produced, None, None]:
        # A worker never computes on an accelerator: it belongs to the trainer.
        with tf.device("/CPU:0"):
            data = self._dataset(stretch)
        with contextlib.closing(Elements(data)) as elements:
            try:
                results = self._results(elements, stretch)
                for result in self._stacked(results, stretch) if self._one_by_one else results:
                    if result is not None:
                        yield self._produced(result[0], meta.as_rows(result[1]), stretch)
                    elif (report := stretch.skipped_positions.report(stretch.epoch)) is not None:
                        yield report
            except tf.errors.OpError as error:
                # First what the source raised: in the graph it only ended the stream, whose error may follow from it.
                stretch.raise_source_error()
                raise self._locate_failure(error, stretch) from error
        # In a plan that runs as a whole it has its place in the graph, unless that leaves out what fails.
        if not self._serial or self._options.on_error != "raise":
            stretch.raise_source_error()
        if self._graph.failed is not None:
            raise self._graph.failed
        yield from self._reports_at_the_end(stretch)

    def _dataset(self, stretch: GraphAssignment) -> Data | None:
        for branch, feed in enumerate(stretch.feeds):
            # Kept over stretches: a stretch with other dtypes would have all functions traced anew.
            self._signature_by_branch[branch] = feed.open()
        if self._sums is not None:
            self._sums.switch(stretch.epoch == self._options.count_epoch)
        return self._graph.dataset(stretch.feeds, stretch.epoch)

    def _reports_at_the_end(self, stretch: GraphAssignment) -> Iterator[Produced]:
        """Yield what did not come out of the graph, now that it has ended."""
        skipped = stretch.skipped_positions
        for _ in self._account_for_the_rest(stretch):
            if skipped.due and (report := skipped.report(stretch.epoch)) is not None:
                yield report
        self._running.graph_assignment = None
        if (rest := skipped.report(stretch.epoch)) is not None:
            yield rest

    def _results(self, elements: Elements, stretch: GraphAssignment) -> Iterator[tuple[dict[str, Any], Any] | None]:
        """Yield what the graph computes; None where that has to wait for a report, of passes that yield nothing."""
        results = iter(partial(_computed, elements, stretch), None)
        if plan_shape(self._plan, order=False).num_passes is not None:
            yield from results
            return
        # A graph says nothing while it yields nothing, which may be for ever.
        yield from while_waiting(results, lambda: stretch.skipped_positions.due)

    def _stacked(
        self, results: Iterator[tuple[dict[str, Any], Any] | None], stretch: GraphAssignment
    ) -> Iterator[tuple[dict[str, Any], Any] | None]:
        """Stack elements of one kind that follow each other; those before an error come before it."""

        found = (
            None if one is None else ({name: as_column(value) for name, value in one[0].items()}, meta.as_rows(one[1]))
            for one in results
        )
        for rows in rows_of_one_kind(found, self._size, lambda one: one[0]):
            yield (
                None
                if rows is None
                else (stacked([columns for columns, _ in rows]), np.stack([row for _, row in rows]))
            )

    def _locate_failure(self, error: Exception, stretch: GraphAssignment) -> ElementError:
        """Return what failed: in the user's order, or in the order that runs and not in that."""
        found = failing_element(self._plan, stretch.feeds, self._options.seed)
        if found is None:
            again = (
                error_of(call, stretch.feeds[int(call.rows.flat[meta.BRANCH])])[1] for call in self._graph.calls.take()
            )
            return next((one for one in again if one is not None), None) or graph_failure(error, stretch.feeds)
        order = self._options.users_order
        if order is None:
            return found
        return failing_element(order.plan, stretch.feeds, self._options.seed) or _order_error(found)

    def _produced(self, columns: dict[str, Any], row: meta.Rows, stretch: GraphAssignment) -> Produced:
        parts: list[Part] = []
        row_parts: list[Part] = []
        if not self._serial:
            row_parts = meta.row_parts_of(row)
            join(parts, row_parts)
            stretch.note_output(parts)
        rows = len(row) if row.ndim == 2 else 1
        size = self._size or (int(row[0, meta.SIZE]) if row.ndim == 2 else 1)
        partial = self._batched and rows < size and not self._one_by_one
        # What becomes of a partial batch is not known yet: it carries nothing but itself.
        skipped_positions, bad = ([], []) if partial else stretch.skipped_positions.take()
        arrays, slot, layout = into_slot({name: as_column(value) for name, value in columns.items()}, self._slots)
        if self._changes:
            check_rows(self._changes, NOTHING, arrays, rows)  # what it was given is not known here
        spans, nothing = merge(parts + skipped_positions), merge(skipped_positions)
        return Produced(
            arrays,
            spans,
            rows,
            stretch.epoch,
            partial,
            slot=slot,
            bad=bad,
            layout=layout,
            without_data=nothing,
            row_parts=row_parts,
        )

    def _account_for_the_rest(self, stretch: GraphAssignment) -> Iterator[None]:
        """Find out what became of elements that went in and did not come out: bad ones, and dropped remainders.

        Yields after each bad element.
        """
        for call in self._graph.calls.take():
            branch = int(call.rows.flat[meta.BRANCH])
            keep = self._options.on_error == "quarantine"
            one = failed_call(call, stretch.feeds[branch], keep=keep, sure=not self._serial)
            if one is not None:
                if self._options.users_order is not None:
                    self._raise_if_passing([one], self._options.users_order.plan, stretch.feeds[branch], branch)
                parts = [] if self._serial else meta.parts_of(call.rows)
                stretch.note_output(parts)
                stretch.skipped_positions.add(parts, one)
                yield
        for branch, feed in enumerate(stretch.feeds):
            if stretch.runs is not None:
                # In such a plan, what did not come out may only be unread: watched calls tell what has failed.
                stretch.skipped_positions.add(whole_parts(stretch.runs.everything(branch)))
                continue
            order = self._options.users_order
            for part in feed.outstanding.parts():
                found: Iterable[BadElement] = ()
                if self._options.on_error != "raise":
                    found = find_bad_elements(part, self._plan, feed, self._in_graph, sure=self._drops_nothing)
                if order is not None:
                    found = list(found)  # nothing of the interval may count as done that the user's order takes
                    self._raise_if_passing(found, order.plan, feed, branch)
                stretch.skipped_positions.add([part])
                for one in found:
                    stretch.skipped_positions.add([], one)
                    yield

    def _raise_if_passing(self, found: Iterable[BadElement], plan: Plan, feed: GraphFeed, branch: int) -> None:
        """Raise `OrderError` for a bad element that the user's order takes."""
        for one in found:
            if one.origin is None:
                continue
            key = (branch, one.origin.repetition, one.origin.split)
            read = feed.reload(key, one.origin.element)
            error, _ = run_alone(read, feed, element_ops_from(plan, branch), self._options.seed)
            if error is None:
                raise _order_error(OpError(f"{one.op} failed on {one.where}: {one.error}", op=one.op))

    @property
    def threads(self) -> int:
        """How many threads tf.data may use; it decides itself how many calls run at once."""
        return self._options.threads

    @property
    def ends_runs(self) -> bool:
        """A graph ends with what it was given."""
        return False

    def under_way(self, now: float) -> UnderWay | None:
        """Return which source has been at one element, or the graph at one result, for longer than a few seconds."""
        # Reading first: a graph yields nothing because its source does not.
        reading, computing = self._reading.look(now), self._computing.look(now)
        return reading or computing

    def stages(self) -> dict[CodeType, Recognized]:
        """Return the functions by which stacks show that it reads, or waits; what is in a graph no stack shows."""
        return {**reading_stages(self._sources), **waiting_for_room(self._slots)}

    def reads(self, branch: int, split: Split) -> bool:
        """Tell whether a split of a source would be read from there, and not taken from a cache."""
        kept = self._kept_of(branch)
        return kept is None or not kept.cache.holds(kept.point, split)

    def counts(self) -> Mapping[str, OpCount]:
        """Return what went into and came out of operators so far, where that is counted."""
        if self._before_point is not None:
            return self._before_point.counts()
        return {} if self._sums is None else self._sums.snapshot()

    def flush(self) -> None:
        """Wait until what was kept is where other machines find it, for a few seconds at most."""
        if self._cache is not None:
            self._cache.flush()

    def close(self) -> None:
        """Forget the last stretch; graphs end with their iterators."""
        self._current_assignment = GraphAssignment([], SkippedPositions())
        if self._before_point is not None:
            self._before_point.close()
        if self._cache is not None:
            self._cache.close()
