"""Orders nearer to the user's: exchanges that bring nothing are undone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from pecan_ray.reorder.moves import explained_moves
from pecan_ray.reorder.order_plan import Move, OrderPlan
from pecan_ray.reorder.policy import Question, ask
from pecan_ray.reorder.sections import sections

HARDLY = 0.005
"""Share of the user's time that an exchange must be estimated to gain."""

Allowed = Callable[[tuple[str, ...]], bool]


def closer(plan: OrderPlan, allowed: Allowed = lambda order: True, *, hardly: float = HARDLY) -> OrderPlan:
    """Return the plan without the exchanges that are estimated to bring hardly anything.

    Again and again two neighbours go back to where the user has them, those first whose exchange brings least.
    `allowed` may refuse an order that lacks something of which estimates know nothing.
    """
    question = _question(plan)
    bound = hardly * question.estimate(tuple(op.name for op in plan.ops))
    while True:
        at = question.estimate(plan.order)
        losses = [(question.estimate(order) - at, order) for order in undone(plan) if allowed(order)]
        least = min(losses, default=None)
        if least is None or least[0] >= bound:
            return plan
        plan = in_order(plan, least[1])


def undone(plan: OrderPlan) -> Iterator[tuple[str, ...]]:
    """Yield the orders in which two neighbours of a plan are back in the user's order."""
    place = {op.name: number for number, op in enumerate(plan.ops)}
    for at, (first, second) in enumerate(pairwise(plan.order)):
        if place[first] > place[second]:
            yield (*plan.order[:at], second, first, *plan.order[at + 2 :])


def in_order(plan: OrderPlan, order: tuple[str, ...]) -> OrderPlan:
    """Return the plan with another order, between this one and the user's."""
    question = _question(plan)
    indices = [question.index[name] for name in order]
    moves: list[Move] = []
    for section in sections(plan.ops):
        arranged = indices[section.start : section.stop]
        moves += explained_moves(plan.ops, section, arranged, plan.neutral_band)
    known = {move.name: move.reason for move in plan.moves}
    return replace(
        plan,
        order=order,
        moves=tuple(move._replace(reason=known.get(move.name, move.reason)) for move in moves),
        seconds_after=question.model.measured_total(indices),
    )


def _question(plan: OrderPlan) -> Question:
    return ask(plan.ops, plan.mode, None, plan.forbidden, plan.movable, plan.neutral_band, plan.measured_in or None)
