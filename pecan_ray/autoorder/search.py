"""The search on a sampled stretch: moves of the policy's order are tried one by one, and each has to earn its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, combinations

from pecan_ray.autoorder.accepted import OpSequenceOrder, RejectedOrder
from pecan_ray.autoorder.exchange_check import OpOrder, exchanges
from pecan_ray.autoorder.op_samples import OpSample, OpSequenceSample
from pecan_ray.autoorder.speed import WORTH_A_MOVE, SpeedComparison, too_slow
from pecan_ray.autoorder.trial import Trial
from pecan_ray.reorder import NEUTRAL_BAND, Mode, OrderPlan, auto_order
from pecan_ray.reorder.policy import Pair

# docs/decisions/autoorder.md#143-waiting-and-queueing
WORTH_IN_A_HURRY = 1.5
"""What is adopted although the time is over has to make operators so much faster, so that the next look finds it."""


class OrderSearch:
    """Tries the moves of the policy's order on the sample."""

    def __init__(self, sample: OpSequenceSample, trial: Trial, mode: Mode) -> None:
        self._sample, self._trial, self._mode = sample, trial, mode
        self._fixed = list(draws_would_change(sample.ops))
        self._rejected: dict[OpOrder, str] = {}
        self._notes: list[str] = []
        self._user: OpOrder = tuple(op.name for op in sample.ops)

    def run(self) -> OpSequenceOrder:
        """Return the best order that passed, or the user's.

        What decoders take over in the user's order is looked for first: another order has to be faster than that.
        """
        # Decision 116: first, because it is worth most if the time is short.
        users = self._trial.measure_taken_over(self._user)
        policy_order = self._policy()
        adopted, measured = self._search(policy_order) if policy_order.changed else (None, None)
        taken_over = self._trial.measure_taken_over(adopted.order) if adopted is not None else users
        rejected = [RejectedOrder(order, reason) for order, reason in self._rejected.items()]
        rejected += [RejectedOrder(pair[::-1], why) for pair, why in self._trial.exchanges.rejects().items()]
        return OpSequenceOrder(
            sample=self._sample,
            accepted=adopted or auto_order(self._sample.profiled, "off", neutral_band=NEUTRAL_BAND),
            policy_order=policy_order,
            measured=measured,
            rejected=(*rejected, *dict.fromkeys([*users.rejected, *taken_over.rejected])),
            notes=tuple(self._notes),
            exchanges=self._trial.exchanges.found(adopted.order) if adopted is not None else (),
            taken_over=taken_over,
            users_taken_over=users,
        )

    def _policy(self, allowed: Sequence[Pair] | None = None) -> OrderPlan:
        """Ask for an order; `allowed`: in which nothing but these pairs is exchanged."""
        others = [] if allowed is None else [pair for pair in combinations(self._user, 2) if pair not in allowed]
        ops, forbidden, commutes = self._sample.profiled, [*self._fixed, *others], self._trial.exchanges.may
        return auto_order(ops, self._mode, commutes=commutes, forbidden=forbidden, neutral_band=NEUTRAL_BAND)

    def _search(self, policy_order: OrderPlan) -> tuple[OrderPlan | None, SpeedComparison | None]:
        """Return the order that is adopted, and how it compares with the user's; None where none passed."""
        # Nothing is measured in mode "pecan", so the paper's order is run as it is, if it can be.
        if self._mode == "pecan":
            rejected = self._trial.look(policy_order.order) or self._verify(policy_order)[1]
            if not rejected:
                return policy_order, None
            self._rejected[policy_order.order] = rejected
        kept = self._moves(policy_order)
        while kept:
            plan = self._policy(list(chain(*kept)))
            found, rejected, blamed = self._verify(plan)
            if not rejected:
                return plan, found
            self._rejected[plan.order] = rejected
            # Where nobody is to blame the last move goes: those before it have run without it.
            kept = [pairs for pairs in kept if blamed not in pairs] if blamed is not None else kept[:-1]
        return None, None

    def _moves(self, policy_order: OrderPlan) -> list[list[Pair]]:
        """Return the exchanges of each move that is worth it, behind those before it."""
        pairs, kept, order = exchanges(self._user, policy_order.order), list[list[Pair]](), self._user
        for move in policy_order.moves:
            its = [pair for pair in pairs if move.name in pair and not any(pair in one for one in kept)]
            # The farthest operators that it would pass are left out one by one, until the rest can be done.
            its.sort(key=lambda pair: abs(self._user.index(pair[0]) - self._user.index(pair[1])))
            while its:
                other = self._policy([*chain(*kept), *its]).order
                if other not in (order, *self._rejected):
                    rejected = self._rejection_reason(other, order)
                    if not rejected:
                        kept, order = [*kept, its], other
                        break
                    self._rejected[other] = rejected
                its.pop()
        return kept

    def _rejection_reason(self, order: OpOrder, beside: OpOrder) -> str:
        """Return why an order is not run in place of another one; empty if it is."""
        rejected = self._trial.look(order)
        if rejected or self._mode == "pecan":
            return rejected
        # Decision 179: estimates only propose. A move has to earn its place by measurement.
        found, failed = self._trial.compare(order, beside=beside)
        return failed or too_slow(found, WORTH_A_MOVE)

    def _verify(self, plan: OrderPlan) -> tuple[SpeedComparison | None, str, Pair | None]:
        """Return how an order compares with the user's, and why it is refused on more elements, by which pair."""
        found: SpeedComparison | None = None
        if self._mode != "pecan":
            self._trial.measure_taken_over(plan.order)
            found, failed = self._trial.compare(plan.order)
            if rejected := failed or too_slow(found, WORTH_A_MOVE):
                return found, rejected, None
        rejected, pair, ran = self._trial.verify(plan.order)
        rejected = rejected or self._cut_short(plan, found, ran)
        if not rejected and ran < self._sample.elements:
            self._notes.append(f"the new order was verified on {ran} of {self._sample.elements} elements")
        return found, rejected, pair

    def _cut_short(self, plan: OrderPlan, found: SpeedComparison | None, ran: int) -> str:
        """Return why an order stays out where the time was too short; empty if it would be found each time."""
        if self._mode == "pecan":
            return ""
        changes = any(one.share for one in self._trial.exchanges.found(plan.order))
        # Decision 143: an element that was not reached could have refused the order.
        if changes and ran < self._sample.elements:
            return f"it changes values, and there was time to run it on {ran} of {self._sample.elements} elements"
        if not self._trial.in_time() and (found is None or not found.is_faster(WORTH_IN_A_HURRY)):
            return f"the time was over, and it is not {WORTH_IN_A_HURRY} times as fast"
        return ""


def draws_would_change(ops: Sequence[OpSample]) -> Iterator[Pair]:
    """Yield pairs that must stay as they are for the sake of random numbers and of the order of outputs.

    Behind a flat_map a function draws for each output, before it once for all of them; and two flat_maps would
    yield their outputs in another order.
    """
    for first, second in combinations(ops, 2):
        one, other = first.profiled.random, second.profiled.random
        if (first.yields_several and (second.yields_several or other)) or (second.yields_several and one):
            yield first.name, second.name
