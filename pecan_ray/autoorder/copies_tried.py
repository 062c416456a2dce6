"""Whether reduced copies are kept: only where an epoch takes less time so, and results may differ as they do."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from pecan_ray.autoorder.bounded_source import Bounded
from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess, can_be_sent
from pecan_ray.autoorder.element_moved import RewrittenElements
from pecan_ray.autoorder.exchange_check import NO_TIME
from pecan_ray.autoorder.keeping import Kept, prefix_key
from pecan_ray.autoorder.order import may_run_apart
from pecan_ray.autoorder.order_key import look_of
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.reduced_copies import CopyPlace
from pecan_ray.autoorder.sample import LEAST_ELEMENTS, private_copy, undisturbed
from pecan_ray.autoorder.spread import sample_leases
from pecan_ray.autoorder.trial import refused_by_check
from pecan_ray.autoorder.whole import WORTH
from pecan_ray.cache.execution import LEAST_GAIN
from pecan_ray.cache.store import EntryStore
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.items import Item
from pecan_ray.engines.positions import UndeliveredPositions
from pecan_ray.engines.python.complete_calls import complete_call
from pecan_ray.engines.python.stream import ItemStream
from pecan_ray.errors import PecanError
from pecan_ray.options import Cache
from pecan_ray.plan.operators import Autocache, ElementOp, Plan
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.stretches import without_buffers

COMPARED = 32
"""Elements that both plans are run on."""


@dataclass(frozen=True)
class CopiesTried:
    """What two plans make of the same elements."""

    refused: str = ""
    """Why their results may not differ so; empty if they may."""
    told: tuple[str, ...] = ()
    """By how much they do, column by column."""


@dataclass(frozen=True)
class CopiesKept:
    """A plan with reduced copies."""

    place: CopyPlace
    plan: Plan
    keeps: Kept
    """What it would keep."""

    @property
    def seconds(self) -> float:
        """What an epoch would take; infinite where that is not known, or another place would be kept."""
        elsewhere = any(choice.point != self.place.point.name for choice in self.keeps.choices)
        return math.inf if self.keeps.promise is None or elsewhere else self.keeps.promise.seconds

    @property
    def nbytes(self) -> float:
        """What it would keep in all."""
        name = self.place.point.name
        return sum(one.nbytes for choice in self.keeps.choices for one in choice.options if one.point == name)

    @property
    def too_large(self) -> str:
        """Why some copies, or all, can never be kept; empty: all can be."""
        name = self.place.point.name
        return next((one.too_large for it in self.keeps.choices for one in it.options if one.point == name), "")

    def told(self) -> str:
        """Say what it would take."""
        return f"{self.seconds:.3g} s an epoch as {'JPEGs' if self.place.encoded else 'pixels'}"


def with_copies_if_better(keeps: Kept, copies: Sequence[CopiesKept], request: OrderRequest, cache: Cache) -> Kept:
    """Return what is kept without reduced copies or with some of them, and why.

    `request`: of the plan without them; those with them are tried only where they are faster.  Of several that take
    nearly as long the smallest is taken.
    """
    if keeps.promise is None:
        return keeps
    refused = [f"autocache: not {one.place.name}: {one.too_large}" for one in copies if one.too_large]
    copies = [one for one in copies if one.seconds < math.inf]
    fastest = min((one.seconds for one in copies), default=math.inf)
    order = sorted(copies, key=lambda one: (one.seconds > (1 + LEAST_GAIN) * fastest, one.nbytes, one.seconds))
    times = f"{', '.join(one.told() for one in order)}, against {keeps.promise.seconds:.3g} s without them"
    for one in order:
        if keeps.promise.seconds < WORTH * one.seconds:
            continue
        try:
            tried = _noted(request, one.plan, cache)
        except PecanError as error:  # of the store, or of the process that tries
            tried = CopiesTried(error.message)
        if not tried.refused:
            said = f"autocache: reduced copies: {times}; results beside those: {'; '.join(tried.told)}"
            return replace(one.keeps, said=(*one.keeps.said, *refused, said), decoders=(one.place.name,))
        refused.append(f"autocache: not {one.place.name}: {tried.refused}")
    if order:
        refused.append(f"autocache: no reduced copies: {times}")
    return replace(keeps, said=(*keeps.said, *refused))


def _noted(request: OrderRequest, plan: Plan, cache: Cache) -> CopiesTried:
    """Return what a trial shows; without a user's check it is written down in the cache's folder for later jobs."""
    if request.check is not None:
        return try_copies(request, plan)
    note = note_of(request, plan)
    with EntryStore(cache.folder, max_bytes=cache.max_bytes) as store:
        tried = _from_json(store.noted(note))
        if tried is None:
            tried = try_copies(request, plan)
            if tried.refused != NO_TIME:
                store.note(note, json.dumps(asdict(tried)))
    return tried


def note_of(request: OrderRequest, plan: Plan) -> str:
    """Return under which note lies what a trial of a plan shows: of these functions, and of the data as it lies there.

    With other photographs in the same place others are tried, as another order is looked for.
    """
    looks = json.dumps([look_of(source) for source in request.plan.sources()])
    data = hashlib.blake2b(looks.encode(), digest_size=16).hexdigest()
    return f"copies {prefix_key(plan, request.engine, request.seed)} {data}"


def _from_json(text: str | None) -> CopiesTried | None:
    """Return what a note says; None where there is none, or one of another version."""
    try:
        found = json.loads(text or "")
        return CopiesTried(str(found["refused"]), tuple(str(one) for one in found["told"]))
    except (KeyError, TypeError, ValueError):
        return None


def try_copies(request: OrderRequest, copies: Plan) -> CopiesTried:
    """Run a request's plan, and the same with reduced copies, on the same elements, as far as there is time."""
    if may_run_apart(request) and can_be_sent((request, copies)):
        return call_in_subprocess(_tried, request, copies, engine=request.engine, seconds=request.seconds)
    return _tried(request, copies)


def _tried(request: OrderRequest, copies: Plan) -> CopiesTried:
    until = time.perf_counter() + request.seconds
    pairs, count = RewrittenElements(), 0
    with undisturbed(request.plan):
        usual, other = (_items(private_copy(plan), request, until) for plan in (request.plan, copies))
        for before, after in itertools.islice(zip(usual, other, strict=False), COMPARED):
            if (before.lease.key, before.element) != (after.lease.key, after.element):
                return CopiesTried(f"{before.where()} or {after.where()} fails with them, or without them, alone")
            if request.check is not None and (why := refused_by_check(request.check, before.value, after.value)):
                return CopiesTried(why)
            pairs.add(before.value, after.value)
            count += 1
    refused = NO_TIME if count < LEAST_ELEMENTS else pairs.told_refused()
    return CopiesTried(refused, tuple(one.told() for one in pairs.differences()))


def _items(plan: Plan, request: OrderRequest, until: float) -> Iterator[Item]:
    """Yield what a plan makes of the first elements, before it puts any into batches."""
    ops = without_buffers(plan).ops
    end = next((at for at, op in enumerate(ops) if not isinstance(op, (ElementOp, Autocache))), len(ops))
    plan = replace(plan, ops=tuple(op for op in ops[:end] if isinstance(op, ElementOp)))
    sources = [Bounded(source, COMPARED, until, time.perf_counter) for source in plan.sources()]
    leases = sample_leases(plan, sources, COMPARED, spread=not plan_shape(plan).serial)
    options = EngineOptions(seed=request.seed, order="strict", on_error="skip")
    stream = ItemStream(plan, sources, options, leases, UndeliveredPositions(), pool=None, call=complete_call)
    return (item for item in stream.items() if item is not None)
