"""Which chain runs some operators of a plan: with a point between them, in another order, or on many rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pecan_ray.engines.caching import CachedReading
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.counting import Counts
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import SkippedPositions
from pecan_ray.engines.python.chain import Chain, ChainProtocol, Chains
from pecan_ray.engines.python.fallback import FallbackChain
from pecan_ray.engines.python.kept import KeptChain
from pecan_ray.engines.python.row_maps import RowMaps, RowsChain
from pecan_ray.plan.operators import Autocache, BatchInRows, ElementOp
from pecan_ray.plan.splits import Element, Source, of_lease

MakeCall: TypeAlias = Callable[[ElementOp], Callable[..., Any]]


@dataclass(frozen=True)
class ChainMaker:
    """Makes the chains of one stretch."""

    sources: Sequence[Source]
    options: EngineOptions
    skipped_positions: SkippedPositions
    call: MakeCall
    """Makes the functions of the plan."""
    users_call: MakeCall
    """Makes the functions of the user's order, where the plan runs in another one."""
    counts: Counts | None
    cached: Mapping[str, CachedReading]
    """By the name of a point: how what is behind it is read."""

    def chain(self, ops: Sequence[ElementOp | Autocache]) -> ChainProtocol:
        """Return the chain that runs some operators under this stretch's rules."""
        for place, op in enumerate(ops):
            if isinstance(op, Autocache) and op.name in self.cached:
                return KeptChain(self.chain(ops[:place]), self.cached[op.name], self.chain(ops[place + 1 :]))
        runs = [list(run) for point, run in itertools.groupby(ops, lambda op: isinstance(op, Autocache)) if not point]
        chains = [self._chain_of([op for op in run if isinstance(op, ElementOp)]) for run in runs or [[]]]
        return chains[0] if len(chains) == 1 else Chains(chains)

    def rows_chain(self, maps: Sequence[ElementOp], batch: BatchInRows) -> RowsChain:
        """Return what runs maps on many rows."""
        in_rows = RowMaps(maps, self.options, exactly=batch.exactly)
        return RowsChain(in_rows, self._plain(maps), self._counts_at)

    def _counts_at(self, item: Item) -> Counts | None:
        return self.counts if item.lease.epoch == self.options.count_epoch else None

    def _plain(self, ops: Sequence[ElementOp]) -> Chain:
        return Chain(ops, self.options, self.skipped_positions, self.call, self.counts)

    def _chain_of(self, ops: Sequence[ElementOp]) -> ChainProtocol:
        chain = self._plain(ops)
        order = self.options.users_order
        if order is None or not ops or not order.is_changed(ops):
            return chain

        def in_users_order() -> Chain:
            return Chain(order.ops(ops), self.options, self.skipped_positions, self.users_call, self.counts)

        # Decision 24: functions may have written into an element before it failed. If its source gives it, it is read
        # anew; elsewhere a copy of each element is made beforehand.
        again = self._reload if order.behind_source(ops) else None
        return FallbackChain(ops, chain, in_users_order, order, self.options.on_error, self.skipped_positions, again)

    def _reload(self, item: Item) -> Element:
        """Return an element anew, as its source gives it."""
        source = self.sources[item.lease.branch]
        return next(iter(of_lease(source, item.lease).read(item.lease.split, item.element)))
