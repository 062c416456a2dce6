"""Does an order still hold?  It is run on other elements than those of the first look, in a process of its own.

Mode "pecan" asks after the first epoch: does the whole pass say what the sample said (Pecan §3.2)?
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pecan_ray.autoorder.accepted import OpSequenceOrder, Ordering
from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess, can_be_sent
from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.late_look import JobEnd
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order_request import WALL_PER_CPU, LookClock, OrderRequest
from pecan_ray.autoorder.sample import load_engine, private_copy, restore_globals, sample_op_sequence
from pecan_ray.autoorder.trial import make_trial, trial_error
from pecan_ray.engines.counting import OpCount
from pecan_ray.plan.op_sequences import apply_op_order, op_sequences
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.reorder import OrderPlan, ProfiledOp, revalidate

logger = logging.getLogger("pecan_ray")


def order_rejection(request: OrderRequest, orders: Sequence[OpOrder], job: JobEnd | None = None) -> str:
    """Return why stretches may not run in these orders; empty if they may, or if the plan cannot be sent.

    What a mode asks of values is asked of the request's number of elements; nothing is timed.  Raises `PecanError`
    where the `job` ends that it is for.
    """
    if not can_be_sent(request):
        return ""
    seconds = WALL_PER_CPU * request.seconds
    return call_in_subprocess(_rejection, request, tuple(orders), engine=request.engine, seconds=seconds, job=job)


def _rejection(request: OrderRequest, orders: Sequence[OpOrder]) -> str:
    load_engine(request.engine)
    clock = LookClock()
    # Others than the first look had, on which the order holds
    # (docs/decisions/autoorder.md#115-kept-orders-are-compared-again).
    limits = SampleLimits(request.elements, request.seconds, spread=not plan_shape(request.plan).serial, later=True)
    with restore_globals():
        for stretch in op_sequences(private_copy(request.plan)):
            order = next((one for one in orders if sorted(one) == sorted(stretch.names)), stretch.names)
            # Of the others nothing has changed that could be refused.
            if order == stretch.names:
                continue
            # What fails in the user's order tells nothing of another one.
            sampled = sample_op_sequence(stretch, request.engine, request.seed, limits, clock=clock, skip_bad=True)
            try:
                trial = make_trial(sampled, request)
                rejected = (trial.look(order) or trial.verify(order)[0]) if sampled.held else ""
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever a user's function or object can raise where it is run otherwise
                return trial_error(error)
            if rejected:
                return rejected
    return ""


# --- after the first epoch ----------------------------------------------------------------------------------

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
    for stretch in ordering.sequences:
        orders[stretch.names] = stretch.accepted.order
        new = new_order(stretch, counts)
        if new is None:
            continue
        if rejected := order_rejection(replace(request, plan=ordering.before, skip_bad=True), [new.order], job):
            logger.info("the order stays, though the first epoch shows that %s: %s", new.reason, rejected)
        else:
            orders[stretch.names] = new.order
            order = " -> ".join(new.order)
            reasons.append(f"AutoOrder now runs {order}, as the first epoch shows: {new.reason}")
    return (apply_op_order(ordering.before, orders), "; ".join(reasons)) if reasons else None


def new_order(stretch: OpSequenceOrder, counts: Mapping[str, OpCount]) -> OrderPlan | None:
    """Ask the policy again, with the factors of the whole pass where an operator was counted."""
    old = replace(stretch.accepted, mode=stretch.policy_order.mode, forbidden=stretch.policy_order.forbidden)
    new = revalidate(old, [_with_count(op, counts.get(op.name)) for op in old.ops])
    # What was refused on the sample is not tried again.
    if new is None or any(new.order == rejected.order for rejected in stretch.rejected):
        return None
    return new


def _with_count(op: ProfiledOp, count: OpCount | None) -> ProfiledOp:
    if count is None or count.elements_in < LEAST_COUNTED or not (count.bytes_in and count.bytes_out):
        return op
    return replace(op, inflation=count.bytes_out / count.bytes_in)
