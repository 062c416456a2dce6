"""The orders worth trying, one after the other: whoever runs them on the sample may refuse any of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from pecan_ray.errors import PlanError
from pecan_ray.reorder.order_plan import Mode, OrderPlan
from pecan_ray.reorder.policy import Commutes, Pair, Question, answer, ask
from pecan_ray.reorder.profile import ProfiledOp

MOST_SUBSETS_OF = 4
"""Up to this many moves `candidates` tries all combinations of them."""


def candidates(
    ops: Iterable[ProfiledOp],
    mode: Mode = "cost",
    *,
    commutes: Commutes = None,
    forbidden: Collection[Pair] = (),
    movable: Collection[str] | None = None,
    neutral_band: float = 0.0,
    measured_in: Sequence[str] | None = None,
    limit: int = 16,
) -> Iterator[OrderPlan]:
    """Yield at most `limit` different orders to try, the best first, and then the user's own.

    The first is `auto_order`'s.  Those behind it leave out some of its moves, and are searched anew without them,
    so that one move that breaks the pipeline does not cost the others; of them the order with the least estimated
    time comes first, and those that are not faster than the user's are left out.  A plan's `movable` says which ops
    were to move in it.  Who knows *which* exchange failed gets further with `forbidden`.
    """
    if limit < 1:
        raise PlanError(f"candidates: limit must be at least 1, but got {limit}.")
    return _candidates(ask(ops, mode, commutes, forbidden, movable, neutral_band, measured_in), limit)


def _candidates(question: Question, limit: int) -> Iterator[OrderPlan]:
    best = answer(question)
    yield best
    if best.changed:
        yield from _with_fewer_moves(question, best, limit - 1)
        yield answer(replace(question, movable=frozenset()))


def _with_fewer_moves(question: Question, best: OrderPlan, limit: int) -> list[OrderPlan]:
    plans: dict[tuple[str, ...], OrderPlan] = {}
    for allowed in _subsets([move.name for move in best.moves], limit):
        plan = answer(replace(question, movable=frozenset(allowed)))
        plans.setdefault(plan.order, plan)
    costs = {order: question.estimate(order) for order in plans if order != best.order}
    bound = question.model.total(range(len(question.ops)))
    faster = sorted((order for order in costs if costs[order] < bound), key=costs.__getitem__)
    return [plans[order] for order in faster[:limit]]


def _subsets(names: Sequence[str], limit: int) -> Iterator[tuple[str, ...]]:
    """Yield subsets to try: all where there are few, else those that lack one move, and single moves."""
    if len(names) <= MOST_SUBSETS_OF:
        for size in range(len(names) - 1, 0, -1):
            yield from combinations(names, size)
        return
    for left_out in names[:limit]:
        yield tuple(name for name in names if name != left_out)
    for name in names[:limit]:
        yield (name,)
