"""Which `take` and `skip` choose other elements in each pass, because a shuffle before them has another order."""

from __future__ import annotations

from collections.abc import Iterator

from pecan_ray.plan.operators import Join, Op, Plan, Repeat, Shuffle, Skip, Take


def why_choices_move(plan: Plan) -> str:
    """Say which operators choose other elements in each pass, and how to fix the choice; empty if there are none."""
    # So 199 of 200 validation elements had been trained on by the fourth epoch
    # (docs/decisions/randomness-and-passes.md#104-parts-by-places-of-elements).
    found = [f"{op.name} behind {shuffle.name}" for op, shuffle in _pass_dependent_ops(plan)]
    if not found:
        return ""
    return (
        f"{', '.join(found)} chooses other elements in each pass: as halves of a split, take(n) and skip(n) share "
        "elements from the second pass on. Write shuffle(..., reshuffle=False), which has one order for all passes, or "
        "split the elements by pecan_ray.split(pipeline, [0.9, 0.1], seed=...)."
    )


def _pass_dependent_ops(plan: Plan) -> Iterator[tuple[Op, Shuffle]]:
    """Yield each `take` and `skip` with a shuffle before it that has another order in each pass.

    Behind `repeat` they end an endless stream, or begin it later, and choose no part of the data.
    """
    if isinstance(plan.head, Join):
        for branch in plan.head.inputs:
            yield from _pass_dependent_ops(branch)
    before = list(plan.all_ops())[: -len(plan.ops) or None]
    for op in plan.ops:
        shuffles = [one for one in before if isinstance(one, Shuffle) and one.reshuffle]
        if isinstance(op, (Take, Skip)) and shuffles and not any(isinstance(one, Repeat) for one in before):
            yield op, shuffles[-1]
        before.append(op)
