"""From a plan and a stream of leases to a stream of items: reading, and the stages one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

from pecan_ray.engines.contract import BadElement, EngineOptions, Leases
from pecan_ray.engines.python import stages
from pecan_ray.engines.python.chain import Chain
from pecan_ray.engines.python.items import Item, Loose
from pecan_ray.errors import PlanError, SourceError
from pecan_ray.plan.operators import (
    Batch,
    BucketByLength,
    ElementOp,
    Join,
    Op,
    PaddedBatch,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
    Skip,
    Take,
    Unbatch,
)
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Source

Items = Iterator[Item]
MakeCall = Callable[[ElementOp], Callable[..., Any]]


class Assembly:
    """Builds the item stream of one stretch."""

    def __init__(
        self,
        plan: Plan,
        sources: Sequence[Source],
        options: EngineOptions,
        leases: Leases,
        loose: Loose,
        *,
        pool: Executor | None,
        call: MakeCall,
    ) -> None:
        self.plan, self._sources, self._options = plan, sources, options
        self._leases, self.loose, self._pool, self._call = leases, loose, pool, call
        self.epoch = 0
        self._serial = plan_shape(plan).serial
        self._taken: list[Lease] = []

    def items(self, ops: Sequence[Op] | None = None) -> Items:
        """Yield the items behind the plan's head and `ops` (all of them by default)."""
        yield from self._plan_items(self.plan, itertools.count(), ops)
        if self._serial:
            # What `take` or `zip` left unread counts as done: this worker alone runs the whole epoch.
            for branch in range(len(self._sources)):
                while self._take(branch) is not None:
                    pass
            self.loose.add((lease.key, start, stop) for lease in self._taken for start, stop in lease.spans)

    def _take(self, branch: int) -> Lease | None:
        lease = self._leases.take(branch)
        if lease is not None:
            self.epoch = lease.epoch
            if self._serial:
                self._taken.append(lease)
        return lease

    def chain(self, ops: Sequence[ElementOp]) -> Chain:
        """Return the chain that runs some operators under this stretch's rules."""
        return Chain(ops, self._options, self.loose, self._call)

    def _plan_items(self, plan: Plan, branches: Iterator[int], ops: Sequence[Op] | None = None) -> Items:
        head = plan.head
        if isinstance(head, Join):
            items = self._joined(head, branches)
        else:
            branch = next(branches)
            items = self._read_all(branch, self._sources[branch])
        todo = list(plan.ops if ops is None else ops)
        while todo:
            run = list(itertools.takewhile(lambda op: isinstance(op, ElementOp), todo))
            if run:
                chain = self.chain([op for op in run if isinstance(op, ElementOp)])
                items = stages.mapped(items, chain.run, self._pool, 2 * self._options.threads + 2)
                todo = todo[len(run) :]
                continue
            op = todo.pop(0)
            items = self._stage(op, items, last=not any(isinstance(o, (Batch, PaddedBatch, Unbatch)) for o in todo))
        return items

    def _joined(self, join: Join, branches: Iterator[int]) -> Items:
        inputs = [self._plan_items(branch, branches) for branch in join.inputs]
        if join.kind == "zip":
            return stages.zipped(inputs)
        if join.kind == "mix":
            return stages.mixed(inputs, join.weights, self._options.seed, self.epoch, join.stop == "first")
        return itertools.chain.from_iterable(inputs)

    def _stage(self, op: Op, items: Items, last: bool) -> Items:
        if isinstance(op, (Batch, PaddedBatch, BucketByLength)):
            made = self._batching(op, items)
            return stages.without_remainder(made, self.loose) if op.drop_remainder and not last else made
        if isinstance(op, Unbatch):
            return stages.unbatched(items)
        if isinstance(op, Shuffle):
            seed = self._options.seed if op.seed is None else op.seed
            return stages.shuffled(items, op.buffer, seed, self.epoch, op.name)
        if isinstance(op, Take):
            return itertools.islice(items, op.count)
        if isinstance(op, Skip):
            return stages.skipped(items, op.count, self.loose)
        if isinstance(op, Repeat):
            if not self._serial:
                return items  # the splits are handed out again instead
            kept = list(items)
            return stages.repeated(lambda: (_copy(item) for item in kept), op.count)
        if isinstance(op, Prefetch):
            return items
        raise PlanError(f"{op.name}: the python engine does not know the operator {type(op).__name__}.")

    @staticmethod
    def _batching(op: Batch | PaddedBatch | BucketByLength, items: Items) -> Items:
        if isinstance(op, Batch):
            return stages.batched(items, op)
        return stages.padded(items, op) if isinstance(op, PaddedBatch) else stages.bucketed(items, op)

    def _read_all(self, branch: int, source: Source) -> Items:
        while (lease := self._take(branch)) is not None:
            yield from self._read(source, lease)

    def _read(self, source: Source, lease: Lease) -> Items:
        """Yield the elements of a lease that lie in its spans, and report the split's length at its end."""
        spans = lease.spans
        number = spans[0][0] >> OUTPUT_BITS
        last = spans[-1][1]
        try:
            for value in source.read(lease.split, number):
                begin, end = number << OUTPUT_BITS, (number + 1) << OUTPUT_BITS
                if begin >= last:
                    return
                parts = [(lease.key, max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin]
                if parts:
                    yield Item(value, parts, lease, number)
                number += 1
        except SourceError as error:
            if self._options.on_error == "raise":
                raise
            rest = [(lease.key, max(a, number << OUTPUT_BITS), b) for a, b in spans if b > number << OUTPUT_BITS]
            where = lease.split.where(number)
            self.loose.add(rest, BadElement(f"read {type(source).__name__}", where, str(error)))
            return
        if last == END:
            self._leases.ended(lease, number)


def _copy(item: Item) -> Item:
    return Item(item.value, list(item.parts), item.lease, item.element, item.rows, item.row_parts, item.partial)
