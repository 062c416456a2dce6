"""Where a plan loses sight of the elements that its items were made of.

Data counts as delivered by the positions of elements.  A function on batches may drop, add, merge or sort rows, so the
rows that `unbatch` takes out of its result cannot be named by elements any more.  The same holds for the outputs of a
`flat_map` on items that several elements were made into: nothing divides their positions among the outputs.  A worker
that is lost in the middle of such a group leaves rows whose rest nobody can make again from positions alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pecan_ray.plan.operators import BatchingOp, ElementOp, Filter, FlatMap, Join, Op, Pack, Plan, Unbatch

REMEDY = (
    "if functions between batch and unbatch keep the rows, and make each of its own element, write "
    "unbatch(same_rows=True); let flat_map work on elements, before they are batched or packed."
)
"""What to write so that several workers can share such a plan."""


@dataclass(frozen=True)
class _Items:
    """What is known of the items at one place in a plan."""

    single: bool = True
    """Each item is one element, or a part of one: its positions can be divided."""
    batches: int = 0
    """Batching operators that have no `unbatch` yet."""
    changed: bool = False
    """A function has run on batches, and may have changed their rows."""
    lost_at: str = ""
    """The operator behind which items are not known by their elements."""


def identity_lost_at(plan: Plan) -> str:
    """Return the operator behind which items are not known by their elements; empty if they are known everywhere."""
    return _behind(plan).lost_at


def identity_loss(plan: Plan) -> str:
    """Say why one worker runs such a plan, and what to write so that several do."""
    return f"behind {identity_lost_at(plan)} elements are not known any more: {REMEDY}"


def _behind(plan: Plan) -> _Items:
    items = _joined(plan.head) if isinstance(plan.head, Join) else _Items()
    for op in plan.ops:
        if items.lost_at:
            return items
        items = _through(items, op)
    return items


def _joined(join: Join) -> _Items:
    inputs = [_behind(branch) for branch in join.inputs]
    return _Items(
        all(one.single for one in inputs) and join.kind != "zip",
        max(one.batches for one in inputs),
        any(one.changed for one in inputs),
        next((one.lost_at for one in inputs if one.lost_at), ""),
    )


def _through(items: _Items, op: Op) -> _Items:
    if isinstance(op, BatchingOp):
        return replace(items, batches=items.batches + 1)
    # docs/decisions/exactly-once.md#95-rows-carry-positions-of-elements has why such outputs cannot be
    # divided.
    if isinstance(op, FlatMap) and (items.batches or not items.single):
        return replace(items, lost_at=op.name)
    if isinstance(op, ElementOp) and items.batches:
        # A filter leaves out whole batches, and changes no row of the others.
        return replace(items, changed=items.changed or not isinstance(op, Filter))
    if isinstance(op, Pack):
        return replace(items, single=False, lost_at="" if items.single and not items.batches else op.name)
    if isinstance(op, Unbatch):
        return _after_unbatch(items, op)
    return items


def _after_unbatch(items: _Items, op: Unbatch) -> _Items:
    if not items.batches:
        return items if items.single else replace(items, lost_at=op.name)
    if items.changed and not op.same_rows:
        return replace(items, lost_at=op.name)
    left = items.batches - 1
    return replace(items, batches=left, changed=items.changed and left > 0)
