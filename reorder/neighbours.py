"""Orders that bring together what a rewrite rule can merge, though an op of no cost stands between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.errors import PlanError
from pecan_ray.reorder.order_plan import EQUAL_RESULTS, Move, OrderPlan
from pecan_ray.reorder.policy import ask, possible


def brought_together(plan: OrderPlan, names: Sequence[str]) -> OrderPlan | None:
    """Return the plan with these ops directly behind the first of them, or None where a rule forbids it.

    The cost model knows nothing of what merging neighbours gains: whoever knows a rule measures this order.  In the
    modes of `EQUAL_RESULTS` nothing is brought together, since the exchanges for it may change values.  Raises
    `PlanError` for an op that the plan does not have.
    """
    unknown = sorted(set(names) - set(plan.order))
    if unknown:
        raise PlanError(f"brought_together names the op {unknown[0]!r}, but there are only {list(plan.order)}.")
    if plan.mode in (*EQUAL_RESULTS, "off") or len(names) < 2:
        return None
    first, *rest = names
    others = [name for name in plan.order if name not in rest]
    place = others.index(first) + 1
    order = (*others[:place], *rest, *others[place:])
    question = ask(plan.ops, plan.mode, None, plan.forbidden, plan.movable, plan.neutral_band, plan.measured_in or None)
    if order == plan.order or not possible(question, order):
        return None
    moves = [move for move in plan.moves if move.name not in rest]
    for name in rest:
        before, after = question.index[name], order.index(name)
        if after < before:
            moves.append(Move(name, before, after, f"can be merged with {first!r}"))
    return replace(
        plan,
        order=order,
        moves=tuple(move._replace(to=order.index(move.name)) for move in moves),
        seconds_after=question.model.measured_total([question.index[name] for name in order]),
    )
