"""What comes out of a graph that makes no batches, as elements with their positions.

So Python goes on with them as with those of a source: it keeps them, or makes rounds of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.engines.contract import BadElement, Leases, Produced, SharedLeases
from pecan_ray.engines.items import Item, ItemIterator
from pecan_ray.engines.positions import SkippedPositions, parts_of_spans
from pecan_ray.errors import PecanError
from pecan_ray.plan.splits import OUTPUT_BITS, Lease, LeaseKey

OUTPUTS = (1 << OUTPUT_BITS) - 1
"""The bits of a position that tell the output of an element."""


class NoTensorsError(Exception):
    """What a graph gives cannot go into another one."""


@dataclass
class OneLease:
    """A lease that is gone through alone, of those of a stretch."""

    lease: Lease | None
    leases: Leases
    """These are told what becomes of it."""

    def take(self, branch: int = 0) -> Lease | None:
        """Return the lease, once."""
        lease, self.lease = self.lease, None
        return lease

    def ended(self, lease: Lease, elements: int) -> None:
        """Tell how many elements the split holds."""
        self.leases.ended(lease, elements)

    def elsewhere(self, lease: Lease, bad: BadElement) -> bool:
        """Leave the lease to other workers, if there are any."""
        return isinstance(self.leases, SharedLeases) and self.leases.elsewhere(lease, bad)


def items_of(
    produced: Iterator[Produced], lease_of: Callable[[LeaseKey], Lease], skipped_positions: SkippedPositions
) -> ItemIterator:
    """Yield the elements that a graph has produced; what yields nothing is added to `skipped_positions`.

    Args:
        produced: What came out of the graph, an element at a time.
        lease_of: Returns the lease of a split in one of its passes.
        skipped_positions: Takes the positions of filtered and bad elements.
    """
    for one in produced:
        if parts := parts_of_spans(one.without_data if one.rows else one.spans):
            skipped_positions.add(parts)
        for bad in one.bad:
            skipped_positions.add([], bad)
        if one.rows:
            ((key, start, stop),) = one.row_parts
            yield Item(
                one.columns,
                [(key, start, stop)],
                lease_of(key),
                start >> OUTPUT_BITS,
                start & OUTPUTS,
                width=stop - start,
            )
        if skipped_positions.due:
            yield None


def of_tensors(items: ItemIterator) -> ItemIterator:
    """Yield elements whose columns are all tensors; raises `NoTensorsError` for ragged and sparse ones."""
    is_first = True
    for item in items:
        if item is not None and is_first:
            _check_tensors(item.value)
            is_first = False  # a graph's specification holds for all elements
        yield item


def _check_tensors(columns: Mapping[str, Any]) -> None:
    for name, value in columns.items():
        if isinstance(value, bytes):
            continue
        texts = isinstance(value, np.ndarray) and all(isinstance(one, bytes) for one in value.flat)
        if not isinstance(value, (np.ndarray, np.generic)) or (value.dtype.hasobject and not texts):
            raise NoTensorsError(f"column {name!r} is a ragged or sparse tensor")


def computed_at_once(items: ItemIterator) -> ItemIterator:
    """Yield items once all have been computed, and the error that stopped that behind them.

    An engine runs one graph at a time, and a shuffle takes elements of several splits in turn.
    """
    found: list[Item | None] = []
    failed: PecanError | None = None
    try:
        found.extend(items)
    except PecanError as error:
        failed = error
    yield from found
    if failed is not None:
        raise failed
