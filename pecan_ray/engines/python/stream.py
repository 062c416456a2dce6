"""From a plan and a stream of leases to a stream of items: reading, and the operators one after the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pecan_ray.engines.python.block_operators as block_operators
import pecan_ray.engines.python.operators as operators
from pecan_ray.engines.caching import CachedReading, SplitCache
from pecan_ray.engines.collate import with_arrays
from pecan_ray.engines.contract import EngineOptions, Leases, Produced
from pecan_ray.engines.counting import Counts
from pecan_ray.engines.element_errors import apply_error_policy
from pecan_ray.engines.grouping import grouped
from pecan_ray.engines.in_step import InStepLeases
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.lease_replay import LeaseReplay, PassLeases, joined_in_passes, passes_before
from pecan_ray.engines.positions import SkippedPositions, of_first_runs, whole_parts
from pecan_ray.engines.python.block_operators import blocks_of, items_of, takes_blocks, use_blocks
from pecan_ray.engines.python.chain_maker import ChainMaker, MakeCall
from pecan_ray.engines.python.chunk_line import RunEnd
from pecan_ray.engines.python.column_chain import BlockChain, column_chain
from pecan_ray.engines.python.fused import FusedPlan
from pecan_ray.engines.python.item_stages import (
    RunItems,
    applied,
    arrays_in,
    batch_of_blocks,
    changes,
    leading_element_ops,
    unknown_op,
)
from pecan_ray.engines.python.nested import BatchRows, arrays_within, finished
from pecan_ray.engines.python.packing import packed
from pecan_ray.engines.python.repeat_passes import MakeItems, each_pass, repeated
from pecan_ray.engines.python.serializable_items import check_serializable
from pecan_ray.engines.python.threads import Threads
from pecan_ray.engines.reading import Run, read_lease, read_lease_columns
from pecan_ray.engines.row_block import RowBlock
from pecan_ray.engines.side_by_side import Streams, in_turn, next_of, take_concurrent
from pecan_ray.errors import OpError
from pecan_ray.plan.empty_pass import EmptyPasses, empty_pass_guard, operators_before
from pecan_ray.plan.grouping import GroupingOp
from pecan_ray.plan.operators import (
    Autocache,
    Batch,
    BatchingOp,
    Collate,
    ElementOp,
    Gather,
    Join,
    Op,
    Pack,
    PaddedBatch,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    Unbatch,
    is_idle,
)
from pecan_ray.plan.shape import kept_points, last_batching, name_of_last, plan_shape, yields_batches
from pecan_ray.plan.splits import OUTPUT_BITS, ColumnarSource, Lease, Source, as_columnar
from pecan_ray.sampling.random_keys import split_order_of


@dataclass(frozen=True)
class _Stretch:
    """Where operators stand that follow each other."""

    plan: Plan
    branch: int = 0
    """Number of the first of the plan's sources."""
    outermost: bool = True
    """The plan is that of the stream, and not an input of a join."""


def _first_run(ops: Sequence[Op]) -> list[ElementOp | Autocache]:
    """Return the operators on single elements that stand first, and points among them."""
    run: list[ElementOp | Autocache] = []
    for op in ops:
        if not isinstance(op, (ElementOp, Autocache)):
            break
        run.append(op)
    return run


class ItemStream:
    """Builds the item stream of one stretch."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[Source],
        options: EngineOptions,
        leases: Leases,
        skipped_positions: SkippedPositions,
        *,
        pool: Threads | None,
        call: MakeCall,
        counts: Counts | None = None,
        users_call: MakeCall | None = None,
        cache: SplitCache | None = None,
    ) -> None:
        """`users_call`: what makes the functions of the user's order, where the plan runs in another one.

        `cache`: the entries of points at which something is kept; None: these are points like the others.
        """
        self.plan, self._sources, self._options = plan, sources, options
        shape = plan_shape(plan, order=False)
        leases = InStepLeases(leases, sources) if plan.is_in_step else leases
        self._runs = LeaseReplay(leases, split_order_of(shape.shuffled, options.seed)) if shape.serial else None
        """Of a plan that runs as a whole: its leases, for as many runs as `repeat` makes."""
        self._passes = (
            PassLeases(leases, len(shape.shuffled)) if isinstance(plan.head, Join) and joined_in_passes(plan) else None
        )
        """Of a join that the job deals out again and again: its leases pass by pass."""
        self._leases: Leases = self._runs or self._passes or leases
        self.skipped_positions, self._pool = skipped_positions, pool
        self.epoch = 0
        self._points = {} if cache is None else kept_points(plan)
        """By source: where what it gives is kept."""
        self._cached = {} if cache is None else self._cached_reads(cache)
        """By the name of a point: how what is behind it is read."""
        self.chains = ChainMaker(sources, options, skipped_positions, call, users_call or call, counts, self._cached)
        # Of sources that are read in step one split after the other is read, so that their rows come in one order.
        shuffled = (None,) * len(sources) if plan.is_in_step else shape.shuffled
        self._streams = [Streams.of(shuffle, source) for shuffle, source in zip(shuffled, sources, strict=True)]
        """By source: how many splits of it are read at a time."""
        self._take_lock = threading.Lock()
        """Guards the taking of leases where several threads read."""

    def _cached_reads(self, cache: SplitCache) -> dict[str, CachedReading]:
        def read(branch: int, lease: Lease, leases: Leases) -> ItemIterator:
            return self._read(self._sources[branch], lease, leases)

        return {
            point.name: CachedReading(cache, point, self._leases, self.skipped_positions, partial(read, branch))
            for branch, point in self._points.items()
        }

    def items(self, ops: Sequence[Op] | None = None) -> ItemIterator:
        """Yield the items behind the plan's head and `ops` (all of them by default)."""
        items = self._plan_items(self.plan, 0, ops, outermost=True)()
        if ops is None:
            items = self._finished(items if self.ends_with_batching else self.serializable(items))
        if self._runs is None:
            yield from items
            return
        # The job knows the first run over each source alone; positions of later runs are nobody's.
        self.skipped_positions.first_runs_only = True
        for item in items:
            if item is not None:
                item.parts = of_first_runs(item.parts)
            yield item
            # Else this frame would hold a batch's memory while the next one is made.
            del item
        # What `take` or `zip` left unread counts as done: this worker alone runs the whole epoch.
        for branch in range(len(self._sources)):
            self.skipped_positions.add(whole_parts(self._runs.everything(branch)))

    @property
    def ends_with_batching(self) -> bool:
        """Return whether elements are put together and not changed any more: then they are looked at one by one."""
        ops = list(self.plan.ops)
        while ops and not changes(ops[-1:]):
            ops.pop()
        return bool(ops) and isinstance(ops[-1], BatchingOp)

    def before(self, plan: FusedPlan, *, by_columns: bool) -> Iterator[Item | KeptRows | RowBlock | RunEnd | None]:
        """Yield what the threads are given: items, or rows as columns, by which they may work if `by_columns`."""
        point = self._points.get(0)
        if point is None or isinstance(self.plan.head, Join) or plan.before or point not in plan.ops:
            wanted = by_columns and bool(plan.ops) and all(map(takes_blocks, plan.before))
            yield from self._plan_items(self.plan, 0, plan.before, outermost=True, keep_blocks=True, wanted=wanted)()
            return
        behind, cached = plan.ops[plan.ops.index(point) + 1 :], self._cached[point.name]
        changed = any(isinstance(op, ElementOp) for op in behind)
        while (lease := self._take(0)) is not None:
            # Functions behind the point need elements; without any, rows are copied from the entry as they
            # lie.
            yield from cached.items_at_once(lease) if changed else cached.items_or_rows(lease)

    def runs(self, source: ColumnarSource) -> Iterator[Run | None]:
        """Yield the elements of the plan's only source as columns: in several threads if wanted, in each other ones.

        None comes as among items.
        """
        while (lease := self._take_in_turn()) is not None:
            yield from self._read_columns(source, lease)

    def report(self) -> Produced | None:
        """Return the positions that wait for a batch, if they are due."""
        return self.skipped_positions.report(self.epoch) if self.skipped_positions.due else None

    def behind(self, items: ItemIterator, ops: Sequence[Op]) -> ItemIterator:
        """Yield what operators at the plan's end make of items."""
        return self._finished(self.serializable(self._through(lambda: items, ops, _Stretch(self.plan))()))

    def _take_in_turn(self) -> Lease | None:
        with self._take_lock:
            return self._take(0)

    def _take(self, branch: int) -> Lease | None:
        return self._start_lease(self._leases.take(branch))

    def _start_lease(self, lease: Lease | None) -> Lease | None:
        if lease is not None:
            self.epoch = lease.epoch
            self.skipped_positions.begin_pass(lease.pass_index)
        return lease

    def _plan_items(
        self,
        plan: Plan,
        branch: int,
        ops: Sequence[Op] | None = None,
        *,
        outermost: bool = False,
        keep_blocks: bool = False,
        wanted: bool = False,
    ) -> Callable[[], Iterator[Any]]:
        """Return what begins a plan anew, or its first `ops`; `branch`: number of the first of its sources.

        `keep_blocks`: blocks of rows are yielded as such, of a plan that runs on them; `wanted`: it had better.
        """
        ops, at = plan.ops if ops is None else ops, _Stretch(plan, branch, outermost)
        if isinstance(plan.head, Join):
            return self._through(self._joined(plan, branch), ops, at)
        in_blocks = self._in_blocks(ops, branch, wanted=wanted)
        begin = partial(self._read_all, branch, in_blocks=in_blocks)
        return self._through(begin, ops, at, of_blocks=in_blocks, keep=keep_blocks)

    def _in_blocks(self, ops: Sequence[Op], branch: int, *, wanted: bool) -> bool:
        """Tell whether some operators are faster with blocks of rows, which the source can give."""
        chooses = any(isinstance(op, (Shuffle, Skip, Take)) for op in ops)  # most plans have none of them
        gains = branch not in self._points and (wanted or (chooses and use_blocks(ops)))
        return gains and as_columnar(self._sources[branch]) is not None  # asked last: it may look at all of the data

    def _through(
        self, begin: MakeItems, ops: Sequence[Op], at: _Stretch, *, of_blocks: bool = False, keep: bool = False
    ) -> MakeItems:
        """Return what begins anew with some operators behind a beginning.

        `of_blocks`: the beginning yields blocks of rows, which the first operator that takes none gets as items, and
        what is behind the last operator, unless it is to `keep` them.
        """
        todo = [op for op in ops if not (of_blocks and is_idle(op))]
        if of_blocks:
            begin, todo = self._through_blocks(begin, todo, at, keep=keep)
        while todo:
            if run := _first_run(todo):
                todo = todo[len(run) :]
                watch = empty_pass_guard(at.plan, run, at.branch) if self._runs is not None else None
                chain = self.chains.chain(run)
                begin = applied(begin, partial(operators.mapped, run=chain.run, pool=self._pool, watch=watch))
            else:
                begin, todo = self._behind(begin, todo[0], todo[1:], at, operators), todo[1:]
        return begin

    def _through_blocks(
        self, begin: MakeItems, todo: list[Op], at: _Stretch, *, keep: bool
    ) -> tuple[MakeItems, list[Op]]:
        """Return what begins with the first operators, those that take blocks of rows, and the others, which get items.

        `keep`: what is behind the last one of all stays in blocks, if each of them takes blocks.
        """
        while todo:
            if (on_columns := self._on_columns(todo, at)) is not None:
                begin, todo = applied(begin, on_columns), todo[len(list(leading_element_ops(todo))) :]
            elif takes_blocks(todo[0]):
                begin, todo = self._behind(begin, todo[0], todo[1:], at, block_operators), todo[1:]
            elif at.outermost and (batch := batch_of_blocks(todo)) is not None:
                items_of_rows = self._items_for_batch(todo[1:])
                return applied(begin, partial(block_operators.batched, op=batch, items_of=items_of_rows)), todo[1:]
            else:
                return applied(begin, items_of), todo
        return begin if keep else applied(begin, items_of), []

    def _behind(self, begin: MakeItems, op: Op, behind: Sequence[Op], at: _Stretch, kinds: Any) -> MakeItems:
        """Return what begins with one operator on the sequence more.

        `kinds`: the module of operators on items, or on blocks of rows.
        """
        if isinstance(op, Repeat):
            # Decision 105: a pass runs what stands before `repeat` from its sources on, and no items are kept.
            # Where the job deals splits out, it hands them out again instead.
            return begin if self._runs is None else self._repeated(op, begin, at)
        # These count batches: a smaller one before them has to count like the others, or be dropped.
        counted = self._runs is not None and any(isinstance(later, (Take, Skip, Repeat)) for later in behind)
        # Nobody could ever complete what the inputs of an endless repeat leave at the end of each pass.
        inside = not at.outermost and self._passes is not None
        counted = counted or (inside and plan_shape(self.plan, order=False).num_passes is None)
        if at.outermost and isinstance(op, BatchingOp) and not changes(behind):
            # Looked at before they are batched, while each element that cannot be sent can be left out by itself.
            begin = applied(begin, lambda items: self.serializable(arrays_in(items)))
        final = at.outermost and op is last_batching(at.plan)
        return applied(begin, self._stage(op, at.plan, final=final, counted=counted, kinds=kinds))

    def _on_columns(self, todo: Sequence[Op], at: _Stretch) -> RunItems | None:
        """Return what runs the next operators on blocks of rows, if they see columns alone and it is of use."""
        run = list(leading_element_ops(todo))
        behind = todo[len(run) :]
        if not run or not (use_blocks(behind) or (behind and batch_of_blocks(behind) is not None)):
            return None
        chain = self.chains.chain(run)
        columns = column_chain(chain, run, self._options, self.skipped_positions)
        # A debug run calls no function before its result is asked for. Where passes without end may let nothing
        # through, each element is looked at.
        watched = self._runs is not None and empty_pass_guard(at.plan, run, at.branch) is not None
        if columns is None or watched or self._pool is None:
            return None
        return partial(block_operators.mapped, chain=BlockChain(columns, chain), pool=self._pool)

    def _repeated(self, op: Repeat, begin: MakeItems, at: _Stretch) -> MakeItems:
        assert self._runs is not None
        branches = range(at.branch, at.branch + sum(1 for _ in at.plan.sources()))
        empty = EmptyPasses.of(op, operators_before(at.plan, op))
        return partial(repeated, op, begin, empty, reads_nothing=partial(self._runs.none_of, branches))

    def serializable_runs(
        self, runs: Iterator[Run | list[Item] | None], made_by: str
    ) -> Iterator[Run | list[Item] | None]:
        """Make what single elements hold what a batch can hold; leave out, or raise, what cannot be sent."""
        for run in runs:
            yield run if run is None or isinstance(run, Run) else with_arrays(list(self._can_be_sent(run, made_by)))

    def _can_be_sent(self, items: Iterable[Item | None], made_by: str) -> Iterator[Any]:
        for item in items:
            if item is not None:
                try:
                    check_serializable(item, made_by)
                except OpError as error:
                    apply_error_policy(item, error, self._options.on_error, self.skipped_positions)
                    continue
            yield item

    def serializable(self, items: ItemIterator) -> ItemIterator:
        """Leave out, or raise, what cannot be sent to the trainer."""
        return self._can_be_sent(items, name_of_last(self.plan.ops))

    def _finished(self, items: ItemIterator) -> ItemIterator:
        """Put together what batches hold beside arrays, texts and bytes, or refuse it.

        What a function has made of a list of elements stays as it is, but for tensors and images, which become arrays.
        """
        if any(isinstance(op, Collate) for op in self.plan.all_ops()):
            for item in items:
                if item is not None:
                    item.value = arrays_within(item.value)
                yield item
            return
        if not yields_batches(self.plan):
            yield from items
            return
        op = next(op.name for op in reversed(list(self.plan.all_ops())) if changes([op]))
        for item in items:
            if item is not None:
                known = item.members is not None and len(item.members) == item.rows
                item.value = finished(item.value, BatchRows(op, item, item.members if known else None))
            yield item

    def _joined(self, plan: Plan, branch: int) -> MakeItems:
        """Return what begins the inputs of a join anew; where the job deals them out again, pass by pass."""
        inputs: list[MakeItems] = []
        join = plan.head
        assert isinstance(join, Join)
        for one in join.inputs:
            inputs.append(self._plan_items(one, branch))
            branch += sum(1 for _ in one.sources())
        numbers = itertools.count()

        def begin() -> ItemIterator:
            passes = self._passes
            number = next(numbers) if passes is None else passes.number
            yield from operators.joined(join, [make() for make in inputs], self._options.seed, number)
            # Only the outermost join goes on: it begins those inside of it anew with each pass.
            while plan is self.plan and passes is not None and passes.begin_next():
                yield from operators.joined(join, [make() for make in inputs], self._options.seed, passes.number)

        return begin

    def _stage(self, op: Op, plan: Plan, *, final: bool, counted: bool, kinds: Any) -> RunItems:
        """Return what runs an operator on items; each time that it is called it begins anew.

        `kinds`: the module of operators on items, or on blocks of rows.
        """
        if isinstance(op, Take):
            return partial(kinds.taken, count=op.count)
        if isinstance(op, Skip):
            return partial(kinds.skipped, count=op.count, skipped_positions=self.skipped_positions)
        if isinstance(op, Unbatch):
            made_by = name_of_last(plan.ops[: plan.ops.index(op)])
            return lambda items: operators.unbatch_rows(
                items, op, made_by, self._options.on_error, self.skipped_positions
            )
        if isinstance(op, Prefetch):
            # A debug run stays in its thread.
            return (lambda items: items) if self._pool is None else partial(kinds.prefetched, count=op.count)
        if isinstance(op, BatchingOp) and final:
            return lambda items: self._batches(op, items, final=final, counted=counted)
        if isinstance(op, Shuffle):
            # Drained at the end of each pass: rows of the next one must not come before it
            # (docs/decisions/randomness-and-passes.md#105-each-pass-of-a-repeat-runs-anew).
            return self._in_passes(op, plan, lambda items, n: kinds.shuffled(items, op, self._options.seed, n))
        return self._in_passes(op, plan, lambda items, number: self._held_back(op, items, number, counted=counted))

    def _in_passes(self, op: Op, plan: Plan, run: Callable[[ItemIterator, int], ItemIterator]) -> RunItems:
        """Return what runs an operator that keeps items back, anew with each pass, whose number it is given.

        A plan that runs as a whole begins the operator itself; elsewhere items of several passes follow each other.
        """
        if self._runs is not None or plan_shape(self.plan, order=False).num_passes == 1:
            numbers = itertools.count()
            return lambda items: run(items, next(numbers))
        # `repeat` before the operator makes several of the job's passes one pass of the operator.
        length = passes_before(plan, op)
        return lambda items: each_pass(items, lambda item: item.lease.pass_index // length if length else 0, run)

    def _held_back(self, op: Op, items: ItemIterator, number: int, *, counted: bool) -> ItemIterator:
        if isinstance(op, BatchingOp):
            return self._batches(op, items, final=False, counted=counted)
        if isinstance(op, Pack):
            return packed(items, op, self._options.seed, self.skipped_positions, self._pool)
        raise unknown_op(op)

    def _batches(self, op: BatchingOp, items: ItemIterator, *, final: bool, counted: bool) -> ItemIterator:
        made = self._batching(op, items)
        if op.drop_remainder and (counted or not final):
            return operators.without_remainder(made, self.skipped_positions)
        # Else it is decided at the end of the epoch what becomes of a smaller batch.
        return operators.as_full(made) if counted else made

    def _items_for_batch(self, behind: Sequence[Op]) -> Callable[[RowBlock], list[Item]]:
        """Return what makes items of rows that may hold anything: looked at here, unless operators follow."""
        if changes(behind):
            return RowBlock.own_items
        return lambda block: with_arrays(list(self._can_be_sent(block.own_items(), "the source")))

    def _batching(self, op: BatchingOp, items: ItemIterator) -> ItemIterator:
        if isinstance(op, Batch):
            return operators.batched(items, op)
        if isinstance(op, Gather):
            return operators.element_lists(items, op)
        if isinstance(op, PaddedBatch):
            return operators.padded(items, op)
        if isinstance(op, GroupingOp):
            return grouped(items, op, self._options, self.skipped_positions)
        raise unknown_op(op)

    def _read_all(self, branch: int, *, in_blocks: bool = False) -> Iterator[Any]:
        source, point = self._sources[branch], self._points.get(branch)
        cached = None if point is None else self._cached[point.name]
        streams = self._streams[branch]
        take = take_concurrent(self._leases, branch, streams) if self._runs is None else next_of(self._runs.run(branch))

        columnar = as_columnar(source) if in_blocks else None

        def read(lease: Lease) -> Iterator[Any]:
            self.epoch = lease.epoch
            if columnar is not None:
                yield from blocks_of(self._read_columns(columnar, lease), streams)
            else:
                yield from self._read(source, lease, self._leases) if cached is None else cached.items(lease)
            if lease.ends_run:
                yield RunEnd(lease.epoch)

        started = take if self._runs is not None else lambda reading: self._start_lease(take(reading))
        yield from in_turn(started, streams, read, lambda one: 0 if one is None else one.rows)

    def _read_columns(self, source: ColumnarSource, lease: Lease) -> Iterator[Run | None]:
        yield from read_lease_columns(source, lease, self._leases, self.skipped_positions, self._options.on_error)
        if self.skipped_positions.due:
            yield None

    def _read(self, source: Source, lease: Lease, leases: Leases) -> ItemIterator:
        skipped_positions = self.skipped_positions
        for number, value, parts in read_lease(source, lease, leases, skipped_positions, self._options.on_error):
            yield Item(value, parts, lease, number, width=1 << OUTPUT_BITS)
            if skipped_positions.due:
                yield None
        if skipped_positions.due:
            yield None
