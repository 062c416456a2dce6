"""Stages of a stream of items: what begins anew, what runs on it, and which operators may run together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from pecan_ray.engines.collate import with_arrays
from pecan_ray.engines.items import ItemIterator
from pecan_ray.engines.python.repeat_passes import MakeItems
from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import Batch, BatchingOp, ElementOp, Op, Pack, Prefetch, Unbatch

RunItems: TypeAlias = Callable[[Any], Any]
"""Makes items of items, or blocks of rows, or one of the other."""


def arrays_in(items: ItemIterator) -> ItemIterator:
    """Make arrays of images and tensors that go into batches."""
    for item in items:
        yield item if item is None else with_arrays([item])[0]


def applied(begin: MakeItems, stage: RunItems) -> MakeItems:
    """Return what begins anew with a stage behind a beginning."""
    # Each call begins both anew: a repeated branch must not go on with the buffers of its last pass.
    return lambda: stage(begin())


def changes(ops: Sequence[Op]) -> bool:
    """Tell whether some of the operators may change columns, or batches."""
    return any(isinstance(op, (ElementOp, BatchingOp, Unbatch, Pack)) for op in ops)


def unknown_op(op: Op) -> PlanError:
    return PlanError(f"{op.name}: the python engine does not know the operator {type(op).__name__}.")


def batch_of_blocks(ops: Sequence[Op]) -> Batch | None:
    """Return the first of a plan's last operators if it may batch blocks of rows: nothing counts or cuts them."""
    batch, *behind = ops
    ends = all(isinstance(op, (ElementOp, Prefetch)) for op in behind)
    # By exact type: `BatchInRows` has maps of its own to run on the rows.
    return batch if ends and type(batch) is Batch else None


def leading_element_ops(ops: Sequence[Op]) -> Iterator[ElementOp]:
    """Yield the functions on elements that stand first."""
    for op in ops:
        if not isinstance(op, ElementOp):
            return
        yield op
