"""Are the results of an order that was kept still what they were?  A few elements of later jobs are compared again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess, can_be_sent
from pecan_ray.autoorder.exchange_check import NO_TIME, OpOrder
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import load_engine, private_copy, sample_stretch, undisturbed
from pecan_ray.autoorder.stopwatch import WALL_PER_CPU, LookClock
from pecan_ray.autoorder.trial import make_trial
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.stretches import stretches

ELEMENTS = 16


def other_values(request: OrderRequest, orders: Sequence[OpOrder]) -> str:
    """Return why the results of stretches in these orders are not what the user meant; empty if they may be.

    Other elements are run than a first look takes, as far as there are others, in a process of its own.
    """
    if not can_be_sent(request):
        return ""
    request = replace(request, elements=ELEMENTS)
    return call_in_subprocess(
        _other_values, request, tuple(orders), engine=request.engine, seconds=WALL_PER_CPU * request.seconds
    )


def _other_values(request: OrderRequest, orders: Sequence[OpOrder]) -> str:
    load_engine(request.engine)
    clock = LookClock()
    with undisturbed(request.plan):
        for stretch in stretches(private_copy(request.plan)):
            order = next((one for one in orders if sorted(one) == sorted(stretch.names)), stretch.names)
            if order == stretch.names:
                continue
            spread = not plan_shape(request.plan).serial
            limits = SampleLimits(ELEMENTS, request.seconds, spread=spread, later=True)
            sampled = sample_stretch(stretch, request.engine, request.seed, limits, clock=clock, skip_bad=True)
            refused = make_trial(sampled, request).look(order) if sampled.held else ""
            if refused and refused != NO_TIME:
                return refused
    return ""
