"""The search on a sampled stretch: the policy's orders are tried, the best first, until one is adopted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from pecan_ray.autoorder.adopted import OpSequenceOrder, Refused
from pecan_ray.autoorder.exchange_check import OpOrder, exchanges
from pecan_ray.autoorder.facts import OpSample, OpSequenceSample
from pecan_ray.autoorder.speed import SpeedComparison
from pecan_ray.autoorder.trial import NO_TIME_TO_MEASURE, Trial
from pecan_ray.reorder import NEUTRAL_BAND, Mode, OrderPlan, auto_order, predict
from pecan_ray.reorder.policy import Pair

MOST_TRIED = 12
"""Orders that are run on the first elements,"""
MOST_MEASURED = 3
"""and that are run against the user's."""
WORTH_A_TRIAL = 1.03
"""An estimated speed-up below this is not measured."""
WORTH_A_MOVE = 1.05
"""What moves with others has to make the operators so much faster than the others do without it."""
WORTH_IN_A_HURRY = 1.5
"""What is adopted although the time is over has to make the operators so much faster, so that the next look finds it
too."""


@dataclass(frozen=True)
class TriedOrder:
    """How a trial of an order ended."""

    plan: OrderPlan
    """The order, without moves that gain little beside the others."""
    refused: str
    """Why it is not adopted; empty if it is."""
    blamed: Sequence[Pair]
    """Exchanges that the next order shall not have; empty if none is known to be the cause."""
    found: SpeedComparison | None = None
    """How it compares with the user's, if it was measured."""


class OrderSearch:
    """Tries the policy's orders on the sample, the best first, until one is adopted."""

    def __init__(
        self, sample: OpSequenceSample, trial: Trial, mode: Mode, again: Callable[[], OpSequenceSample]
    ) -> None:
        self._sample, self._trial, self._mode, self._again = sample, trial, mode, again
        self._forbidden = list(draws_would_change(sample.ops))
        self._refused: dict[OpOrder, str] = {}
        self._measured = 0
        """How many orders were run against the user's."""
        self._notes: list[str] = []
        self._user: OpOrder = tuple(op.name for op in sample.ops)

    def run(self) -> OpSequenceOrder:
        """Return the best order that passed, or the user's.

        What decoders take over in the user's order is looked for first: another order has to be faster than that.
        """
        # Decision 116: first, because it is worth most if the time is short.
        users = self._trial.measure_taken_over(self._user)
        policy_order = self._policy()
        adopted, measured = self._search(policy_order)
        taken_over = self._trial.taken_over(adopted.order) if adopted is not None else users
        refused = [Refused(order, reason) for order, reason in self._refused.items()]
        refused += [Refused(pair[::-1], why) for pair, why in self._trial.exchanges.rejects().items()]
        return OpSequenceOrder(
            sample=self._sample,
            adopted=adopted or auto_order(self._sample.profiled, "off", neutral_band=NEUTRAL_BAND),
            policy_order=policy_order,
            measured=measured,
            refused=(*refused, *dict.fromkeys([*users.refused, *taken_over.refused])),
            notes=tuple(self._notes),
            loads=self._trial.loads(adopted.order) if adopted is not None else (),
            exchanges=self._trial.exchanges.found(adopted.order) if adopted is not None else (),
            taken_over=taken_over,
            users_taken_over=users,
        )

    def _policy(self, beside: Sequence[Pair] = ()) -> OrderPlan:
        """Ask for an order, by all times that were measured so far; `beside`: what is forbidden for this once."""
        ops, forbidden, commutes = self._again().profiled, [*self._forbidden, *beside], self._trial.exchanges.may
        return auto_order(ops, self._mode, commutes=commutes, forbidden=forbidden, neutral_band=NEUTRAL_BAND)

    def _search(self, plan: OrderPlan) -> tuple[OrderPlan | None, SpeedComparison | None]:
        """Return the order that is adopted, and how it compares with the user's; None where none passed."""
        for _ in range(MOST_TRIED):
            if not plan.changed or plan.order in self._refused or self._measured == MOST_MEASURED:
                break
            tried = self._try(plan)
            if not tried.refused:
                return replace(tried.plan, ops=self._again().profiled), tried.found  # with the times in the new order
            self._refused[tried.plan.order] = tried.refused
            self._forbidden += tried.blamed or self._suspected_pairs(tried.plan)
            plan = self._policy()
        return None, None

    def _try(self, plan: OrderPlan) -> TriedOrder:
        """Look at an order on the first elements, compare its speed, and verify it: the first failure refuses it."""
        refused = self._trial.look(plan.order)
        if refused:
            return TriedOrder(plan, refused, self._suspected_pairs(plan))
        found: SpeedComparison | None = None
        if self._mode != "pecan":
            found, refused = self._compare(plan)
            if refused:
                return TriedOrder(plan, refused, [self._least(plan)])
            if found is not None:
                plan, found = self._prune_moves(plan, found)
        refused, pair, ran = self._trial.verify(plan.order)
        refused = refused or self._cut_short(plan, found, ran)
        if not refused:
            self._note(ran)
        return TriedOrder(plan, refused, [] if pair is None else [pair], found)

    def _compare(self, plan: OrderPlan) -> tuple[SpeedComparison | None, str]:
        """Return how an order compares with the user's, and why it is refused; empty if it is faster."""
        refused = self._low_estimate(plan)
        if refused:
            return None, refused
        self._measured += 1
        if self._trial.taken_over(plan.order).pushed and self._trial.only_here(plan.order):
            self._trial.measure_taken_over(plan.order)  # what is slow by that is not the order
        found, failed = self._trial.compare(plan.order)
        return found, failed or _too_slow(found)

    def _prune_moves(self, plan: OrderPlan, found: SpeedComparison) -> tuple[OrderPlan, SpeedComparison]:
        """Return an order without the moves that gain little beside the others: ties keep the user's places."""
        left: list[Pair] = []
        for move in plan.moves if len(plan.moves) > 1 else ():
            # Decision 139: the search goes by estimates. A move has to earn its place beside the others by measurement.
            its = [pair for pair in exchanges(self._user, plan.order) if move.name in pair]
            other = self._policy([*left, *its])
            known = other.order in (plan.order, self._user) or other.order in self._refused
            if known or self._trial.look(other.order):
                continue
            gain, _ = self._trial.compare(plan.order, beside=other.order)
            if gain is None or gain.exceeds_threshold(WORTH_A_MOVE):
                continue
            measured, _ = self._trial.compare(other.order)
            if measured is not None and measured.faster:
                plan, found, left = other, measured, [*left, *its]
        return plan, found

    def _cut_short(self, plan: OrderPlan, found: SpeedComparison | None, ran: int) -> str:
        """Return why an order stays out where the time was too short; empty if it would be found each time.

        How far a look comes in its time is a matter of the machine, and no element decides that was not reached.
        """
        if self._mode == "pecan":
            return ""
        changes = any(one.share for one in self._trial.exchanges.found(plan.order))
        # Decision 143: an element that was not reached could have refused the order.
        if changes and ran < self._sample.elements:
            return f"it changes values, and there was time to run it on {ran} of {self._sample.elements} elements"
        if not self._trial.in_time() and (found is None or not found.exceeds_threshold(WORTH_IN_A_HURRY)):
            return f"the time was over, and it is not {WORTH_IN_A_HURRY} times as fast"
        return ""

    def _note(self, ran: int) -> None:
        if ran < self._sample.elements:
            self._notes.append(f"the new order was verified on {ran} of {self._sample.elements} elements")

    def _low_estimate(self, plan: OrderPlan) -> str:
        gain = _estimate(self._again(), plan.order)
        return "" if gain >= WORTH_A_TRIAL else f"it is estimated to gain almost nothing ({gain:.2f}x)"

    def _suspected_pairs(self, plan: OrderPlan) -> list[Pair]:
        """Return the exchanges to leave out of an order that was refused for what it makes, or for failing.

        Where it did not fail, those of the operator without whose move an order passes a look.
        """
        if failing := suspected_exchange(self._trial.failed, self._user, plan.order):
            return [failing]
        pairs = exchanges(self._user, plan.order)
        # Decision 146: an order may be refused though none of its exchanges is: each move is left out once.
        for move in plan.moves if len(plan.moves) > 1 else ():
            its = [pair for pair in pairs if move.name in pair]
            other = self._policy(its)
            if other.changed and other.order not in self._refused and not self._trial.look(other.order):
                return its
        moved = {(one.first, one.second): one.share for one in self._trial.exchanges.found(plan.order)}
        return [max(pairs, key=lambda pair: moved.get(pair, 0.0))]

    def _least(self, plan: OrderPlan) -> Pair:
        """Return the exchange of neighbours in an order that is estimated to gain least."""
        sample = self._again()
        gains = {
            (second, first): _estimate(sample, _swap_at(plan.order, place))
            for place, (first, second) in enumerate(pairwise(plan.order))
            if self._user.index(first) > self._user.index(second)
        }
        return max(gains, key=gains.__getitem__)


def _swap_at(order: OpOrder, place: int) -> OpOrder:
    return (*order[:place], order[place + 1], order[place], *order[place + 2 :])


def _too_slow(found: SpeedComparison | None) -> str:
    if found is None:
        return NO_TIME_TO_MEASURE
    return "" if found.faster else f"it is not faster: {found.told()}"


def _estimate(sample: OpSequenceSample, order: OpOrder) -> float:
    """Return the estimated speed-up of an order, by all times measured so far."""
    profiled = sample.profiled
    before, after = (
        sum(load.seconds or 0.0 for load in predict(profiled, names)) for names in ([op.name for op in profiled], order)
    )
    return before / after if after else 1.0


def draws_would_change(ops: Sequence[OpSample]) -> Iterator[Pair]:
    """Yield pairs that must stay as they are for the sake of random numbers and of the order of outputs.

    Behind a flat_map a function draws for each output, before it once for all of them; and two flat_maps would
    yield their outputs in another order.
    """
    for first, second in combinations(ops, 2):
        if (first.spreads and (second.spreads or second.random)) or (second.spreads and first.random):
            yield first.name, second.name


def suspected_exchange(failed: str, user: OpOrder, order: OpOrder) -> Pair | None:
    """Return the exchange that has most likely made an operator fail in an order, as a pair in the user's order.

    First suspected is the nearest operator that was put before it and changes what it is given; where none was, the
    nearest one whose work it now lacks.
    """
    if failed not in user:
        return None
    behind, place = user[user.index(failed) + 1 :], order.index(failed)
    if early := [other for other in order[:place] if other in behind]:
        return failed, early[-1]
    still_missing = [other for other in user[: user.index(failed)] if other in order[place + 1 :]]
    return (still_missing[-1], failed) if still_missing else None
