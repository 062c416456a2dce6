"""Whether the inputs of a `zip` are read in step, so that several workers make parts of it."""

from __future__ import annotations

from dataclasses import replace

from pecan_ray.plan.operators import Join, Map, Plan, Prefetch, Repeat
from pecan_ray.plan.shape import PlanShape, plan_shape
from pecan_ray.plan.splits import RowRangeSource


def shape_of_job(plan: Plan, engine: str, on_error: str) -> PlanShape:
    """Return how a job spreads a plan over workers, and why one of them runs all of a zip."""
    why = why_not_in_step(plan, engine, on_error)
    shape = plan_shape(plan if why else read_in_step(plan))
    return replace(shape, whole_reason=why)


def read_in_step(plan: Plan) -> Plan:
    """Return a plan with the inputs of its zip, if it begins with one, marked as read in step."""
    if not isinstance(plan.head, Join) or plan.head.kind != "zip":
        return plan
    return replace(plan, head=replace(plan.head, in_step=True))


def why_not_in_step(plan: Plan, engine: str, on_error: str) -> str:
    """Return why a plan's zip is not read in step; empty where it is, and where there is none.

    In step means that element i of the zip is made of row i of each source, which any worker can find.
    """
    join = plan.head
    if not isinstance(join, Join) or join.kind != "zip":
        return ""
    # Pairs by number, which nothing may move: docs/decisions/exactly-once.md#171-zips-in-step.
    if engine != "python":
        return f"the {engine} engine reads the inputs of zip one by one"
    if on_error != "raise":
        return f"on_error={on_error!r} leaves elements out, which moves those behind them to other pairs"
    if why := _why_not_pairs(join):
        return why
    if any(isinstance(op, Repeat) for op in plan.ops):
        return "repeat follows zip"
    whole = plan_shape(read_in_step(plan), order=False).is_one_sequence
    return "what follows zip needs all of its elements" if whole else ""


def _why_not_pairs(join: Join) -> str:
    """Return why the rows of a zip's inputs are not known to be pairs by their numbers; empty where they are."""
    lengths = []
    for place, one in enumerate(join.inputs, 1):
        if why := _why_not_by_rows(one):
            return f"{why}, in input {place} of zip"
        lengths.append(one.head.num_elements() if isinstance(one.head, RowRangeSource) else None)
    first, shortest = lengths[0] or 0, min(length or 0 for length in lengths)
    if first > shortest:
        return f"the first input of zip has {first} elements, and another one {shortest}: let the shortest be the first"
    return ""


def _why_not_by_rows(plan: Plan) -> str:
    """Return why it is not known which row of a source becomes which element of a plan; empty where it is."""
    if isinstance(plan.head, Join):
        return f"{plan.head.kind} joins several sources"
    other = next((op.name for op in plan.ops if not isinstance(op, (Map, Prefetch))), None)
    if other is not None:
        return f"behind {other} elements are not known by their rows"
    if not (isinstance(plan.head, RowRangeSource) and plan.head.counts_splits):
        return f"{type(plan.head).__name__} has no rows that are known without reading it"
    return ""
