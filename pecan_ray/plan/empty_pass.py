"""What to say where `repeat` goes over data of which nothing comes, and so would never end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
"""This many passes in a row may yield nothing once there was an element, or where functions draw at random: a
random filter keeps some now and then, and one that drops what it has seen does not.  If one keeps an element in five
passes on average, 100 of them yield nothing once in 500 million times."""


@dataclass(frozen=True)
class EmptyPasses:
    """How many passes of an endless repeat may yield nothing, and what is said then."""

    at_first: int
    """Empty passes that may be before there was an element: one, or more where functions draw."""
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
        # Where nothing draws, another pass over the same data yields nothing again.
        return cls(MOST_EMPTY_PASSES if draws else 1, op, f"{repeat.name} has no end, and {{passes}}, so it {text}")

    def error(self, passes: int) -> PlanError:
        """Return the error for so many passes, one after the other, that have yielded nothing."""
        found = "a whole pass over the data has" if passes == 1 else f"{passes} passes one after the other have"
        return PlanError(self.text.replace("{passes}", f"{found} yielded no element", 1), op=self.op)


@dataclass(frozen=True)
class EmptyPassTracker:
    """Which passes of an endless repeat may have yielded nothing so far."""

    empty: EmptyPasses
    first: int = 0
    """The first one of them."""
    allowed: int = 0
    """Passes that may be empty one after the other."""

    @classmethod
    def begin(cls, empty: EmptyPasses) -> EmptyPassTracker:
        """Return what holds at the beginning of an epoch."""
        return cls(empty, allowed=empty.at_first)

    def behind(self, newest: int) -> EmptyPassTracker:
        """Return what holds once something was yielded: nothing is known of passes up to the newest one."""
        return replace(self.with_tolerance(), first=newest + 1)

    def with_tolerance(self) -> EmptyPassTracker:
        """Return what holds where something may be missing for another reason."""
        return replace(self, allowed=MOST_EMPTY_PASSES)

    def too_many(self, over: int) -> PlanError | None:
        """Return the error that ends the repeat, if too many passes before `over` have yielded nothing."""
        in_vain = over - self.first
        return self.empty.error(in_vain) if in_vain >= self.allowed else None


@dataclass
class EmptyPassGuard:
    """Operators on elements behind a repeat without end, in a plan that runs as a whole: raises where nothing passes.

    What is told comes in order: so all passes before the one that is told of are over.
    """

    repeat_ops: Mapping[int, Op]
    """By source: the repeat without end that it passes."""
    ops: Sequence[Op]
    """All operators that its elements pass, these included."""
    _empty_pass_state: dict[int, EmptyPassTracker] = field(default_factory=dict)
    _latest: dict[int, int] = field(default_factory=dict)

    def look(self, branch: int, number: int, outputs: int) -> None:
        """Note what has come out for an element of a source's pass."""
        self._latest[branch] = number
        if outputs:
            # Of all sources: what came out may have been made of an element of each.
            self._empty_pass_state = {one: self._of(one).behind(newest) for one, newest in self._latest.items()}
            return
        errors = [self._of(one).too_many(self._latest.get(one, 0)) for one in self.repeat_ops]
        # As long as one repeat may still yield something the others are no error.
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]

    def _of(self, branch: int) -> EmptyPassTracker:
        if branch not in self._empty_pass_state:
            repeat = self.repeat_ops.get(branch) or next(iter(self.repeat_ops.values()))
            self._empty_pass_state[branch] = EmptyPassTracker.begin(EmptyPasses.of(repeat, self.ops))
        return self._empty_pass_state[branch]


def empty_pass_guard(plan: Plan, run: Sequence[Op], branch: int) -> EmptyPassGuard | None:
    """Return what watches consecutive operators of a plan; None where they may run for ever by nothing but themselves.

    `branch`: number of the first of the plan's sources.
    """
    if not any(isinstance(op, (Filter, FlatMap)) for op in run):
        return None
    at = plan.ops.index(run[0])
    repeats = _endless(plan, plan.ops[:at], branch)
    return EmptyPassGuard(repeats, (*operators_before(plan, run[0]), *run)) if repeats else None


def _endless(plan: Plan, ops: Iterable[Op], branch: int) -> dict[int, Op]:
    """Return, by source, the repeat by which what comes out of some operators of a plan has no end; none if it ends."""
    count = sum(1 for _ in plan.sources())
    found = _endless_inputs(plan.head, branch) if isinstance(plan.head, Join) else {}
    for op in ops:
        if isinstance(op, Take):
            found = {}
        elif isinstance(op, Repeat) and op.count is None:
            found = dict.fromkeys(range(branch, branch + count), op)
    return found


def endless_behind(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return operators with each repeat without end behind those on elements that follow it, where one may drop all.

    It is the same, element by element; and a pass of which nothing comes is seen at its end.
    """
    ordered = list(ops)
    for at, op in enumerate(ops):
        run = list(itertools.takewhile(lambda one: isinstance(one, ElementOp), ops[at + 1 :]))
        if isinstance(op, Repeat) and op.count is None and any(isinstance(one, (Filter, FlatMap)) for one in run):
            ordered[at : at + 1 + len(run)] = [*run, op]
    return tuple(ordered)


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


def _endless_inputs(join: Join, branch: int) -> dict[int, Op]:
    """Return, by source, the repeat by which what comes out of a join has no end; none if it ends."""
    inputs = []
    for one in join.inputs:
        inputs.append(_endless(one, one.ops, branch))
        branch += sum(1 for _ in one.sources())
    if join.kind == "concat" or (join.kind == "zip" and all(inputs)):
        return dict(next(filter(None, inputs), {}))  # what is told of is of the first one
    if join.kind == "mix" and (join.stop != "first" or all(inputs)):
        return {source: op for one in inputs for source, op in one.items()}
    return {}
