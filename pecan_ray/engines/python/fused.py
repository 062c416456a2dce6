"""Plans that end with operators on elements and a batch: the threads that compute write into the batches."""

from __future__ import annotations

from dataclasses import dataclass

from pecan_ray.engines.python.feed import MOST_READY
from pecan_ray.plan.operators import Autocache, Batch, ElementOp, Op, Plan, Prefetch


@dataclass(frozen=True)
class FusedPlan:
    """A plan that ends with element operators and a batch."""

    before: list[Op]
    """What lies before the element operators."""
    ops: list[ElementOp | Autocache]
    batch: Batch
    ready: int
    """Batches to keep ready."""


def fused(plan: Plan) -> FusedPlan | None:
    """Divide a plan; None for one that does not end in this way."""
    ops = list(plan.ops)
    ready = 0
    # Batches that are kept ready are bounded by number; a thread of their own, as `prefetch` has elsewhere,
    # is not needed.
    while ops and isinstance(op := ops[-1], Prefetch):
        ready += op.count
        ops.pop()
    if not ops or not isinstance(batch := ops.pop(), Batch):
        return None
    run: list[ElementOp | Autocache] = []
    while ops and isinstance(op := ops[-1], (ElementOp, Autocache)):
        # From the end on: the operators next to the batch are those whose results threads can write into it.
        run.insert(0, op)
        ops.pop()
    return FusedPlan(ops, run, batch, ready or MOST_READY)
