"""The search on a sampled stretch: the policy's orders are tried, the best first, until one is adopted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from pecan_ray.autoorder.adopted import NOTHING_TAKEN_OVER, Refused, StretchOrder, TakenOver
from pecan_ray.autoorder.facts import OpSample, StretchSample
from pecan_ray.autoorder.speed import MIN_GAIN, SpeedComparison
from pecan_ray.autoorder.trial import Trial
from pecan_ray.autoorder.value_check import OpOrder, exchanges
from pecan_ray.reorder import (
    EQUAL_RESULTS,
    NEUTRAL_BAND,
    Mode,
    OrderPlan,
    auto_order,
    brought_together,
    candidates,
    closer,
    in_order,
    predict,
    undone,
)
from pecan_ray.reorder.policy import Pair

MOST_MEASURED = 3
"""Orders that are run against the user's."""
MOST_SUSPECTS = 8
"""Exchanges that are left out one at a time, to see which has changed the form of the results."""
WORTH_A_TRIAL = 1.005
"""An estimated speed-up below this is not measured."""
DOUBTFUL = 0.05
"""An exchange that is estimated to gain less than this share is left out once, to see whether it is missed."""
MOST_DOUBTED = 3
MISSED = 1.01
"""It is if the order is certainly faster with it, by so many times."""
DOUBTING_S = 0.5
"""Measured seconds for one such exchange."""


class OrderSearch:
    """Tries the policy's orders on the sample, the best first, until one is adopted."""

    def __init__(
        self,
        sample: StretchSample,
        trial: Trial,
        mode: Mode,
        again: Callable[[], StretchSample],
        mergeable: Callable[[OpOrder], Iterator[tuple[str, ...]]],
    ) -> None:
        self._sample, self._trial, self._mode, self._again = sample, trial, mode, again
        self._mergeable = mergeable
        self._forbidden = list(draws_would_change(sample.ops))
        self._refused: dict[OpOrder, str] = {}
        self._tried: set[OpOrder] = set()
        self._notes: list[str] = []
        self._user: OpOrder = tuple(op.name for op in sample.ops)

    def run(self) -> StretchOrder:
        """Return the best order that passed, or the user's.

        Orders have their turn before what decoders take over in the user's: there may be no time for both, and in a
        better order they take over as much.  Not before a warp: it is worth more, and most of it has no order.
        """
        proposed = next(self._candidates(self._sample))
        early = self._trial.measure_taken_over(self._user) if self._trial.warps(self._user) else None
        adopted, measured = self._search()
        users = self._trial.measure_taken_over(self._user) if early is None else early
        if adopted is not None and adopted.changed:
            adopted, measured, users = self._beside_decoders(adopted, measured, users)
        return self._found(proposed, adopted, measured, users)

    def _search(self) -> tuple[OrderPlan | None, SpeedComparison | None]:
        """Return the fastest order that passed, and how it compares with the user's; None where none did."""
        adopted: OrderPlan | None = None
        measured: SpeedComparison | None = None
        for _ in range(MOST_MEASURED):
            plan = None if adopted is not None and self._mode == "paper" else self._next(adopted)
            if plan is None:
                break
            self._tried.add(plan.order)
            found, failed = self._compare(plan.order)
            refused = failed or self._too_slow(found) or self._rest_refused(plan.order)
            if refused:
                self._refused[plan.order] = refused
            elif adopted is None or self._better(plan.order, found, adopted.order, measured):
                adopted, measured = plan, found
        if adopted is not None and measured is not None and self._mode != "paper":
            adopted, measured = self._without_idle_exchanges(adopted, measured)
        return adopted, measured

    def _compare(self, order: OpOrder) -> tuple[SpeedComparison | None, str]:
        """Compare an order with the user's.

        Again without what decoders take over in this one alone, where that is what makes it slow.
        """
        found, failed = self._trial.compare(order)
        if self._mode == "paper" or failed or not self._too_slow(found) or not self._trial.only_here(order):
            return found, failed
        pushed = self._trial.taken_over(order).pushed
        return (found, "") if self._trial.measure_taken_over(order).pushed == pushed else self._trial.compare(order)

    def _better(
        self, order: OpOrder, found: SpeedComparison | None, adopted: OpOrder, measured: SpeedComparison | None
    ) -> bool:
        """Tell whether an order is certainly faster than the one that was adopted, both compared with the user's."""
        if found is None or measured is None or found.speedup < (1.0 + MIN_GAIN) * measured.speedup:
            return False
        if found.faster_than(measured):
            return True
        directly = self._trial.compare(order, adopted, DOUBTING_S)[0]
        return directly is not None and directly.faster

    def _found(
        self, proposed: OrderPlan, adopted: OrderPlan | None, measured: SpeedComparison | None, users: TakenOver
    ) -> StretchOrder:
        changed = adopted is not None and adopted.changed
        taken_over = self._trial.taken_over(adopted.order) if adopted is not None and changed else users
        refused = [Refused(order, reason) for order, reason in self._refused.items()]
        return StretchOrder(
            sample=self._sample,
            adopted=adopted or auto_order(self._sample.profiled, "off", neutral_band=NEUTRAL_BAND),
            proposed=proposed,
            measured=measured,
            refused=(*refused, *dict.fromkeys([*users.refused, *taken_over.refused])),
            notes=tuple(self._notes),
            loads=self._trial.loads(adopted.order) if adopted is not None and changed else (),
            differences=taken_over.differences
            or (self._trial.differences(adopted.order) if adopted and changed else ()),
            taken_over=taken_over,
            users_taken_over=users,
            hurried=not (changed or taken_over.pushed) and not self._trial.in_time(),
        )

    def _beside_decoders(
        self, plan: OrderPlan, found: SpeedComparison | None, users: TakenOver
    ) -> tuple[OrderPlan | None, SpeedComparison | None, TakenOver]:
        """Return the order, if it is worth it beside what decoders take over in the user's, the comparison, and that.

        Where there is no time for that, it was faster than the order that the user has written.
        """
        pushed = self._trial.taken_over(plan.order).pushed
        if self._trial.measure_taken_over(plan.order).pushed == pushed and not users.pushed:
            return plan, found, users
        again, failed = self._trial.compare(plan.order)
        if again is None and not failed and self._trial.taken_over(plan.order).pushed == pushed:
            return plan, found, NOTHING_TAKEN_OVER
        if refused := failed or self._too_slow(again):
            self._refused[plan.order] = refused
            return None, None, users
        return plan, again, users

    def _without_idle_exchanges(self, plan: OrderPlan, found: SpeedComparison) -> tuple[OrderPlan, SpeedComparison]:
        """Return the order without the exchanges that are not missed when they are left out, and its comparison.

        Asked is about those of which the estimate is not sure.
        """
        doubted = 0
        for _ in range(MOST_DOUBTED):
            sample = self._again()
            best = _estimate(sample, plan.order)
            orders = {order: _estimate(sample, order) for order in undone(plan) if self._keeps_merging(plan, order)}
            doubtful = [order for order, gain in orders.items() if best - gain < DOUBTFUL]
            order = max((one for one in doubtful if one not in self._refused), key=orders.__getitem__, default=None)
            if order is None or order == self._user:
                break
            against, failed = self._trial.compare(plan.order, order, DOUBTING_S)
            if failed or against is None or against.certainly(MISSED):
                self._refused[order] = failed or "the exchange that it lacks is worth its place"
                continue
            refused = self._trial.look(order) or self._rest_refused(order)
            if refused:
                self._refused[order] = refused
                continue
            plan, doubted = in_order(plan, order), doubted + 1
        if not doubted:
            return plan, found
        return plan, self._trial.compare(plan.order)[0] or found

    def _keeps_merging(self, plan: OrderPlan, order: OpOrder) -> bool:
        """Tell whether the decoder takes over as much in an order as in a plan's."""
        return set(self._mergeable(order)) <= set(self._mergeable(plan.order))

    def _simpler(self, plan: OrderPlan) -> OrderPlan:
        """Return a plan without exchanges that are estimated to bring nothing; in mode "paper" as it is."""
        if self._mode == "paper" or not plan.changed:
            return plan
        return closer(plan, lambda order: self._keeps_merging(plan, order))

    def _candidates(self, sample: StretchSample, forbidden: Sequence[Pair] | None = None) -> Iterator[OrderPlan]:
        return candidates(
            sample.profiled,
            self._mode,
            commutes=self._trial.commutes if self._mode in EQUAL_RESULTS else None,
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
            plan = self._simpler(plan)
            if plan.order in self._tried or plan.order in self._refused or not plan.changed:
                continue
            if self._mode != "paper" and _estimate(sample, plan.order) < bound:
                if adopted is not None:
                    return None
                self._refused[plan.order] = "it is estimated to gain almost nothing"
            elif refused := self._trial.look_at_form(plan.order):
                if self._leave_out_suspect(plan, refused):
                    return None
            elif pairs := self._slowing(plan, sample):
                self._refused[plan.order] = f"{_and(self._trial.slowed)} would become slower in it"
                self._forbidden += pairs
                return None
            elif refused := self._trial.other_values(plan.order):
                if self._leave_out_suspect(plan, refused):
                    return None
            else:
                return plan
        return None

    def _leave_out_suspect(self, plan: OrderPlan, refused: str) -> bool:
        """Note why an order is refused, and forbid the exchange that is to blame; tell whether one was found."""
        self._refused[plan.order] = refused
        suspect = self._suspect(plan)
        if suspect:
            self._forbidden.append(suspect)
        return suspect is not None

    def _merging(self, sample: StretchSample) -> OrderPlan | None:
        """Return the best order in which the decoder takes over more than in the user's, unless it was tried.

        Estimates know nothing of what that gains: whatever they say, it is measured.
        """
        if self._mode != "cost":
            return None
        best = next(self._candidates(sample))
        for base in (best, in_order(best, self._user)):
            together = (brought_together(base, names) for names in self._mergeable(base.order))
            plan = self._simpler(next((plan for plan in together if plan is not None), base))
            if set(self._mergeable(self._user)) <= set(self._mergeable(plan.order)):
                continue
            if plan.order in self._tried or plan.order in self._refused:
                continue
            if not (refused := self._trial.look(plan.order)):
                return plan
            self._leave_out_suspect(plan, refused)
        return None

    def _slowing(self, plan: OrderPlan, sample: StretchSample) -> list[Pair]:
        """Return the exchanges to leave out of an order for having made operators slow; none where it is still best.

        What slows them down was put before them: an operator that changes a dtype, where there is one; of several the
        one without which the best is left, and the next look tells whether it was the right one.
        """
        slowed = self._trial.slowed
        if self._mode == "paper" or not slowed:
            return []
        before = {name: put_before(name, self._user, plan.order) for name in slowed}
        early_ones = {other for early in before.values() for other in early}
        best, found = _estimate(sample, plan.order, sum(slowed.values())), []
        for early_one in early_ones & self._trial.recasting or early_ones:
            pairs = [(name, early_one) for name in slowed if early_one in before[name]]
            other = next(self._candidates(sample, [*self._forbidden, *pairs]))
            if other.order != plan.order and (gain := _estimate(sample, other.order)) > best:
                best, found = gain, pairs
        return found

    def _suspect(self, plan: OrderPlan) -> Pair | None:
        """Return the exchange to leave out behind an order that was refused, so that the others can still be made."""
        if self._trial.failed:
            return suspected_exchange(self._trial.failed, self._user, plan.order)
        suspects = suspected_exchanges(self._trial.idle, self._user, plan.order)
        if len(suspects) == 1:
            return suspects[0]
        for pair in (suspects or exchanges(self._user, plan.order))[:MOST_SUSPECTS]:
            other = next(self._candidates(self._sample, [*self._forbidden, pair]))
            if other.changed and other.order not in self._refused and not self._trial.look(other.order):
                return pair
        return suspects[0] if suspects else None

    def _too_slow(self, found: SpeedComparison | None) -> str:
        if self._mode == "paper":
            if found is None:
                self._notes.append("there was no time to measure the new order")
            return ""
        if found is None:
            return "there was no time to measure it"
        if found.faster:
            return ""
        return f"it is not faster: {found.told()}"

    def _rest_refused(self, order: OpOrder) -> str:
        refused, ran = self._trial.verify_rest(order)
        if not refused and ran < self._sample.elements:
            self._notes.append(f"the new order was verified on {ran} of {self._sample.elements} elements")
        return refused


def _and(names: Iterable[str]) -> str:
    return " and ".join(map(repr, names))


def _estimate(sample: StretchSample, order: OpOrder, lost_s: float = 0.0) -> float:
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


def suspected_exchange(failed: str, user: OpOrder, order: OpOrder) -> Pair | None:
    """Return the exchange that has most likely made an operator fail in an order, as a pair in the user's order."""
    return next(iter(suspected_exchanges(failed, user, order)), None)


def suspected_exchanges(name: str, user: OpOrder, order: OpOrder) -> list[Pair]:
    """Return the exchanges that may have made an operator fail, or do nothing, in an order: the likeliest first.

    First suspected is the nearest operator that was put before it and changes what it is given; where none was, the
    nearest one whose work it now lacks.
    """
    if name not in user:
        return []
    if early := put_before(name, user, order):
        return [(name, one) for one in reversed(early)]
    lacking = [other for other in user[: user.index(name)] if other in order[order.index(name) + 1 :]]
    return [(one, name) for one in reversed(lacking)]


def put_before(name: str, user: OpOrder, order: OpOrder) -> OpOrder:
    """Return the operators that come before one in an order and behind it in the user's."""
    behind = user[user.index(name) + 1 :]
    return tuple(other for other in order[: order.index(name)] if other in behind)
