"""Whether elements are kept where all functions on them have been run."""

from __future__ import annotations

from pecan_ray.plan.operators import (
    Autocache,
    Batch,
    Filter,
    FlatMap,
    Join,
    Map,
    Op,
    PaddedBatch,
    Plan,
    Prefetch,
    Repeat,
    Shuffle,
)

FUNCTIONS = (Map, Filter, FlatMap)


def is_at_end(plan: Plan, point: Op) -> bool:
    """Tell whether a point stands behind functions on elements of one source, and in front of batches alone."""
    # What a graph of TensorFlow can be cut at: docs/decisions/autocache.md#232-a-point-behind-a-graph.
    if isinstance(plan.head, Join) or point not in plan.ops:
        return False
    place = plan.ops.index(point)
    before, behind = plan.ops[:place], plan.ops[place + 1 :]
    return (
        any(isinstance(op, FUNCTIONS) for op in before)
        and all(isinstance(op, (*FUNCTIONS, Autocache, Prefetch)) for op in before)
        and all(isinstance(op, (Autocache, Batch, PaddedBatch, Prefetch, Repeat, Shuffle)) for op in behind)
    )
