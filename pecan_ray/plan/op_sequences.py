"""Linear stretches: runs of operators on elements, between sources, joins, batching and operators on the sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import (
    BatchingOp,
    ElementOp,
    Join,
    Op,
    Pack,
    Plan,
    Repeat,
    Shuffle,
    Unbatch,
)
from pecan_ray.plan.shape import last_batching

Names = tuple[str, ...]
OpOrders = tuple[Names, ...]
"""The operators of each stretch in which they can be exchanged."""


@dataclass(frozen=True)
class OpSequence:
    """Consecutive operators on single elements; within one the order can be changed."""

    ops: tuple[ElementOp, ...]
    prefix: Plan
    """What yields the elements that enter it."""

    @property
    def names(self) -> Names:
        """Names of its operators, in the order of the plan."""
        return tuple(op.name for op in self.ops)

    @property
    def movable(self) -> int:
        """How many operators the user lets move."""
        return sum(not op.keep_position for op in self.ops)


def op_sequences(plan: Plan) -> list[OpSequence]:
    """Return the stretches of a plan, those of a join's inputs first; operators on batches are in none."""
    found: list[OpSequence] = []
    batched = False
    if isinstance(plan.head, Join):
        for branch in plan.head.inputs:
            found += op_sequences(branch)
            batched = batched or last_batching(branch) is not None
    done: list[Op] = []
    for run in _runs(plan.ops):
        elements = tuple(op for op in run if isinstance(op, ElementOp))
        if elements and not batched:
            # What comes before it is in the user's order: each is looked at by itself.
            found.append(OpSequence(elements, Plan(head=plan.head, ops=tuple(done))))
        for op in run:
            if isinstance(op, BatchingOp):
                batched = True
            elif isinstance(op, Unbatch):
                batched = False
        done += run
    return found


def op_order_of(plan: Plan) -> OpOrders:
    """Return the order of operators in each stretch in which they can be exchanged."""
    return tuple(one.names for one in op_sequences(plan) if len(one.ops) > 1)


def apply_op_order(plan: Plan, orders: Mapping[Names, Names]) -> Plan:
    """Return the plan with the operators of some stretches in another order; `orders` maps old names to new ones.

    Raises `PlanError` for an order that is not one of the same operators.
    """
    head = plan.head
    if isinstance(head, Join):
        head = replace(head, inputs=tuple(apply_op_order(branch, orders) for branch in head.inputs))
    ops: list[Op] = []
    for run in _runs(plan.ops):
        names = tuple(op.name for op in run)
        order = orders.get(names, names)
        if sorted(order) != sorted(names):
            raise PlanError(f"a new order must name each operator of {list(names)} once, but got {list(order)}.")
        by_name = {op.name: op for op in run}
        ops += [by_name[name] for name in order]
    return Plan(head=head, ops=tuple(ops))


@dataclass(frozen=True)
class ElementRun:
    """A longest run of operators on elements, or on batches, and its place in a plan."""

    ops: tuple[ElementOp, ...]
    place: tuple[int, ...]
    """Which input of each join on the way to it, and which run there: the same in every order of the operators."""
    behind_source: bool
    """Whether it is given what a source yields, as it is."""


def element_run(plan: Plan, name: str) -> ElementRun:
    """Return the run that an operator is in."""
    return next(run for run in element_runs(plan) if any(op.name == name for op in run.ops))


def element_runs(plan: Plan, place: tuple[int, ...] = ()) -> Iterator[ElementRun]:
    """Yield the runs of a plan, those of a join's inputs first."""
    untouched = not isinstance(plan.head, Join)
    if isinstance(plan.head, Join):
        for number, branch in enumerate(plan.head.inputs):
            yield from element_runs(branch, (*place, number))
    count = 0
    for run in _runs(plan.ops):
        ops = tuple(op for op in run if isinstance(op, ElementOp))
        if ops:
            yield ElementRun(ops, (*place, count), untouched)
            count += 1
        untouched = untouched and not ops and not any(isinstance(op, (BatchingOp, Unbatch, Pack)) for op in run)


def with_ops(plan: Plan, ops: Mapping[str, Op]) -> Plan:
    """Return the plan with other operators in the place of those of the same name."""
    head = plan.head
    if isinstance(head, Join):
        head = replace(head, inputs=tuple(with_ops(branch, ops) for branch in head.inputs))
    return Plan(head=head, ops=tuple(ops.get(op.name, op) for op in plan.ops))


def without_buffers(plan: Plan) -> Plan:
    """Return the plan for a look at its first elements: shuffling and repeating would read far more than those."""
    head = plan.head
    if isinstance(head, Join):
        head = replace(head, inputs=tuple(without_buffers(branch) for branch in head.inputs))
    return Plan(head=head, ops=tuple(op for op in plan.ops if not isinstance(op, (Shuffle, Repeat))))


def _runs(ops: tuple[Op, ...]) -> Iterator[list[Op]]:
    """Yield maximal runs of element operators, and the others."""
    for _, run in groupby(ops, lambda op: isinstance(op, ElementOp)):
        yield list(run)
