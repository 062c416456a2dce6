"""An element or a batch as it is handed to a trainer, with what was left out before it."""

from __future__ import annotations

from pecan_ray.engines.contract import Produced, Slots
from pecan_ray.engines.items import Item
from pecan_ray.engines.nested_columns import extract_arrays
from pecan_ray.engines.positions import SkippedPositions, merge
from pecan_ray.engines.slots import HeapSlots, into_slot
from pecan_ray.job.pending_leases import RowParts


def produced_of(item: Item, skipped_positions: SkippedPositions, slots: Slots) -> Produced:
    """Return an item in a slot; unless it is partial, it carries the positions that wait for a batch."""
    # Decision 4: a partial batch may go back to the job, and what waits for a batch must not go with it.
    parts, bad = ([], []) if item.partial else skipped_positions.take()
    # Groups of elements leave many partial batches at a time, perhaps too many for the slots.
    columns, slot, layout = into_slot(extract_arrays(item.value), HeapSlots() if item.partial else slots)
    return Produced(
        columns,
        merge(item.parts + parts),
        item.rows - item.repeats,
        item.lease.epoch,
        partial=item.partial,
        rank=item.rank,
        slot=slot,
        layout=layout,
        bad=bad,
        without_data=merge(parts),
        row_parts=row_parts(item),
    )


def row_parts(item: Item) -> RowParts:
    """Return the last positions of each row of a block, or of an element that is one; of others nothing."""
    if item.lease.place is None:
        return ()
    # The last positions alone: where a row ends is what the trainer has to know to cut batches
    # (docs/decisions/order-and-rows.md#159-flat_map-in-order).
    return [one.parts[-1] for one in item.members or [item]]
