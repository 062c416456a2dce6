"""What an order gains is told, and judged, of the whole pipeline.

A stretch that takes the share f of all time and becomes s times as fast makes the whole 1 / (1 - f (1 - 1/s)) times as
fast.  The whole is timed by itself: some elements are read and run through every operator, batching included.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from pecan_ray.autoorder.adopted import NOTHING_TAKEN_OVER, Refused, StretchOrder
from pecan_ray.autoorder.bounded_source import Bounded
from pecan_ray.autoorder.in_rows import RULE, InRows
from pecan_ray.autoorder.stopwatch import LookClock, ProcessStopwatch, Stopwatch
from pecan_ray.engines.contract import EngineOptions
from pecan_ray.engines.inprocess import AllLeases
from pecan_ray.engines.positions import UndeliveredPositions
from pecan_ray.engines.python.complete_calls import complete_call
from pecan_ray.engines.python.stream import ItemStream
from pecan_ray.engines.registry import ENGINES
from pecan_ray.engines.slots import HeapSlots
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Join, Plan
from pecan_ray.plan.splits import Source
from pecan_ray.plan.stretches import stretches, without_buffers
from pecan_ray.reorder import auto_order

WORTH = 1.05
"""Speed-up of the whole pipeline below which the user's order stays."""
LEAST_SAVED_S = 3e-6
"""And the least that must be saved of an element's time: calls of Python differ by a microsecond or so."""
ELEMENTS = 48
"""Elements of each source that show what the whole takes."""
LONGEST_S = 1.0
BUILT_S = 1.0
"""A graph of all is not begun with less time than that."""

NOT_RUN = (
    "there was no time to run the whole pipeline: its gain is that of reading and of the operators that were sampled"
)


def whole_seconds(plan: Plan, engine: EngineName, seed: int, until: float, clock: LookClock) -> float | None:
    """Return the seconds that a plan takes for an element of its sources; None where there is no time to tell."""
    plan, now = without_buffers(plan), clock()
    options = EngineOptions(seed=seed, order="strict", on_error="skip")
    if ENGINES[engine].framework is not None:
        sources = [_first(source, until, clock) for source in plan.sources()]
        return _graph_seconds(plan, engine, sources, options) if now + BUILT_S < until else None
    sources = [_first(source, min(until, now + LONGEST_S), clock) for source in plan.sources()]
    leases = AllLeases(sources, epoch=0, repetitions=1)
    stream = ItemStream(plan, sources, options, leases, UndeliveredPositions(), pool=None, call=complete_call)
    items, stopwatch, seconds = stream.items(), Stopwatch(), 0.0
    while True:
        stopwatch.start()
        ended = next(items, stream) is stream
        seconds += stopwatch.stop()
        if ended:
            break
    elements = sum(source.elements for source in sources)
    return seconds / elements if elements else None


def _first(source: Source, until: float, clock: LookClock) -> Bounded:
    return Bounded(source, ELEMENTS, until, clock, exactly=True)


def _graph_seconds(plan: Plan, engine: EngineName, sources: Sequence[Bounded], options: EngineOptions) -> float | None:
    """Return the seconds of all threads for an element, from when the graph is built; None where it was too late."""
    stopwatch, began = ProcessStopwatch(), list[Bounded]()

    def begin(source: Bounded) -> None:
        if not began:
            began.append(source)
            stopwatch.start()

    for source in sources:
        source.begun = functools.partial(begin, source)
    running = ENGINES[engine].load().build(plan, sources, options, HeapSlots())
    try:
        for produced in running.batches(AllLeases(sources, epoch=0, repetitions=1)):
            if produced.slot is not None:
                produced.slot.release()
        seconds = stopwatch.stop() if began else 0.0
    finally:
        running.close()
    elements = sum(source.elements for source in sources)
    return seconds / elements if began else None


def weighed(plan: Plan, orders: Sequence[StretchOrder], seconds: float | None) -> list[StretchOrder]:
    """Return the orders with their shares of the whole; the user's, where all of them together gain too little.

    What decoders take over in the user's order has to be worth it by itself, or together with the other orders; and
    those have to be worth it beside that.  `seconds` is what the whole takes for an element of the sources; None: the
    longest that is known of a part.
    """
    told = [_told(plan, one) for one in orders]
    parts = [(one.sample.reading_s or 0.0) + own for one, own in zip(orders, told, strict=True)]
    whole = max(seconds or max(parts, default=0.0), sum(told))
    shared = [replace(one, share=own / whole if whole else 1.0) for one, own in zip(orders, told, strict=True)]
    if seconds is None:
        shared = [replace(one, notes=(*one.notes, NOT_RUN)) if one.speedup is not None else one for one in shared]
    judged = [one for one in shared if one.adopted.mode != "pecan" and one.speedup is not None]
    decoding, all_of_it = _left(judged, decoding_only=True), _left(judged)

    def worth(before: float, after: float) -> bool:
        return before / max(after, 1e-12) >= WORTH and (before - after) * whole >= LEAST_SAVED_S

    if not judged:
        return shared
    if not worth(1.0, all_of_it):
        return [_left_alone(one, 1.0 / all_of_it) if one in judged else one for one in shared]
    if worth(1.0, decoding) and not worth(decoding, all_of_it):
        gain = decoding / all_of_it
        return [_left_alone(one, gain, decoding=True) if one in judged else one for one in shared]
    return shared


def _left(judged: Sequence[StretchOrder], *, decoding_only: bool = False) -> float:
    """Return the share of the whole's time that is left."""
    saved = 0.0
    for one in judged:
        found = one.users_taken_over.measured if decoding_only else None
        speedup = (found.speedup if found is not None else 1.0) if decoding_only else one.speedup or 1.0
        saved += one.share * (1.0 - 1.0 / max(speedup, 1e-12))
    return max(1.0 - saved, 1e-12)


def _left_alone(one: StretchOrder, gain: float, *, decoding: bool = False) -> StretchOrder:
    """Return what was found of a stretch whose new order is not worth it; `decoding`: what decoders take over is."""
    speedup = one.measured.speedup if decoding and one.measured is not None else one.speedup
    return left_as_written(one, _not_worth(one, gain, speedup), decoding=decoding)


def _not_worth(one: StretchOrder, gain: float, speedup: float | None) -> str:
    return (
        f"it would make the whole pipeline {gain:.2f} times as fast, which is not worth another order "
        f"({speedup:.2f}x for these operators, which take {one.share:.0%} of the time)"
    )


def with_maps_judged(one: StretchOrder, in_rows: InRows) -> StretchOrder:
    """Return what was found of a stretch, with its maps in rows where that is worth more than another order.

    Both together are not run: an element that fails in another order has to be run in the user's.
    """
    if in_rows.refused:
        one = replace(one, refused=(*one.refused, Refused(one.names, f"(rule {RULE}) {in_rows.refused}")))
    if not in_rows.ops or not (one.adopted.changed or one.taken_over.pushed):
        return replace(one, in_rows=in_rows)
    if in_rows.stretch_speedup > (one.speedup or 1.0):
        why = f"it gains less ({one.speedup or 1.0:.2f}x) than {', '.join(in_rows.ops)} on many elements at a time"
        return replace(left_as_written(one, f"{why} ({in_rows.stretch_speedup:.2f}x)"), in_rows=in_rows)
    why = f"(rule {RULE}) it gains less ({in_rows.stretch_speedup:.2f}x) than the new order"
    return replace(one, refused=(*one.refused, Refused(in_rows.ops, why)))


def left_as_written(one: StretchOrder, reason: str, *, decoding: bool = False) -> StretchOrder:
    """Return what was found of a stretch in the user's order; `decoding`: with what decoders take over in that."""
    user = auto_order(one.adopted.ops, "off", neutral_band=one.adopted.neutral_band)
    tried = (
        [one.adopted.order] if one.adopted.changed else [] if decoding else [ops.ops for ops in one.taken_over.pushed]
    )
    refused = (*one.refused, *(Refused(order, reason) for order in tried))
    users = one.users_taken_over if decoding else NOTHING_TAKEN_OVER
    return replace(
        one,
        adopted=user,
        measured=None,
        refused=refused,
        loads=(),
        differences=users.differences,
        taken_over=users,
        users_taken_over=users,
    )


def _told(plan: Plan, one: StretchOrder) -> float:
    """Return the seconds of a stretch's operators for an element of the plan's sources."""
    return (one.sample.seconds or 0.0) * _elements(plan, one.names)


def _elements(plan: Plan, names: tuple[str, ...]) -> float:
    """Return how many of all sources' elements enter a stretch: its branch's share."""
    if not isinstance(plan.head, Join):
        return 1.0
    head = plan.head
    for number, branch in enumerate(head.inputs):
        if any(stretch.names == names for stretch in stretches(branch)):
            share = head.weights[number] / sum(head.weights) if head.weights else 1.0 / len(head.inputs)
            return share * _elements(branch, names)
    return 1.0 / len(head.inputs) if head.kind == "zip" else 1.0
