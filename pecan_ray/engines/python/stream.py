"""From a plan and a stream of leases to a stream of items: reading, and the operators one after the other."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pecan_ray.engines.caching import CachedReading, SplitCache
from pecan_ray.engines.contract import EngineOptions, Leases, Produced
from pecan_ray.engines.counting import Counts
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.kept_rows import KeptRows
from pecan_ray.engines.positions import UndeliveredPositions
from pecan_ray.engines.python import operators
from pecan_ray.engines.python.chain import Chain, Chainlike, Chains, check_sendable, set_aside
from pecan_ray.engines.python.collate import with_arrays
from pecan_ray.engines.python.fallback import FallbackChain
from pecan_ray.engines.python.fused import FusedPlan
from pecan_ray.engines.python.kept import KeptChain
from pecan_ray.engines.python.nested import BatchRows, finished
from pecan_ray.engines.python.packing import packed
from pecan_ray.engines.python.row_maps import RowMaps, RowsChain
from pecan_ray.engines.python.threads import Threads
from pecan_ray.engines.reading import Run, read_lease, read_lease_columns
from pecan_ray.errors import OpError, PlanError
from pecan_ray.plan.operators import (
    Autocache,
    Batch,
    BatchingOp,
    BatchInRows,
    BucketByLength,
    ElementOp,
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
)
from pecan_ray.plan.shape import kept_points, last_batching, name_of_last, plan_shape, yields_batches
from pecan_ray.plan.splits import OUTPUT_BITS, ColumnarSource, Element, Lease, Source

MakeCall = Callable[[ElementOp], Callable[..., Any]]


class ItemStream:
    """Builds the item stream of one stretch."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[Source],
        options: EngineOptions,
        leases: Leases,
        undelivered: UndeliveredPositions,
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
        self._leases, self.undelivered, self._pool, self._call = leases, undelivered, pool, call
        self._counts, self._users_call = counts, users_call or call
        self.epoch = 0
        self._serial = plan_shape(plan).serial
        self._points = {} if cache is None else kept_points(plan)
        """By source: where what it gives is kept."""
        self._cached = {} if cache is None else self._readings(cache)
        """By the name of a point: how what is behind it is read."""
        self._taken: list[Lease] = []
        self._taking = threading.Lock()
        """Guards the taking of leases where several threads read."""

    def _readings(self, cache: SplitCache) -> dict[str, CachedReading]:
        def read(branch: int, lease: Lease, leases: Leases) -> ItemIterator:
            return self._read(self._sources[branch], lease, leases)

        return {
            point.name: CachedReading(cache, point, self._leases, self.undelivered, functools.partial(read, branch))
            for branch, point in self._points.items()
        }

    def items(self, ops: Sequence[Op] | None = None) -> ItemIterator:
        """Yield the items behind the plan's head and `ops` (all of them by default)."""
        items = self._plan_items(self.plan, itertools.count(), ops, outermost=True)
        if ops is None:
            items = self._finished(items if self.ends_with_batching else self.sendable(items))
        yield from items
        if self._serial:
            # What `take` or `zip` left unread counts as done: this worker alone runs the whole epoch.
            for branch in range(len(self._sources)):
                while self._take(branch) is not None:
                    pass
            self.undelivered.add((lease.key, start, stop) for lease in self._taken for start, stop in lease.spans)

    @property
    def ends_with_batching(self) -> bool:
        """Whether elements are put together and not changed any more: then they are looked at one by one."""
        ops = list(self.plan.ops)
        while ops and not changes(ops[-1:]):
            ops.pop()
        return bool(ops) and isinstance(ops[-1], BatchingOp)

    def before(self, plan: FusedPlan) -> Iterator[Item | KeptRows | None]:
        """Yield what the threads are given: items, or what is kept as columns, where it only goes into batches."""
        point = self._points.get(0)
        if point is None or isinstance(self.plan.head, Join) or plan.before or point not in plan.ops:
            yield from self.items(plan.before)
            return
        behind, cached = plan.ops[plan.ops.index(point) + 1 :], self._cached[point.name]
        changed = any(isinstance(op, ElementOp) for op in behind)
        while (lease := self._take(0)) is not None:
            yield from cached.items_at_once(lease) if changed else cached.items_or_rows(lease)

    def runs(self, source: ColumnarSource) -> Iterator[Run | None]:
        """Yield the elements of the plan's only source as columns: in several threads if wanted, in each other ones.

        None comes as among items.
        """
        while (lease := self._take_in_turn()) is not None:
            yield from read_lease_columns(source, lease, self._leases, self.undelivered, self._options.on_error)
            if self.undelivered.due:
                yield None

    def report(self) -> Produced | None:
        """Return the positions that wait for a batch, if they are due."""
        return self.undelivered.report(self.epoch) if self.undelivered.due else None

    def behind(self, items: ItemIterator, ops: Sequence[Op]) -> ItemIterator:
        """Yield what operators at the plan's end make of items."""
        return self._finished(self.sendable(self._through(items, ops, self.plan, outermost=True)))

    def _take_in_turn(self) -> Lease | None:
        with self._taking:
            return self._take(0)

    def _take(self, branch: int) -> Lease | None:
        lease = self._leases.take(branch)
        if lease is not None:
            self.epoch = lease.epoch
            if self._serial:
                self._taken.append(lease)
        return lease

    def chain(self, ops: Sequence[ElementOp | Autocache], batch: Batch | None = None) -> Chainlike:
        """Return the chain that runs some operators under this stretch's rules; `batch`: what follows them."""
        for place, op in enumerate(ops):
            if isinstance(op, Autocache) and op.name in self._cached:
                behind = self.chain(ops[place + 1 :], batch)
                return KeptChain(self.chain(ops[:place]), self._cached[op.name], behind)
        runs = [list(run) for point, run in itertools.groupby(ops, lambda op: isinstance(op, Autocache)) if not point]
        chains = [self._chain_of([op for op in run if isinstance(op, ElementOp)]) for run in runs or [[]]]
        if runs and (in_rows := self.rows_chain([op for op in runs[-1] if isinstance(op, ElementOp)], batch)):
            chains[-1] = in_rows
        return chains[0] if len(chains) == 1 else Chains(chains)

    def rows_chain(self, ops: Sequence[ElementOp], batch: Batch | None) -> RowsChain | None:
        """Return the chain of a run before a `batch` that has the last ones on many rows; None where they are alone.

        Where the run is in another order than the user's an element that fails needs the whole run.
        """
        order = self._options.users_order
        if not isinstance(batch, BatchInRows) or (order is not None and order.differs(ops)):
            return None
        first = len(ops) - len(batch.maps)
        if first < 0 or tuple(op.name for op in ops[first:]) != batch.maps:
            return None
        before, alone = (self._plain(run) if run else None for run in (ops[:first], ops[first:]))
        maps = RowMaps(ops[first:], self._options, exactly=batch.exactly)
        return None if alone is None else RowsChain(before, maps, alone, self._counts_at)

    def _counts_at(self, item: Item) -> Counts | None:
        return self._counts if item.lease.epoch == self._options.count_epoch else None

    def _plain(self, ops: Sequence[ElementOp]) -> Chain:
        return Chain(ops, self._options, self.undelivered, self._call, self._counts)

    def _chain_of(self, ops: Sequence[ElementOp]) -> Chainlike:
        chain = self._plain(ops)
        order = self._options.users_order
        if order is None or not ops or not order.differs(ops):
            return chain

        def in_users_order() -> Chain:
            return Chain(order.ops(ops), self._options, self.undelivered, self._users_call, self._counts)

        again = self._read_again if order.behind_source(ops) else None
        return FallbackChain(ops, chain, in_users_order, order, self._options.on_error, self.undelivered, again)

    def _read_again(self, item: Item) -> Element:
        """Return an element anew, as its source gives it."""
        source = self._sources[item.lease.branch]
        return next(iter(source.read(item.lease.split, item.element)))

    def _plan_items(
        self, plan: Plan, branches: Iterator[int], ops: Sequence[Op] | None = None, *, outermost: bool = False
    ) -> ItemIterator:
        head = plan.head
        if isinstance(head, Join):
            items = self._joined(head, branches)
        else:
            branch = next(branches)
            items = self._read_all(branch, self._sources[branch])
        return self._through(items, plan.ops if ops is None else ops, plan, outermost=outermost)

    def _through(self, items: ItemIterator, ops: Sequence[Op], plan: Plan, *, outermost: bool) -> ItemIterator:
        todo = list(ops)
        while todo:
            run = [op for op in itertools.takewhile(runs_on_elements, todo) if isinstance(op, (ElementOp, Autocache))]
            if run:
                items = operators.mapped(items, self.chain(run).run, self._pool)
                todo = todo[len(run) :]
                continue
            op = todo.pop(0)
            counted = self._serial and any(isinstance(later, (Take, Skip, Repeat)) for later in todo)
            if outermost and isinstance(op, BatchingOp) and not changes(todo):
                items = self.sendable(arrays_in(items))
            if isinstance(op, Unbatch):
                made_by = name_of_last(plan.ops[: plan.ops.index(op)])
                items = operators.unbatched(items, op, made_by, self._options.on_error, self.undelivered)
                continue
            items = self._operator(op, items, final=outermost and op is last_batching(plan), counted=counted)
        return items

    def sendable_runs(self, runs: Iterator[Run | list[Item] | None], made_by: str) -> Iterator[Run | list[Item] | None]:
        """Make what single elements hold what a batch can hold; leave out, or raise, what cannot be sent."""
        for run in runs:
            yield run if run is None or isinstance(run, Run) else with_arrays(list(self._can_be_sent(run, made_by)))

    def _can_be_sent(self, items: Iterable[Item | None], made_by: str) -> Iterator[Any]:
        for item in items:
            if item is not None:
                try:
                    check_sendable(item, made_by)
                except OpError as error:
                    set_aside(item, error, self._options.on_error, self.undelivered)
                    continue
            yield item

    def sendable(self, items: ItemIterator) -> ItemIterator:
        """Leave out, or raise, what cannot be sent to the trainer."""
        return self._can_be_sent(items, name_of_last(self.plan.ops))

    def _finished(self, items: ItemIterator) -> ItemIterator:
        """Put together what batches hold beside arrays, texts and bytes, or refuse it."""
        if not yields_batches(self.plan):
            yield from items
            return
        op = next(op.name for op in reversed(list(self.plan.all_ops())) if changes([op]))
        for item in items:
            if item is not None:
                known = item.members is not None and len(item.members) == item.rows
                item.value = finished(item.value, BatchRows(op, item, item.members if known else None))
            yield item

    def _joined(self, join: Join, branches: Iterator[int]) -> ItemIterator:
        inputs = [self._plan_items(branch, branches) for branch in join.inputs]
        if join.kind == "zip":
            return operators.zipped(inputs)
        if join.kind == "mix":
            return operators.mixed(inputs, join, self._options.seed)
        return itertools.chain.from_iterable(inputs)

    def _operator(self, op: Op, items: ItemIterator, *, final: bool, counted: bool) -> ItemIterator:
        if isinstance(op, BatchingOp):
            made = self._batching(op, items)
            if op.drop_remainder and (counted or not final):
                return operators.without_remainder(made, self.undelivered)
            # Else it is decided at the end of the epoch what becomes of a smaller batch.
            return operators.as_full(made) if counted else made
        if isinstance(op, Shuffle):
            return operators.shuffled(items, op, self._options.seed)
        if isinstance(op, Pack):
            return packed(items, op, self.undelivered, self._pool)
        if isinstance(op, Take):
            return operators.taken(items, op.count)
        if isinstance(op, Skip):
            return operators.skipped(items, op.count, self.undelivered)
        if isinstance(op, Repeat):
            # Elsewhere the splits are handed out again instead.
            return operators.repeated(items, op.count, self.undelivered) if self._serial else items
        if isinstance(op, Prefetch):
            # A debug run stays in its thread.
            return items if self._pool is None else operators.prefetched(items, op.count)
        raise _unknown(op)

    def _batching(self, op: BatchingOp, items: ItemIterator) -> ItemIterator:
        if isinstance(op, Batch):
            return operators.batched(items, op)
        if isinstance(op, PaddedBatch):
            return operators.padded(items, op)
        if isinstance(op, BucketByLength):
            return operators.bucketed(items, op, self._options.on_error, self.undelivered, self._options.ranks)
        raise _unknown(op)

    def _read_all(self, branch: int, source: Source) -> ItemIterator:
        point = self._points.get(branch)
        cached = None if point is None else self._cached[point.name]
        while (lease := self._take(branch)) is not None:
            yield from self._read(source, lease, self._leases) if cached is None else cached.items(lease)

    def _read(self, source: Source, lease: Lease, leases: Leases) -> ItemIterator:
        undelivered = self.undelivered
        for number, value, parts in read_lease(source, lease, leases, undelivered, self._options.on_error):
            yield Item(value, parts, lease, number, width=1 << OUTPUT_BITS)
            if undelivered.due:
                yield None
        if undelivered.due:
            yield None


def arrays_in(items: ItemIterator) -> ItemIterator:
    """Make arrays of images and tensors that go into batches."""
    for item in items:
        yield item if item is None else with_arrays([item])[0]


def runs_on_elements(op: Op) -> bool:
    """Tell whether an operator takes elements one by one: a function, or a point that lets all through."""
    return isinstance(op, (ElementOp, Autocache))


def changes(ops: Sequence[Op]) -> bool:
    """Tell whether some of the operators may change columns, or batches."""
    return any(isinstance(op, (ElementOp, BatchingOp, Unbatch, Pack)) for op in ops)


def _unknown(op: Op) -> PlanError:
    return PlanError(f"{op.name}: the python engine does not know the operator {type(op).__name__}.")
