"""AutoOrder at work: sample a plan, ask the policy for orders, try them on the sample, adopt one.

Later it is asked whether an order still holds: by running it on other elements, and in mode "pecan" by what the first
epoch has shown (Pecan §3.2).

Decisions: docs/decisions/autoorder.md.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from pecan_ray.autoorder.accepted import OpSequenceOrder, Ordering, ReorderResult, apply_pipeline_threshold
from pecan_ray.autoorder.call_in_subprocess import JobEnd, call_in_subprocess, can_be_sent, needs_own_process
from pecan_ray.autoorder.exchange_check import OpOrder
from pecan_ray.autoorder.in_rows import try_in_rows
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.op_samples import OpSequenceSample, SampleProfile
from pecan_ray.autoorder.order_request import (
    LEAST_RUNS,
    RUNS_OF_AN_ELEMENT,
    SHARE_OF_JOB,
    WALL_PER_CPU,
    LookClock,
    OrderRequest,
    runs_allowed,
)
from pecan_ray.autoorder.rewrites import maps_from_source
from pecan_ray.autoorder.sample import (
    LEAST_ELEMENTS,
    Sampled,
    load_engine,
    private_copy,
    restore_globals,
    sample_op_sequence,
)
from pecan_ray.autoorder.search import OrderSearch
from pecan_ray.autoorder.trial import Trial
from pecan_ray.engines.counting import OpCount
from pecan_ray.errors import describe_error
from pecan_ray.options import EngineName
from pecan_ray.plan.op_sequences import OpSequence, apply_op_order, op_order_of, op_sequences
from pecan_ray.plan.operators import ElementOp, Join, Map, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.reorder import NEUTRAL_BAND, Mode, OrderPlan, ProfiledOp, auto_order, revalidate

logger = logging.getLogger("pecan_ray")

APART = True
"""Samples run in processes of their own: the user's functions may do anything to theirs."""
PROFILE_SHARE = 0.5
"""Share of the time that profiling may take; the rest is for trying other orders."""
BEGIN_SHARE = 0.9
"""Share of the time in which something may be begun: an operator that runs is not interrupted."""
ENOUGH_S = 1.5
"""Where operators are slow, few elements are sampled after so long: the trainer waits for its first batch."""
LEAST_COUNTED = 50
"""Elements of the whole pass below which nothing is decided anew."""
TOO_SHORT = (
    f"AutoOrder left the order as it is written: {100 * SHARE_OF_JOB:.0f} % of so short a job is not enough for a "
    "look. pipe.explain() looks, and keeps what it finds for later jobs"
)


def _wanted(request: OrderRequest) -> list[OpSequence]:
    least = 0 if request.sample_all else math.inf if request.mode == "off" else 2
    return [one for one in op_sequences(request.plan) if one.movable >= least]


def order_plan(request: OrderRequest, known: Sequence[OpSequenceOrder] = (), job: JobEnd | None = None) -> Ordering:
    """Return the plan with its operators in the order that AutoOrder adopts.

    Another order is adopted only if it has run on the sample without an error, with results of the same form
    (columns, dtypes, dimensions, shapes where they were fixed), and in modes other than "pecan" measurably faster.
    In mode "strict" its results are equal, in mode "safe" they differ by little of what the operators do to them.
    Stretches with fewer than two operators that may move are not sampled, unless `sample_all`; those in `known` are
    not sampled again.

    Raises `ElementError` for an element that the user's order cannot take; if the request says `skip_bad`, only if it
    can take none.  Raises `PecanError` where the `job` ends that it is for.
    """
    plan, mode, started = request.plan, request.mode, time.perf_counter()
    wanted = _wanted(request)
    if not wanted:
        return Ordering(plan, plan, mode)
    found = {one.names: one for one in known}
    missing = [one.names for one in wanted if one.names not in found]
    runs = runs_allowed(plan, request.job) if missing else math.inf
    if runs < LEAST_RUNS:
        return Ordering(plan, plan, mode, notes=(TOO_SHORT,), final=False)
    # More of them could not be run as often as a look needs, in the time that a short job allows.
    request = replace(request, runs=runs, elements=int(min(request.elements, runs / RUNS_OF_AN_ELEMENT)))
    found.update({one.names: one for one in _look(request, missing, job)})
    orders = [found[one.names] for one in wanted]
    cut_short = runs < math.inf or any(one.sample.elements < LEAST_ELEMENTS for one in orders)
    return _accepted_ordering(plan, mode, orders, time.perf_counter() - started, cut_short=cut_short)


def _look(request: OrderRequest, missing: Sequence[OpOrder], job: JobEnd | None) -> list[OpSequenceOrder]:
    """Sample stretches, in a process of its own where the request says so; return what they adopt."""
    apart = uses_subprocess(request) if request.in_subprocess is None else request.in_subprocess
    if apart:
        # By the wall clock: its CPU time is counted in that process.
        seconds = WALL_PER_CPU * request.seconds
        return call_in_subprocess(_order_sequences, request, missing, engine=request.engine, seconds=seconds, job=job)
    return _order_sequences(request, missing)


def _accepted_ordering(
    plan: Plan, mode: Mode, orders: Sequence[OpSequenceOrder], seconds: float, *, cut_short: bool
) -> Ordering:
    """Return the plan in the orders that its stretches have adopted; `cut_short`: more elements may tell more."""
    pushed = [pushed for one in orders for pushed in one.taken_over.pushed]
    notes = [note for one in orders for note in (*one.sample.notes, *one.notes)]
    notes += [one.description() for one in pushed]
    return Ordering(
        before=plan,
        plan=apply_op_order(plan, {one.names: one.accepted.order for one in orders}),
        mode=mode,
        sequences=tuple(orders),
        seconds=seconds,
        notes=tuple(dict.fromkeys(notes)),
        # What was adopted has run on the sample, and is kept however short the look was.
        final=not cut_short or bool(pushed) or any(one.accepted.changed for one in orders),
        decoders=tuple(one.decoder for one in pushed),
    )


def uses_subprocess(request: OrderRequest) -> bool:
    """Tell whether a sample runs in a process of its own: where it can be sent there.

    Not one of a source that is part of the cluster that this process is connected to.
    """
    connected = any(getattr(source, "needs_cluster", False) for source in request.plan.sources())
    return needs_own_process(request.engine) or (APART and not connected and can_be_sent(request))


class Pipeline(Protocol):
    """What is sampled: a `pecan_ray.PecanPipeline`."""

    @property
    def plan(self) -> Plan:
        """Its description."""
        ...

    @property
    def engine(self) -> EngineName:
        """The engine that runs it."""
        ...

    @property
    def seed(self) -> int:
        """What its random numbers are derived from."""
        ...


def sample_profile(pipeline: Pipeline, elements: int = 300, seconds: float = 20.0) -> SampleProfile:
    """Run a pipeline's first elements through its operators and return what they do and take.

    Runs in a process of its own, on copies of the functions.  Ends after `seconds` of CPU time (an operator that runs
    is not interrupted), or when enough elements of slow operators or 256 MiB of elements are held, with a note.  Raises
    `OpError` where an operator does, with its name and the element.
    """
    plan, engine, seed = pipeline.plan, pipeline.engine, pipeline.seed
    request = OrderRequest(plan, engine, "off", seed, elements=elements, seconds=seconds, sample_all=True)
    found = order_plan(request)
    samples = tuple(one.sample for one in found.sequences)
    known = {op.name: op.profiled for sample in samples for op in sample.ops}
    most = max((sample.elements for sample in samples), default=0)
    return SampleProfile(samples, tuple(_profiled(plan, known)), most, found.seconds, found.notes)


def _profiled(plan: Plan, known: Mapping[str, ProfiledOp]) -> Iterator[ProfiledOp]:
    """Yield all operators of a plan; those that are in no stretch are barriers."""
    if isinstance(plan.head, Join):
        for number, branch in enumerate(plan.head.inputs):
            yield from _profiled(branch, known)
            end = next((op.name for op in reversed(list(branch.all_ops()))), str(number))
            yield ProfiledOp(f"{plan.head.kind} behind {end}", 1.0, fixed=plan.head.kind)
    for op in plan.ops:
        why = "works on batches" if isinstance(op, ElementOp) else f"{type(op).__name__} is a barrier"
        yield known[op.name] if op.name in known else ProfiledOp(op.name, 1.0, fixed=why)


def _order_sequences(request: OrderRequest, names: Sequence[OpOrder]) -> list[OpSequenceOrder]:
    """Order the stretches of these operators, in this process."""
    load_engine(request.engine)
    # Behind the import of a framework, which is no time of the look's (`START_S`).
    clock = LookClock()
    # Functions may hold a state, which is the user's in this process.
    copies = {one.names: one for one in op_sequences(private_copy(request.plan))}
    found = []
    with restore_globals():
        for number, one in enumerate(names):
            now = clock()
            # What a stretch leaves of its share goes to those behind it.
            deadline = now + (BEGIN_SHARE * request.seconds - now) / (len(names) - number)
            # Decision 24: a sample is spread over the data, unless the plan needs its beginning.
            spread = not plan_shape(request.plan, order=False).serial
            limits = SampleLimits(request.elements, deadline, spread=spread, skip_bad=request.skip_bad)
            found.append(_order_op_sequence(copies[one], request, limits, clock, request.runs / len(names)))
    return apply_pipeline_threshold(found)


def _order_op_sequence(
    stretch: OpSequence, request: OrderRequest, limits: SampleLimits, clock: LookClock, runs: float
) -> OpSequenceOrder:
    """Sample a stretch and try other orders on it; whatever a trial raises, the order stays and says why.

    `runs`: that may take so many times as long as one element takes.

    The user's own order has run on these elements: an error can only come from a way in which no job would run.
    """
    now = clock()
    half = now + PROFILE_SHARE * (limits.deadline - now)
    first = replace(limits, soft_limit=min(half, now + ENOUGH_S), hard_limit=half)
    sampled = sample_op_sequence(stretch, request.engine, request.seed, first, clock)
    if sampled.failed is not None and not sampled.held:
        raise sampled.failed
    sample = sampled.profile()
    element_s = (sample.reading_s or 0.0) + (sample.seconds or 0.0)
    # Only now it is known how long an element takes, of which a short job allows so many.
    sampled.limits = replace(limits, deadline=min(limits.deadline, now + runs * element_s if element_s else math.inf))
    user = auto_order(sample.profiled, "off", neutral_band=NEUTRAL_BAND)
    why = "" if request.mode == "off" else _why_nothing_is_tried(sample, request.mode)
    if request.mode != "off" and not why:
        try:
            return _search_order(stretch, sampled, request, user)
        # Ctrl-C alone passes: an error of a trial says nothing of the job, which runs as written
        # (docs/decisions/autoorder.md#99-the-default-changes-no-values).
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a user's function or object can raise where it is run otherwise
            why = _trial_error(error)
            logger.warning("AutoOrder left %s as it is written: %s", " -> ".join(stretch.names), why)
            sample = sampled.profile()
    return OpSequenceOrder(sample, user, user, notes=(f"{why}: the order stays as it is written",) if why else ())


def _search_order(stretch: OpSequence, sampled: Sampled, request: OrderRequest, user: OrderPlan) -> OpSequenceOrder:
    ops = {op.name: op for op in stretch.ops}
    maps = maps_from_source(request.plan) if request.engine == "python" and request.rewrites else ()
    copies = [op for one in maps if isinstance(op := ops.get(one.name), Map)]
    in_rows = try_in_rows(sampled, copies, request.mode)
    if in_rows.pushed:  # which gains more than any order; an element that fails is run one by one, in the user's
        return OpSequenceOrder(sampled.profile(), user, user, taken_over=in_rows, users_taken_over=in_rows)
    trial = Trial(sampled, request)
    found = OrderSearch(sampled.profile(), trial, request.mode if request.exchanges else "off").run()
    return replace(found, rejected=(*found.rejected, *in_rows.rejected))


def _why_nothing_is_tried(sample: OpSequenceSample, mode: Mode) -> str:
    """Return why a sample shows too little; empty if it shows enough."""
    missing = next((op for op in sample.ops if not op.measured), None)
    if missing is not None and missing.elements_in and not missing.elements_out:
        return f"{missing.name!r} let none of {missing.elements_in} elements through"
    if missing is not None:
        never = f"the elements around {missing.name!r} hold no bytes"
        return never if missing.elements_in else f"{missing.name!r} was not reached"
    # Mode "pecan" measures no times, so that few elements are enough for it.
    few = mode != "pecan" and sample.elements < LEAST_ELEMENTS
    elements = "1 element is" if sample.elements == 1 else f"{sample.elements} elements are"
    return f"{elements} too few to measure times on" if few else ""


def _trial_error(error: BaseException) -> str:
    return f"trying another way to run them ended with {describe_error(error)}".partition("\n")[0]


# --- does an order still hold? ------------------------------------------------------------------------------


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
    # What fails in the user's order tells nothing of another one.
    spread = not plan_shape(request.plan, order=False).serial
    limits = SampleLimits(request.elements, request.seconds, spread=spread, later=True, skip_bad=True)
    with restore_globals():
        for stretch in op_sequences(private_copy(request.plan)):
            order = next((one for one in orders if sorted(one) == sorted(stretch.names)), stretch.names)
            # Of the others nothing has changed that could be refused.
            if order == stretch.names:
                continue
            sampled = sample_op_sequence(stretch, request.engine, request.seed, limits, clock)
            try:
                trial = Trial(sampled, request)
                rejected = (trial.look(order) or trial.verify(order)[0]) if sampled.held else ""
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever a user's function or object can raise where it is run otherwise
                return _trial_error(error)
            if rejected:
                return rejected
    return ""


def reorder_after_epoch(
    ordering: Ordering, counts: Mapping[str, OpCount], request: OrderRequest, job: JobEnd | None = None
) -> ReorderResult | None:
    """Return the plan in another order, and why; None if it stays.

    An order is changed only where an operator's verdict (it inflates, deflates or is neutral) is another one over the
    whole pass than on the sample, and where the new order runs on another sample of the same data, in a process of its
    own, with results of the same form.
    """
    orders, reasons = {}, []
    for stretch in ordering.sequences:
        orders[stretch.names] = stretch.accepted.order
        old = replace(stretch.accepted, forbidden=stretch.policy_order.forbidden)
        new = revalidate(old, [_with_count(op, counts.get(op.name)) for op in old.ops])
        # What was refused on the sample is not tried again.
        if new is None or any(new.order == rejected.order for rejected in stretch.rejected):
            continue
        if rejected := order_rejection(replace(request, plan=ordering.before, skip_bad=True), [new.order], job):
            logger.info("the order stays, though the first epoch shows that %s: %s", new.reason, rejected)
        else:
            orders[stretch.names] = new.order
            order = " -> ".join(new.order)
            reasons.append(f"AutoOrder now runs {order}, as the first epoch shows: {new.reason}")
    plan = apply_op_order(ordering.before, orders)
    return ReorderResult(plan, op_order_of(plan), "; ".join(reasons)) if reasons else None


def _with_count(op: ProfiledOp, count: OpCount | None) -> ProfiledOp:
    if count is None or count.elements_in < LEAST_COUNTED or not (count.bytes_in and count.bytes_out):
        return op
    return replace(op, inflation=count.bytes_out / count.bytes_in)
