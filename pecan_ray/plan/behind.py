"""What is left of a plan, and of its sources, behind its first outputs: told by numbers, without running it.

Of a plan that one worker runs as a whole (`take`, `skip`, `zip`) so many outputs are known to be delivered.  Where each
operator takes a known number of elements for each of its outputs, these outputs stand for a number of elements of each
source, and the rest of the plan on the rest of its sources yields what comes next.  The random numbers are the same:
they are drawn by what names an element, and not by when it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pecan_ray.plan.operators import (
    Autocache,
    FixedSizeBatchingOp,
    Join,
    Map,
    Op,
    Plan,
    Prefetch,
    Skip,
    Take,
)


@dataclass(frozen=True)
class PlanBehind:
    """A plan that begins behind its first outputs."""

    plan: Plan
    """What is left of it: the same operators under the same names, of which `take` and `skip` count less."""
    elements: tuple[int, ...]
    """Elements that went into these outputs, of each source from left to right: it begins behind these."""


def plan_behind(plan: Plan, outputs: int) -> PlanBehind | None:
    """Return what is left of a plan behind its first outputs; None where the plan alone does not tell.

    It does not where an operator yields as many elements as its data wants (`filter`, `flat_map`, buckets, `unbatch`),
    or keeps some back (`shuffle`, `repeat`), or where elements are drawn from several sources (`mix`, `concat`).
    """
    ops: list[Op] = []
    # From the end, where it is known how many outputs there were.
    for op in reversed(plan.ops):
        left = _behind(op, outputs)
        if left is None:
            return None
        op, outputs = left
        ops.insert(0, op)
    head = plan.head
    if not isinstance(head, Join):
        return PlanBehind(replace(plan, ops=tuple(ops)), (outputs,))
    inputs = [plan_behind(one, outputs) for one in head.inputs] if head.kind == "zip" else [None]
    found = [one for one in inputs if one is not None]
    if len(found) < len(inputs):
        return None
    join = replace(head, inputs=tuple(one.plan for one in found))
    return PlanBehind(Plan(head=join, ops=tuple(ops)), tuple(count for one in found for count in one.elements))


def counts_its_elements(plan: Plan) -> bool:
    """Tell whether `plan_behind` knows what is left of a plan."""
    return plan_behind(plan, 1) is not None


def _behind(op: Op, outputs: int) -> tuple[Op, int] | None:
    """Return what is left of an operator behind so many outputs, and how many elements these took; None: not known."""
    if isinstance(op, (Map, Prefetch, Autocache)):
        return op, outputs
    if isinstance(op, FixedSizeBatchingOp):
        return op, op.size * outputs
    if isinstance(op, Take):
        taken = min(op.count, outputs)
        return replace(op, count=op.count - taken), taken
    if isinstance(op, Skip):
        # Without an output it is not known how many of those to skip have come: it begins anew.
        return (replace(op, count=0), op.count + outputs) if outputs else (op, 0)
    return None


def first_missing(delivered: Sequence[int]) -> int:
    """Return the number of the first output that is missing of a sequence that is dealt to ranks in turn.

    `delivered`: so many of its outputs each rank has.
    """
    return min(rank + count * len(delivered) for rank, count in enumerate(delivered))
