"""What to say where `repeat` goes over data of which nothing comes, and so would never end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import (
    BatchingOp,
    ElementOp,
    Filter,
    FlatMap,
    Join,
    Op,
    Plan,
    Repeat,
    Skip,
    Take,
    Unbatch,
    method_name,
    wants_rng,
)

MOST_EMPTY_PASSES = 100
"""So many passes one after the other may yield nothing once there was an element, or where functions draw at random: a
random filter keeps some now and then, and one that drops what it has seen does not.  If one keeps an element in five
passes on average, 100 of them yield nothing once in 500 million times."""


@dataclass(frozen=True)
class EmptyPasses:
    """How many passes of an endless repeat may yield nothing, and what is said then."""

    at_first: int
    """So many before there was an element: one, or more where functions draw."""
    op: str
    """The operator that lets nothing through, where it must be this one; else the repeat."""
    text: str

    @classmethod
    def of(cls, repeat: Op, ops: Iterable[Op]) -> EmptyPasses:
        """Return what holds for a repeat; `ops`: which its elements pass."""
        passed = list(ops)
        draws = any(isinstance(op, ElementOp) and (op.random or wants_rng(op.fn)) for op in passed)
        keeping = [op for op in passed if _may_leave_out(op)]
        names = ", ".join(f"{op.name}{_kind(op)}" for op in keeping)
        if len(keeping) == 1:
            why = f"{names} lets no element through. Change it"
        elif keeping:
            why = f"one of these lets no element through: {names}. Change it"
        else:
            why = "its source holds no element, or none that can be processed. Look at the source"
        text = f"would go on without yielding any: {why}, or give {repeat.name} a number of passes."
        op = keeping[0].name if len(keeping) == 1 else repeat.name
        return cls(MOST_EMPTY_PASSES if draws else 1, op, f"{repeat.name} has no end, and {{passes}}, so it {text}")

    def error(self, passes: int) -> PlanError:
        """Return the error for so many passes, one after the other, that have yielded nothing."""
        found = "a whole pass over the data has" if passes == 1 else f"{passes} passes one after the other have"
        return PlanError(self.text.replace("{passes}", f"{found} yielded no element", 1), op=self.op)


@dataclass(frozen=True)
class PassesInVain:
    """Which passes of an endless repeat may have yielded nothing so far."""

    empty: EmptyPasses
    first: int = 0
    """The first one of them;"""
    allowed: int = 0
    """so many may be."""

    @classmethod
    def begin(cls, empty: EmptyPasses) -> PassesInVain:
        """Return what holds at the beginning of an epoch."""
        return cls(empty, allowed=empty.at_first)

    def behind(self, newest: int) -> PassesInVain:
        """Return what holds once something was yielded: nothing is known of passes up to the newest one."""
        return replace(self.doubted(), first=newest + 1)

    def doubted(self) -> PassesInVain:
        """Return what holds where something may be missing for another reason."""
        return replace(self, allowed=MOST_EMPTY_PASSES)

    def too_many(self, over: int) -> PlanError | None:
        """Return the error that ends the repeat, if too many passes before `over` have yielded nothing."""
        in_vain = over - self.first
        return self.empty.error(in_vain) if in_vain >= self.allowed else None


def _kind(op: Op) -> str:
    kind = method_name(op)
    return "" if op.name == kind else f" ({kind})"


def _may_leave_out(op: Op) -> bool:
    """Tell whether nothing may come out of an operator that is given something."""
    if isinstance(op, Take):
        return op.count == 0
    return isinstance(op, (Filter, FlatMap, Skip, Unbatch)) or (isinstance(op, BatchingOp) and op.drop_remainder)


def operators_before(plan: Plan, op: Op) -> tuple[Op, ...]:
    """Return the operators on the way to one of a plan's, those of its inputs first."""
    inputs = plan.head.inputs if isinstance(plan.head, Join) else ()
    return (*(one for branch in inputs for one in branch.all_ops()), *plan.ops[: plan.ops.index(op)])


def endless_passes(plan: Plan) -> EmptyPasses | None:
    """Return what holds for a plan that the job deals out without end; None where it has no such repeat."""
    repeat = next((op for op in plan.ops if isinstance(op, Repeat) and op.count is None), None)
    return None if repeat is None else EmptyPasses.of(repeat, plan.all_ops())
