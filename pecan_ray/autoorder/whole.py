"""What an order gains is told, and judged, of the whole pipeline.

A stretch that takes the share f of all time and becomes s times as fast makes the whole 1 / (1 - f (1 - 1/s)) times as
fast.  The whole is reading and all operators on elements; what is done to batches is not sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.autoorder.accepted import NOTHING_TAKEN_OVER, OpSequenceOrder, RejectedOrder, TakenOver, whole_speedup
from pecan_ray.autoorder.rewrites import ROWS_AT_ONCE
from pecan_ray.autoorder.speed import WORTH
from pecan_ray.plan.op_sequences import op_sequences
from pecan_ray.plan.operators import Join, Plan
from pecan_ray.reorder import auto_order

LEAST_SAVED_S = 3e-6
"""And the least that must be saved of an element's time: calls of Python differ by a microsecond or so."""


def apply_pipeline_threshold(plan: Plan, orders: Sequence[OpSequenceOrder]) -> list[OpSequenceOrder]:
    """Return the orders with their shares of the whole; the user's, where one gains too little of that.

    Another order has to be worth it beside what decoders take over in the user's.
    """
    told = [_seconds_of(plan, one) for one in orders]
    parts = [(one.sample.reading_s or 0.0) + own for one, own in zip(orders, told, strict=True)]
    # The reading time of a stretch holds all that runs before it, so the longest sum is the whole pipeline.
    whole = max(*parts, sum(told))
    shared = [replace(one, share=own / whole if whole else 1.0) for one, own in zip(orders, told, strict=True)]
    return [_evaluate(one, whole) for one in shared]


def _evaluate(one: OpSequenceOrder, whole: float) -> OpSequenceOrder:
    in_rows = any(pushed.rule == ROWS_AT_ONCE for pushed in one.users_taken_over.pushed)  # which is judged by itself
    gain, least, users = one.whole_speedup, one.least_speedup, one.users_taken_over.measured
    if gain is None or least is None or one.accepted.mode == "pecan" or in_rows:
        return one
    # Decision 155: the gain that is certain has to be worth it, so that another look decides alike.
    if not _saves_time(whole, whole_speedup(one.share, least)):
        return _as_written(one, gain, NOTHING_TAKEN_OVER)
    # What decoders take over in the user's order is to be had without another order.
    decoding = 1.0 if users is None else whole_speedup(one.share, users.speedup)
    if one.accepted.changed and _saves_time(whole, decoding) and not _saves_time(whole / decoding, gain / decoding):
        return _as_written(one, gain / decoding, one.users_taken_over)
    return one


def _as_written(one: OpSequenceOrder, gain: float, taken_over: TakenOver) -> OpSequenceOrder:
    """Return what was found of a stretch in the user's order, with what decoders take over in that."""
    reason = (
        f"it would make the whole pipeline {gain:.2f} times as fast, which is not worth another order "
        f"(these operators take {one.share:.0%} of the time)"
    )
    tried = [one.accepted.order] if one.accepted.changed else [pushed.ops for pushed in one.taken_over.pushed]
    return OpSequenceOrder(
        one.sample,
        auto_order(one.accepted.ops, "off", neutral_band=one.accepted.neutral_band),
        one.policy_order,
        rejected=(*one.rejected, *(RejectedOrder(order, reason) for order in tried)),
        notes=one.notes,
        share=one.share,
        taken_over=taken_over,
        users_taken_over=taken_over,
    )


def _saves_time(seconds: float, gain: float) -> bool:
    """Tell whether it is worth it that what takes so long becomes so many times as fast."""
    return gain >= WORTH and seconds * (1.0 - 1.0 / gain) >= LEAST_SAVED_S


def _seconds_of(plan: Plan, one: OpSequenceOrder) -> float:
    """Return the seconds of a stretch's operators for an element of the plan's sources."""
    return (one.sample.seconds or 0.0) * _elements(plan, one.names)


def _elements(plan: Plan, names: tuple[str, ...]) -> float:
    """Return how many of all sources' elements enter a stretch: its branch's share."""
    if not isinstance(plan.head, Join):
        return 1.0
    head = plan.head
    for number, branch in enumerate(head.inputs):
        if any(stretch.names == names for stretch in op_sequences(branch)):
            share = head.weights[number] / sum(head.weights) if head.weights else 1.0 / len(head.inputs)
            return share * _elements(branch, names)
    return 1.0 / len(head.inputs) if head.kind == "zip" else 1.0
