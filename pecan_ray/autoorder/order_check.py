"""Does an order still hold?  It is run on other elements than those of the first look, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence

from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess, can_be_sent
from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.late_look import JobEnd
from pecan_ray.autoorder.look_clock import WALL_PER_CPU, LookClock
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import load_engine, private_copy, sample_stretch, undisturbed
from pecan_ray.autoorder.trial import make_trial, trial_error
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.stretches import stretches


def order_refused(request: OrderRequest, orders: Sequence[OpOrder], job: JobEnd | None = None) -> str:
    """Return why stretches may not run in these orders; empty if they may, or if the plan cannot be sent.

    What a mode asks of values is asked of the request's number of elements; nothing is timed.  Raises `PecanError`
    where the `job` ends that it is for.
    """
    if not can_be_sent(request):
        return ""
    seconds = WALL_PER_CPU * request.seconds
    return call_in_subprocess(_refused, request, tuple(orders), engine=request.engine, seconds=seconds, job=job)


def _refused(request: OrderRequest, orders: Sequence[OpOrder]) -> str:
    load_engine(request.engine)
    clock = LookClock()
    limits = SampleLimits(request.elements, request.seconds, spread=not plan_shape(request.plan).serial, later=True)
    with undisturbed():
        for stretch in stretches(private_copy(request.plan)):
            order = next((one for one in orders if sorted(one) == sorted(stretch.names)), stretch.names)
            if order == stretch.names:
                continue
            sampled = sample_stretch(stretch, request.engine, request.seed, limits, clock=clock, skip_bad=True)
            try:
                trial = make_trial(sampled, request)
                refused = (trial.look(order) or trial.verify(order)[0]) if sampled.held else ""
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever a user's function or object can raise where it is run otherwise
                return trial_error(error)
            if refused:
                return refused
    return ""
