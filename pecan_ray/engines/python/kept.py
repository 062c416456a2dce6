"""A chain with a point at which elements are kept: what comes from there is not computed again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pecan_ray.engines.caching import CachedReading
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.chain import ChainProtocol
from pecan_ray.plan.splits import LeaseKey


class KeptChain:
    """Runs the operators before a point, records what they give, and runs those behind it."""

    def __init__(self, before: ChainProtocol, reading: CachedReading, behind: ChainProtocol) -> None:
        self._before, self._reading, self._behind = before, reading, behind

    def run(self, item: Item) -> list[Item]:
        """Return what becomes of an item."""
        return self.run_all([item])

    def run_all(self, items: Sequence[Item]) -> list[Item]:
        """Return what becomes of several items."""
        fresh = [item for item in items if not item.kept]
        if not fresh:
            return self._behind.run_all(items)
        # By element: the chain drops and multiplies items, and one without outputs has to be recorded, too.
        made: dict[tuple[LeaseKey, int], list[Item]] = defaultdict(list)
        for one in self._before.run_all(fresh):
            made[one.lease.key, one.element].append(one)
        for item in fresh:
            self._reading.record(item, made[item.lease.key, item.element])
        behind = [one for item in items for one in ([item] if item.kept else made[item.lease.key, item.element])]
        return self._behind.run_all(behind)

    def prefetch_calls(self, items: Sequence[Item]) -> None:
        """Make the calls of a first operator in another process, for items that are about to be run."""
        self._before.prefetch_calls([item for item in items if not item.kept])

    @property
    def is_out_of_process(self) -> bool:
        """Return whether several calls had better go together, since they go to another process."""
        return self._before.is_out_of_process
