"""AutoOrder after the first epoch: does the whole pass over the data say what the sample said? (Pecan §3.2)"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pecan_ray.autoorder.adopted import NOTHING_TAKEN_OVER, Ordering, StretchOrder, TakenOver
from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess
from pecan_ray.autoorder.exchange_check import OpOrder, exchanges
from pecan_ray.autoorder.in_rows import NOTHING_IN_ROWS
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import load_engine, private_copy, sample_stretch, undisturbed
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.autoorder.stopwatch import WALL_PER_CPU, LookClock
from pecan_ray.autoorder.trial import Trial, make_trial, trial_error
from pecan_ray.autoorder.whole import WORTH
from pecan_ray.engines.counting import OpCount
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.stretches import reordered, stretches
from pecan_ray.reorder import OrderPlan, ProfiledOp, inflation_factor, revalidate

logger = logging.getLogger("pecan_ray")

LEAST_COUNTED = 50
"""Elements of the whole pass below which nothing is decided anew."""


def reorder_after_epoch(
    ordering: Ordering, counts: Mapping[str, OpCount], request: OrderRequest
) -> tuple[Plan, tuple[str, ...], str] | None:
    """Return the plan in another order, the decoders that take something over in it, and why; None if it stays.

    An order is changed only where an operator's verdict (it inflates, deflates or is neutral) is another one over the
    whole pass than on the sample, and where the new order passes what a first look asks of it on another sample of the
    same data, in a process of its own: results that may be so, and in modes other than "pecan" a whole pipeline that is
    measured to be 5 % faster than in the present order.
    """
    orders, decoders, reasons = {}, list[str](), []
    for stretch in ordering.stretches:
        adopted, taking_over, in_rows = stretch.adopted, stretch.taken_over.decoders, stretch.in_rows
        new = new_order(stretch, counts)
        if new is not None:
            asked = (replace(request, plan=ordering.before, mode=new.mode), stretch.names, adopted.order, new.order)
            found = call_in_subprocess(_tried, *asked, engine=request.engine, seconds=WALL_PER_CPU * request.seconds)
            if refused := found.refused or _not_worth_it(stretch, found.measured):
                logger.info("the order stays, though the first epoch shows that %s: %s", new.reason, refused)
            else:
                adopted, taking_over = new, found.taken_over.decoders
                gain = "" if found.measured is None else f" ({found.measured.told()})"
                order = " -> ".join(new.order)
                in_rows = NOTHING_IN_ROWS
                reasons.append(f"AutoOrder now runs {order}, as the first epoch shows: {new.reason}{gain}")
        orders[stretch.names] = adopted.order
        decoders += (*taking_over, *([in_rows.name] if in_rows.ops else []))
    return (reordered(ordering.before, orders), tuple(decoders), "; ".join(reasons)) if reasons else None


def new_order(stretch: StretchOrder, counts: Mapping[str, OpCount]) -> OrderPlan | None:
    """Ask the policy again, with the factors of the whole pass where an operator was counted."""
    old = replace(stretch.adopted, mode=stretch.proposed.mode, forbidden=stretch.proposed.forbidden)
    found = [_with_count(op, counts.get(op.name)) for op in old.ops]
    band = old.neutral_band
    if all(op.verdict(band) == past.verdict(band) for op, past in zip(found, old.ops, strict=True)):
        return None
    new = revalidate(old, found, commutes=lambda pair: True)  # the trial tells
    if new is None or any(new.order == refused.order for refused in stretch.refused):
        return None
    return new


def _with_count(op: ProfiledOp, count: OpCount | None) -> ProfiledOp:
    if count is None or count.elements_in < LEAST_COUNTED or not count.bytes_in:
        return op
    factor = inflation_factor(count.bytes_in, count.bytes_out)
    return op if factor is None else replace(op, inflation=factor)


@dataclass(frozen=True)
class _Tried:
    """What has become of a new order on a sample."""

    refused: str = ""
    taken_over: TakenOver = NOTHING_TAKEN_OVER
    measured: SpeedComparison | None = None
    """The present order against it; None in mode "pecan"."""


def _tried(request: OrderRequest, names: OpOrder, present: OpOrder, order: OpOrder) -> _Tried:
    """Run a new order on a sample, in turn with the present one."""
    load_engine(request.engine)
    (copy,) = (one for one in stretches(private_copy(request.plan)) if one.names == names)
    spread = not plan_shape(request.plan).serial
    clock = LookClock()
    limits = SampleLimits(request.elements, request.seconds, spread=spread, later=True)
    with undisturbed(request.plan):
        sampled = sample_stretch(copy, request.engine, request.seed, limits, clock=clock, skip_bad=request.skip_bad)
        try:
            return _try_order(make_trial(sampled, request), request, present, order)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a user's function or object can raise where it is run otherwise
            return _Tried(trial_error(error))


def _try_order(trial: Trial, request: OrderRequest, present: OpOrder, order: OpOrder) -> _Tried:
    if request.mode != "pecan":
        for pair in exchanges(trial.user, order):
            if not trial.exchanges.may(pair):
                return _Tried(trial.exchanges.refusals()[pair])
    if refused := trial.look(order) or trial.verify(order)[0]:
        return _Tried(refused)
    if request.mode == "pecan":
        return _Tried()
    trial.measure_taken_over(trial.user)
    taken_over = trial.measure_taken_over(order)
    measured, failed = trial.compare(order, present)
    if measured is None:
        return _Tried(failed or "there was no time to measure it")
    return _Tried("" if measured.faster else f"it is not faster: {measured.told()}", taken_over, measured)


def _not_worth_it(stretch: StretchOrder, measured: SpeedComparison | None) -> str:
    """Say that the whole pipeline would gain too little beside the present order; empty if not."""
    if measured is None:
        return ""
    now = stretch.share / (stretch.speedup or 1.0)
    share = now / (1.0 - stretch.share + now)
    gain = 1.0 / max(1.0 - share * (1.0 - 1.0 / measured.speedup), 1e-12)
    return "" if gain >= WORTH else f"it would make the whole pipeline {gain:.2f} times as fast"
