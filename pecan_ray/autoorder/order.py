"""AutoOrder at work: sample a plan, ask the policy for orders, try them on the sample, adopt one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import get_args

from pecan_ray.autoorder.call_in_subprocess import call_in_subprocess, needs_own_process
from pecan_ray.autoorder.facts import OpSample, StretchSample
from pecan_ray.autoorder.op_runner import Limits
from pecan_ray.autoorder.push_down import push_down, scattered
from pecan_ray.autoorder.sample import (
    check_limits,
    load_engine,
    private_copy,
    sample_stretch,
    undisturbed,
    with_ops_of,
)
from pecan_ray.autoorder.trial import MIN_GAIN, Check, Comparison, Order, Trial
from pecan_ray.errors import ColumnError, PlanError
from pecan_ray.options import Config, EngineName
from pecan_ray.plan.operators import Plan
from pecan_ray.plan.stretches import Stretch, reordered, stretches
from pecan_ray.reorder import NEUTRAL_BAND, Mode, Move, OrderPlan, auto_order, brought_together, candidates, predict
from pecan_ray.reorder.policy import Pair

logger = logging.getLogger("pecan_ray")

PROFILE_SHARE = 0.5
"""Share of the time that profiling may take; the rest is for trying other orders."""
ENOUGH_S = 2.0
"""Where operators are slow, few elements are sampled after so long: the trainer waits for its first batch."""
LEAST_ELEMENTS = 8
"""On fewer elements no time can be measured."""
MOST_MEASURED = 3
MOST_SUSPECTS = 8
"""Exchanges that are left out one at a time, to see which has changed the form of the results."""
WORTH_A_TRIAL = 1.005
"""An estimated speed-up below this is not measured."""


@dataclass(frozen=True)
class Refused:
    """An order that was proposed and not adopted."""

    order: Order
    reason: str


@dataclass(frozen=True)
class StretchOrder:
    """What became of one stretch of operators."""

    sample: StretchSample
    adopted: OrderPlan
    """The order to run, which may be the user's."""
    proposed: OrderPlan
    """What the policy answered first."""
    measured: Comparison | None = None
    """The user's order against the adopted one; None: it is the user's, or there was no time."""
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> Order:
        """The operators in the user's order."""
        return tuple(op.name for op in self.sample.ops)


@dataclass(frozen=True)
class Ordering:
    """A plan in its new order, and everything that was found on the way."""

    before: Plan
    plan: Plan
    mode: Mode
    stretches: tuple[StretchOrder, ...] = ()
    """Those that were sampled."""
    seconds: float = 0.0
    """How long it took."""
    notes: tuple[str, ...] = ()
    failed: bool = False
    """Whether the sample ended with an error."""

    @property
    def changed(self) -> bool:
        """Whether any operator has moved."""
        return any(stretch.adopted.changed for stretch in self.stretches)

    def summary(self) -> str:
        """Say in one line what was reordered; empty if nothing was even tried."""
        if self.failed:
            return self.notes[0]
        if not self.stretches:
            return ""
        told = [_told(stretch) for stretch in self.stretches if stretch.adopted.changed]
        sampled = max(stretch.sample.elements for stretch in self.stretches)
        reasons = [stretch.refused[0].reason for stretch in self.stretches if stretch.refused]
        why = f": {reasons[0]}" if reasons else ""
        text = "; ".join(told) if told else f"AutoOrder left the order as it is written{why}"
        return f"{text} (sampled {sampled} elements in {self.seconds:.1f} s)"


def order_plan(
    plan: Plan,
    engine: EngineName = "python",
    mode: Mode = "cost",
    elements: int = 300,
    seconds: float = 20.0,
    check: Check | None = None,
    *,
    seed: int = 0,
    skip_bad: bool = False,
    sample_all: bool = False,
    known: Sequence[StretchOrder] = (),
) -> Ordering:
    """Return the plan with its operators in the order that AutoOrder adopts.

    Another order is adopted only if it has run on the sample without an error, with results of the same form
    (columns, dtypes, dimensions, shapes where they were fixed) that `check(before, after)` accepts, and in mode
    "cost" and "strict" measurably faster.  In mode "strict" its results are equal to the user's.  Stretches with
    fewer than two operators that may move are not sampled, unless `sample_all`; those in `known` are not sampled again.

    Raises `ElementError` for an element that the user's order cannot take, unless `skip_bad`.
    """
    check_limits(elements, seconds)
    if mode not in get_args(Mode):
        raise PlanError(f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, but got {mode!r}.")
    began = time.perf_counter()
    wanted = [one for one in stretches(plan) if sample_all or (mode != "off" and one.movable > 1)]
    if not wanted:
        return Ordering(plan, plan, mode, notes=_pushed(plan, engine, mode))
    found = {one.names: one for one in known}
    missing = [one.names for one in wanted if one.names not in found]
    asked = (plan, missing, engine, mode, seed, elements, seconds, check, skip_bad)
    if needs_own_process(engine):
        made = call_in_subprocess(_orders, *asked, engine=engine, seconds=seconds)
    else:
        made = _orders(*asked)
    found.update({one.names: replace(one, sample=with_ops_of(plan, one.sample)) for one in made})
    orders = [found[one.names] for one in wanted]
    after = reordered(plan, {one.names: one.adopted.order for one in orders})
    notes = [note for one in orders for note in (*one.sample.notes, *one.notes)]
    return Ordering(
        before=plan,
        plan=after,
        mode=mode,
        stretches=tuple(orders),
        seconds=time.perf_counter() - began,
        notes=tuple(dict.fromkeys([*notes, *_pushed(after, engine, mode)])),
    )


def _pushed(plan: Plan, engine: EngineName, mode: Mode) -> tuple[str, ...]:
    """Say what the decoder takes over when the plan is run: `push_down` merges operators behind the ordering."""
    return tuple(one.told() for one in push_down(plan, engine)[1]) if mode == "cost" else ()


def _orders(
    plan: Plan,
    names: Sequence[Order],
    engine: EngineName,
    mode: Mode,
    seed: int,
    elements: int,
    seconds: float,
    check: Check | None,
    skip_bad: bool,
) -> list[StretchOrder]:
    """Order the stretches of these operators, in this process."""
    load_engine(engine)
    began = time.perf_counter()
    copies = {one.names: one for one in stretches(private_copy(plan))}
    found = []
    with undisturbed():
        for number, one in enumerate(names):
            now = time.perf_counter()
            limits = Limits(elements, now + (began + seconds - now) / (len(names) - number))
            found.append(_order_stretch(copies[one], engine, mode, seed, limits, check, skip_bad))
    return found


def order_for_job(plan: Plan, engine: EngineName, seed: int, config: Config, *, skip_bad: bool = False) -> Ordering:
    """Return what `order_plan` does under a pipeline's settings, or the plan as it is where the sample fails.

    The job then shows that error itself, where and as it should; or runs, on workers that have what this process
    lacks (files, packages).  Only `ColumnError` is raised at once.
    """
    try:
        return order_plan(
            plan,
            engine,
            config.reorder,
            config.sample_elements,
            config.sample_seconds,
            config.reorder_check,
            seed=seed,
            skip_bad=skip_bad,
        )
    except ColumnError:
        raise
    except Exception as error:  # whatever a user's function, a source or a framework can raise
        reason = f"AutoOrder left the order as it is written, since its sample ended with {type(error).__name__}"
        logger.warning("%s: %s", reason, error)
        return Ordering(
            plan, plan, config.reorder, notes=(f"{reason}: {str(error).partition(chr(10))[0]}",), failed=True
        )


def _order_stretch(
    stretch: Stretch, engine: EngineName, mode: Mode, seed: int, limits: Limits, check: Check | None, skip_bad: bool
) -> StretchOrder:
    now = time.perf_counter()
    half = now + PROFILE_SHARE * (limits.deadline - now)
    first = replace(limits, deadline=half, enough=now + ENOUGH_S)
    sampled = sample_stretch(stretch, engine, seed, first, skip_bad=skip_bad)
    sampled.limits = limits
    sample = sampled.profile()
    user = auto_order(sample.profiled, "off", neutral_band=NEUTRAL_BAND)
    if mode == "off":
        return StretchOrder(sample, user, user)
    if not sample.complete:
        return StretchOrder(sample, user, user, notes=(_why_incomplete(sample),))
    if mode != "paper" and sample.elements < LEAST_ELEMENTS:
        note = f"{sample.elements} elements are too few to measure times on: the order stays as it is written"
        return StretchOrder(sample, user, user, notes=(note,))
    trial = Trial(sampled, check, equal_results=mode == "strict", pushed=mode == "cost")
    return _Search(sample, trial, mode, sampled.profile, lambda order: _mergeable(stretch, order, engine)).run()


def _mergeable(stretch: Stretch, order: Order, engine: EngineName) -> Iterator[tuple[str, ...]]:
    """Yield the operators that the decoder would take over if they came directly behind it in an order."""
    ops = {op.name: op for op in stretch.ops}
    return scattered([ops[name] for name in order], engine)


def _why_incomplete(sample: StretchSample) -> str:
    missing = next(op for op in sample.ops if not op.measured)
    if missing.elements_in and not missing.elements_out:
        why = f"{missing.name!r} let none of {missing.elements_in} elements through"
    elif missing.elements_in:
        why = f"the elements around {missing.name!r} hold no bytes"
    else:
        why = f"{missing.name!r} was not reached"
    return f"{why}: the order stays as it is written"


class _Search:
    """Tries the policy's orders on the sample, the best first, until one is adopted."""

    def __init__(
        self,
        sample: StretchSample,
        trial: Trial,
        mode: Mode,
        again: Callable[[], StretchSample],
        mergeable: Callable[[Order], Iterator[tuple[str, ...]]],
    ) -> None:
        self._sample, self._trial, self._mode, self._again = sample, trial, mode, again
        self._mergeable = mergeable
        self._forbidden = list(draws_would_change(sample.ops))
        self._refused: dict[Order, str] = {}
        self._tried: set[Order] = set()
        self._notes: list[str] = []
        self._user: Order = tuple(op.name for op in sample.ops)

    def run(self) -> StretchOrder:
        """Return the best order that passed, or the user's."""
        proposed = next(self._candidates(self._sample))
        adopted: OrderPlan | None = None
        measured: Comparison | None = None
        for _ in range(MOST_MEASURED):
            plan = None if adopted is not None and self._mode == "paper" else self._next(adopted)
            if plan is None:
                break
            self._tried.add(plan.order)
            found = self._trial.compare(plan.order)
            refused = self._too_slow(found) or self._rest_refused(plan.order)
            if refused:
                self._refused[plan.order] = refused
            elif measured is None or (found is not None and found.speedup > measured.speedup):
                adopted, measured = plan, found
        return StretchOrder(
            sample=self._sample,
            adopted=adopted or auto_order(self._sample.profiled, "off", neutral_band=NEUTRAL_BAND),
            proposed=proposed,
            measured=measured,
            refused=tuple(Refused(order, reason) for order, reason in self._refused.items()),
            notes=tuple(self._notes),
        )

    def _candidates(self, sample: StretchSample, forbidden: Sequence[Pair] | None = None) -> Iterator[OrderPlan]:
        return candidates(
            sample.profiled,
            self._mode,
            commutes=self._trial.commutes if self._mode == "strict" else None,
            forbidden=self._forbidden if forbidden is None else forbidden,
            neutral_band=NEUTRAL_BAND,
        )

    def _next(self, adopted: OrderPlan | None) -> OrderPlan | None:
        """Return the best order that was not tried and that the first elements do not refuse.

        Times that were measured in other orders count too.  Behind an adopted order only a better one is worth it.
        """
        while True:
            known = len(self._forbidden)
            plan = self._next_allowed(adopted)
            if plan is not None or len(self._forbidden) == known:
                return plan

    def _next_allowed(self, adopted: OrderPlan | None) -> OrderPlan | None:
        """Return the next order; None too where a failure has shown which exchange to leave out from now on."""
        sample = self._again()
        bound = WORTH_A_TRIAL if adopted is None else (1.0 + MIN_GAIN) * _estimate(sample, adopted.order)
        if (plan := self._merging(sample)) is not None:
            return plan
        for plan in self._candidates(sample):
            if not plan.changed or (adopted is not None and plan.order == adopted.order):
                return None
            if plan.order in self._tried or plan.order in self._refused:
                continue
            if self._mode != "paper" and _estimate(sample, plan.order) < bound:
                if adopted is not None:
                    return None
                self._refused[plan.order] = "it is estimated to gain almost nothing"
            elif refused := self._trial.look(plan.order):
                self._refused[plan.order] = refused
                if suspect := self._suspect(plan):
                    self._forbidden.append(suspect)
                    return None
            elif pairs := self._slowing(plan, sample):
                self._refused[plan.order] = f"{_and(self._trial.slowed)} would become slower in it"
                self._forbidden += pairs
                return None
            else:
                return plan
        return None

    def _merging(self, sample: StretchSample) -> OrderPlan | None:
        """Return the best order in which the decoder takes over more than in the user's, unless it was tried.

        Estimates know nothing of what that gains: whatever they say, it is measured.
        """
        if self._mode != "cost":
            return None
        best = next(self._candidates(sample))
        together = (brought_together(best, names) for names in self._mergeable(best.order))
        plan = next((plan for plan in together if plan is not None), best)
        if set(self._mergeable(self._user)) <= set(self._mergeable(plan.order)):
            return None
        if plan.order in self._tried or plan.order in self._refused:
            return None
        if refused := self._trial.look(plan.order):
            self._refused[plan.order] = refused
            if suspect := self._suspect(plan):
                self._forbidden.append(suspect)
            return None
        return plan

    def _slowing(self, plan: OrderPlan, sample: StretchSample) -> list[Pair]:
        """Return the exchanges to leave out of an order for having made operators slow; none where it is still best.

        What slows them down was put before them: an operator that changes a dtype, where there is one; of several the
        one without which the best is left, and the next look tells whether it was the right one.
        """
        slowed = self._trial.slowed
        if self._mode == "paper" or not slowed:
            return []
        before = {name: put_before(name, self._user, plan.order) for name in slowed}
        culprits = {other for early in before.values() for other in early}
        best, found = _estimate(sample, plan.order, sum(slowed.values())), []
        for culprit in culprits & self._trial.recasting or culprits:
            pairs = [(name, culprit) for name in slowed if culprit in before[name]]
            other = next(self._candidates(sample, [*self._forbidden, *pairs]))
            if other.order != plan.order and (gain := _estimate(sample, other.order)) > best:
                best, found = gain, pairs
        return found

    def _suspect(self, plan: OrderPlan) -> Pair | None:
        """Return the exchange to leave out behind an order that was refused, so that the others can still be made."""
        if self._trial.failed:
            return suspected_exchange(self._trial.failed, self._user, plan.order)
        for pair in exchanges(self._user, plan.order)[:MOST_SUSPECTS]:
            other = next(self._candidates(self._sample, [*self._forbidden, pair]))
            if other.changed and other.order not in self._refused and not self._trial.look(other.order):
                return pair
        return None

    def _too_slow(self, found: Comparison | None) -> str:
        if self._mode == "paper":
            if found is None:
                self._notes.append("there was no time to measure the new order")
            return ""
        if found is None:
            return "there was no time to measure it"
        if found.faster:
            return ""
        return f"it is not faster: {found.speedup:.2f}x (±{found.error:.2f}) measured on {found.elements} elements"

    def _rest_refused(self, order: Order) -> str:
        refused, ran = self._trial.verify_rest(order)
        if not refused and ran < self._sample.elements:
            self._notes.append(f"the new order was verified on {ran} of {self._sample.elements} elements")
        return refused


def _and(names: Iterable[str]) -> str:
    return " and ".join(map(repr, names))


def _estimate(sample: StretchSample, order: Order, lost_s: float = 0.0) -> float:
    """Return the estimated speed-up of an order, by all times measured so far and what it is known to lose."""
    profiled = sample.profiled
    before, after = (
        sum(load.seconds or 0.0 for load in predict(profiled, names)) for names in ([op.name for op in profiled], order)
    )
    return before / (after + lost_s) if after + lost_s else 1.0


def draws_would_change(ops: Sequence[OpSample]) -> Iterator[Pair]:
    """Yield pairs that must stay as they are for the sake of random numbers and of the order of outputs.

    Behind a flat_map a function draws for each output, before it once for all of them; and two flat_maps would
    yield their outputs in another order.
    """
    for first, second in combinations(ops, 2):
        if (first.spreads and (second.spreads or second.random)) or (second.spreads and first.random):
            yield first.name, second.name


def exchanges(user: Order, order: Order) -> list[Pair]:
    """Return the pairs, as in the user's order, that another order has the other way round."""
    place = {name: number for number, name in enumerate(order)}
    return [(first, second) for first, second in combinations(user, 2) if place[first] > place[second]]


def suspected_exchange(failed: str, user: Order, order: Order) -> Pair | None:
    """Return the exchange that has most likely made an operator fail in an order, as a pair in the user's order.

    First suspected is the nearest operator that was put before it and changes what it is given; where none was, the
    nearest one whose work it now lacks.
    """
    if failed not in user:
        return None
    if early := put_before(failed, user, order):
        return failed, early[-1]
    lacking = [other for other in user[: user.index(failed)] if other in order[order.index(failed) + 1 :]]
    return (lacking[-1], failed) if lacking else None


def put_before(name: str, user: Order, order: Order) -> Order:
    """Return the operators that come before one in an order and behind it in the user's."""
    behind = user[user.index(name) + 1 :]
    return tuple(other for other in order[: order.index(name)] if other in behind)


def _told(stretch: StretchOrder) -> str:
    """Say what moved in a stretch, and what that gains."""
    plan = stretch.adopted
    moves = ", ".join(f"{move.name} {_where(plan, move)}" for move in plan.moves)
    gains = [f"{plan.expected_speedup:.1f}x expected"] if plan.expected_speedup else []
    if stretch.measured is not None:
        gains.append(f"{stretch.measured.speedup:.1f}x measured on {stretch.measured.elements} elements")
    return f"AutoOrder moved {moves}" + (f" ({', '.join(gains)})" if gains else "")


def _where(plan: OrderPlan, move: Move) -> str:
    place = plan.order.index(move.name)
    if move.to < move.from_:
        return f"before {plan.order[place + 1]}"
    return f"behind {plan.order[place - 1]}"
