"""AutoOrder after the first epoch, in mode "pecan": does the whole pass say what the sample said? (Pecan §3.2)"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from pecan_ray.autoorder.adopted import Ordering, StretchOrder
from pecan_ray.autoorder.late_look import JobEnd
from pecan_ray.autoorder.order_check import order_refused
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.engines.counting import OpCount
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.stretches import reordered
from pecan_ray.reorder import OrderPlan, ProfiledOp, revalidate

logger = logging.getLogger("pecan_ray")

LEAST_COUNTED = 50
"""Elements of the whole pass below which nothing is decided anew."""


def reorder_after_epoch(
    ordering: Ordering, counts: Mapping[str, OpCount], request: OrderRequest, job: JobEnd | None = None
) -> tuple[Plan, str] | None:
    """Return the plan in another order, and why; None if it stays.

    An order is changed only where an operator's verdict (it inflates, deflates or is neutral) is another one over the
    whole pass than on the sample, and where the new order runs on another sample of the same data, in a process of its
    own, with results of the same form.
    """
    orders, reasons = {}, []
    for stretch in ordering.stretches:
        orders[stretch.names] = stretch.adopted.order
        new = new_order(stretch, counts)
        if new is None:
            continue
        if refused := order_refused(replace(request, plan=ordering.before, skip_bad=True), [new.order], job):
            logger.info("the order stays, though the first epoch shows that %s: %s", new.reason, refused)
        else:
            orders[stretch.names] = new.order
            order = " -> ".join(new.order)
            reasons.append(f"AutoOrder now runs {order}, as the first epoch shows: {new.reason}")
    return (reordered(ordering.before, orders), "; ".join(reasons)) if reasons else None


def new_order(stretch: StretchOrder, counts: Mapping[str, OpCount]) -> OrderPlan | None:
    """Ask the policy again, with the factors of the whole pass where an operator was counted."""
    old = replace(stretch.adopted, mode=stretch.proposed.mode, forbidden=stretch.proposed.forbidden)
    new = revalidate(old, [_with_count(op, counts.get(op.name)) for op in old.ops])
    if new is None or any(new.order == refused.order for refused in stretch.refused):
        return None
    return new


def _with_count(op: ProfiledOp, count: OpCount | None) -> ProfiledOp:
    if count is None or count.elements_in < LEAST_COUNTED or not (count.bytes_in and count.bytes_out):
        return op
    return replace(op, inflation=count.bytes_out / count.bytes_in)
