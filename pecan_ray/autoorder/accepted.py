"""What AutoOrder has found: the orders that it adopted and refused, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from pecan_ray.autocache.decision import EpochEstimate
from pecan_ray.autoorder.call_in_subprocess import JobEnd
from pecan_ray.autoorder.element_moved import ColumnDifference
from pecan_ray.autoorder.exchange_check import ExchangeResult, OpOrder
from pecan_ray.autoorder.op_samples import OpSequenceSample
from pecan_ray.autoorder.rewrites import Pushed
from pecan_ray.autoorder.speed import WORTH, SpeedComparison
from pecan_ray.engines.counting import OpCount
from pecan_ray.job.codec import json_form
from pecan_ray.plan.op_sequences import OpOrders
from pecan_ray.plan.operators import Plan
from pecan_ray.reorder import Mode, Move, OrderPlan, auto_order


@dataclass(frozen=True)
class RejectedOrder:
    """An order that was proposed and not adopted."""

    order: OpOrder
    reason: str


@dataclass(frozen=True)
class TakenOver:
    """What decoders take over in one order of a stretch, as it has run on the sample."""

    pushed: tuple[Pushed, ...] = ()
    detected_changes: tuple[ColumnDifference, ...] = ()
    """By how much the columns of the results differ from those of the user's order, in which they take over nothing."""
    measured: SpeedComparison | None = None
    """The order without that against the order with it."""
    rejected: tuple[RejectedOrder, ...] = ()
    """What they could take over, and do not."""

    @property
    def decoders(self) -> tuple[str, ...]:
        """Names of the operators that take something over."""
        return tuple(one.decoder for one in self.pushed)


NOTHING_TAKEN_OVER = TakenOver()


@dataclass(frozen=True)
class OpSequenceOrder:
    """What became of one stretch of operators."""

    sample: OpSequenceSample
    accepted: OrderPlan
    """The order to run, which may be the user's."""
    policy_order: OrderPlan
    """What the policy answered first."""
    measured: SpeedComparison | None = None
    """The user's order against the adopted one, with what decoders take over in each; None: the user's, or no time."""
    rejected: tuple[RejectedOrder, ...] = ()
    notes: tuple[str, ...] = ()
    share: float = 1.0
    """Of the whole pipeline's time, what these operators take in the user's order."""
    exchanges: tuple[ExchangeResult, ...] = ()
    """What the exchanges of the adopted order change."""
    taken_over: TakenOver = NOTHING_TAKEN_OVER
    """What decoders take over in the adopted order, or that its maps run on many elements at a time."""
    users_taken_over: TakenOver = NOTHING_TAKEN_OVER
    """The same in the user's order."""

    @property
    def whole_speedup(self) -> float | None:
        """The whole pipeline's seconds in the user's order over those in the adopted one; None: not measured."""
        return None if self.speedup is None else whole_speedup(self.share, self.speedup)

    @property
    def speedup(self) -> float | None:
        """Seconds of these operators as the user wrote them over those of what is run; None: not measured.

        Orders are compared with what decoders take over in each, so that what they gain by that in the user's counts
        as well.
        """
        found = [one.speedup for one in (self.measured, self.users_taken_over.measured) if one is not None]
        return math.prod(found) if found else None

    @property
    def names(self) -> OpOrder:
        """The operators in the user's order."""
        return tuple(op.name for op in self.sample.ops)


# Made by annotations, none of which is `Any`: a file may be anybody's, and must not name what is called or unpickled.
STRETCHES_AS_JSON = json_form(tuple[OpSequenceOrder, ...])
"""How all that was found of stretches is written, and read again."""


def whole_speedup(share: float, speedup: float) -> float:
    """Return how many times as fast all becomes if a part that takes this share of the time becomes so much faster."""
    # Amdahl's law; 1e-12 stands for what takes no time at all.
    return 1.0 / max(1.0 - share * (1.0 - 1.0 / max(speedup, 1e-12)), 1e-12)


AS_WRITTEN = "AutoOrder left the order as it is written"
VALUES_MAY_DIFFER = 'mode "pecan" compares no values: those of this order may be others than those of yours'
NOTHING_TO_GAIN = "no operator that makes elements smaller could go before another one"
LEAST_SAVED_S = 3e-6
"""The least that must be saved of an element's time: calls of Python differ by a microsecond or so."""


def apply_pipeline_threshold(orders: Sequence[OpSequenceOrder]) -> list[OpSequenceOrder]:
    """Return the orders with their shares of all time; the user's, where one gains too little of that.

    All time is that of an element that has gone through most: reading it, and all operators on elements up to there.
    """
    took = [one.sample.seconds or 0.0 for one in orders]
    whole = max((one.sample.reading_s or 0.0) + own for one, own in zip(orders, took, strict=True))
    shares = [min(1.0, own / whole) if whole else 1.0 for own in took]
    return [_evaluate(replace(one, share=share), whole) for one, share in zip(orders, shares, strict=True)]


def _evaluate(one: OpSequenceOrder, whole: float) -> OpSequenceOrder:
    gain, users = one.whole_speedup, one.users_taken_over.measured
    # Mode "pecan" measures nothing, so there is nothing to judge by.
    if gain is None or one.accepted.mode == "pecan":
        return one
    if not _saves_time(whole, gain):
        return _as_written(one, _too_little(whole, gain), NOTHING_TAKEN_OVER)
    # Another order has to be worth it beside what decoders take over in the user's.
    decoding = 1.0 if users is None else whole_speedup(one.share, users.speedup)
    if one.accepted.changed and _saves_time(whole, decoding) and not _saves_time(whole / decoding, gain / decoding):
        return _as_written(one, _too_little(whole / decoding, gain / decoding), one.users_taken_over)
    return one


def _too_little(seconds: float, gain: float) -> str:
    """Say why a gain for what takes so long is not worth it."""
    told = f"it would make the whole pipeline {gain:.3f} times as fast, which is not worth another order: "
    if gain < WORTH:
        return f"{told}that needs {WORTH} times"
    saved = seconds * (1.0 - 1.0 / gain)
    return f"{told}of an element's {1e6 * seconds:.1f} us it saves {1e6 * saved:.1f}, and calls alone differ by as much"


def _as_written(one: OpSequenceOrder, too_little: str, taken_over: TakenOver) -> OpSequenceOrder:
    """Return what was found of a stretch in the user's order, with what decoders take over in that."""
    reason = f"{too_little} (these operators take {one.share:.0%} of the time)"
    tried = [one.accepted.order] if one.accepted.changed else [pushed.ops for pushed in one.taken_over.pushed]
    return replace(
        one,
        accepted=auto_order(one.accepted.ops, "off", neutral_band=one.accepted.neutral_band),
        measured=None,
        rejected=(*one.rejected, *(RejectedOrder(order, reason) for order in tried)),
        exchanges=(),
        taken_over=taken_over,
        users_taken_over=taken_over,
    )


def _saves_time(seconds: float, gain: float) -> bool:
    """Tell whether it is worth it that what takes so long becomes so many times as fast."""
    return gain >= WORTH and seconds * (1.0 - 1.0 / gain) >= LEAST_SAVED_S


@dataclass(frozen=True)
class Ordering:
    """A plan in its new order, and everything that was found on the way."""

    before: Plan
    plan: Plan
    mode: Mode
    sequences: tuple[OpSequenceOrder, ...] = ()
    """Those that were sampled."""
    seconds: float = 0.0
    """How long it took."""
    notes: tuple[str, ...] = ()
    final: bool = True
    """Whether a look with more time, or at more elements, would hardly find another order."""
    origin: str = ""
    """Where the order comes from, if not from a look just now."""
    decoders: tuple[str, ...] = ()
    """Operators that take over what directly follows them in the plan, which is told without that."""

    @property
    def changed(self) -> bool:
        """Return whether any operator has moved."""
        return [op.name for op in self.plan.all_ops()] != [op.name for op in self.before.all_ops()]

    def op_seconds(self) -> tuple[tuple[str, float], ...]:
        """Return the seconds that each operator took of an element of the source, in the sample's order.

        Empty where not all were measured: shares of the time would be wrong.
        """
        samples = [stretch.sample for stretch in self.sequences]
        if not samples or any(sample.seconds is None or not sample.elements for sample in samples):
            return ()
        return tuple(
            # Behind a filter an operator is given fewer elements than the source has, behind a flat_map more.
            (op.name, (op.seconds or 0.0) * op.elements_in / sample.elements)
            for sample in samples
            for op in sample.ops
        )

    def row_seconds(self) -> float | None:
        """Return the seconds of one thread for a row of a batch, in the order to run; None where nothing was measured.

        An estimate: what comes after the last stretch of operators is not in it, and neither is what was not measured.
        """
        last = self.sequences[-1] if self.sequences else None
        if last is None or last.sample.seconds is None or not all(op.measured for op in last.sample.ops):
            return None
        # It was sampled in the user's order, and runs in the one that was adopted.
        work = last.sample.seconds / (last.speedup or 1.0)
        # Filters and flat_maps decide how many rows an element of the source becomes.
        rows = math.prod(op.elements_out / op.elements_in for op in last.sample.ops)
        return (work + (last.sample.reading_s or 0.0)) / rows

    def summary(self) -> str:
        """Say in one line what was reordered; empty if nothing was even tried."""
        warning = f"; {VALUES_MAY_DIFFER}" if self.may_change_values else ""
        if self.origin:
            order = " -> ".join(op.name for op in self.plan.all_ops())
            runs = f"AutoOrder runs {order if self.changed else 'the order as it is written'}: {self.origin}"
            return f"{runs}{warning}"
        if not self.sequences:
            return self.notes[0] if not self.final else ""
        sampled = max(stretch.sample.elements for stretch in self.sequences)
        return f"{self._found()} (sampled {sampled} elements in {self.seconds:.1f} s){warning}"

    @property
    def may_change_values(self) -> bool:
        """Return whether the mode asks nothing of values, and there is another order."""
        return self.mode == "pecan" and self.changed

    def _found(self) -> str:
        """Say what was adopted, or why nothing was."""
        told = [_describe_order(stretch) for stretch in self.sequences if stretch.accepted.changed]
        if told:
            return "; ".join(told)
        if self.decoders:
            return "; ".join([f"{AS_WRITTEN}, and rewrote it", *filter(None, map(_describe_gain, self.sequences))])
        reasons = [f"{' -> '.join(one.order)}: {one.reason}" for stretch in self.sequences for one in stretch.rejected]
        notes = [note for stretch in self.sequences for note in stretch.notes]
        return f"{AS_WRITTEN}: {[*reasons, *notes, NOTHING_TO_GAIN][0]}"


def _describe_gain(stretch: OpSequenceOrder) -> str:
    """Say what is rewritten in a stretch, and what that gains; empty if nothing is."""
    rewritten = " and ".join(one.why for one in stretch.taken_over.pushed)
    gain = stretch.whole_speedup
    return rewritten and f"{rewritten}{'' if gain is None else f' (the pipeline {gain:.2f}x)'}"


def _describe_order(stretch: OpSequenceOrder) -> str:
    """Say what moved in a stretch, and what that gains."""
    plan = stretch.accepted
    moves = ", ".join(f"{move.name} {_where(plan, move)}" for move in plan.moves)
    gain = ""
    if stretch.measured is not None and stretch.whole_speedup is not None:
        gain = f" (the pipeline {stretch.whole_speedup:.2f}x, measured on {stretch.measured.elements} elements)"
    return f"AutoOrder moved {moves}{gain}"


def _where(plan: OrderPlan, move: Move) -> str:
    return f"before {plan.order[move.to + 1]}" if move.to < move.from_ else f"behind {plan.order[move.to - 1]}"


class ReorderResult(NamedTuple):
    """What a look beside a job has found."""

    plan: Plan | None
    """In another order than before; None: it stays."""
    order: OpOrders
    reason: str
    """Why."""
    decoders: tuple[str, ...] = ()
    order_text: str = ""
    """All that was found, as JSON; empty: as before."""
    dropped: bool = False
    """The order that the job runs gives other results than the user's, which is run at once in its place."""


ReorderAfterEpoch: TypeAlias = Callable[[Mapping[str, OpCount]], ReorderResult | None]
"""From what went through operators in the first epoch to the plan in another order; None: it stays."""


@dataclass(frozen=True)
class Ordered:
    """What AutoOrder has decided."""

    plan: Plan | None = None
    """To run in the place of the user's; None: that is run as it is written."""
    order: OpOrders = ()
    """Of the operators, before decoders took over what follows them."""
    notes: tuple[str, ...] = ()
    """What it changed, for people."""
    op_seconds: tuple[tuple[str, float], ...] = ()
    """Seconds that each operator takes of an element of the source; empty where not all were measured."""
    row_seconds: float | None = None
    """Seconds of one thread for a row of a batch; None: not measured, infinite: the look is too slow for its job."""
    reorder_after_epoch: ReorderAfterEpoch | None = None
    background_search: Callable[[], ReorderResult | None] | None = None
    """Looks beside the job, for an order or at the kept one that it runs, and returns what it has found."""
    on_fallback: Callable[[str], None] | None = None
    """To be told that a job went back to the user's order, and why."""
    decoders: tuple[str, ...] = ()
    """Those that did."""
    epoch_estimate: EpochEstimate | None = None
    """What an epoch takes with what is kept at `autocache` points."""
    order_text: Callable[[], str] = str
    """Returns what was found, operator by operator, as JSON."""
    end: JobEnd = field(default_factory=JobEnd)
    """To be told when the job ends, since what looks beside it ends then."""
