"""Trying another order on the sample: does it run, are its results what the user meant, is it faster."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pecan_ray import part_decoding
from pecan_ray.autoorder.accepted import NOTHING_TAKEN_OVER, RejectedOrder, TakenOver
from pecan_ray.autoorder.element_moved import ColumnDifference, RewriteCheck, element_moved
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.exchange_check import FIRST_ELEMENTS, NO_TIME, ExchangeCheck, OpOrder, exchanges
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token, run_through
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.rewrites import Pushed, choices
from pecan_ray.autoorder.sample import LEAST_ELEMENTS, Sampled
from pecan_ray.autoorder.speed import WORTH, WORTH_A_MOVE, SpeedComparison, compare_speed, too_slow
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from pecan_ray.reorder.policy import Pair

Judge: TypeAlias = Callable[[int, Element, Element], str]
"""From an element's number, and its result in the usual order and in another way, to why that is refused, or ""."""

TAKEN_OVER_ELEMENTS = 64
"""Elements on which decoders take over what follows them, to see whether results stay."""
TAKEN_OVER_S = 0.7
"""Most seconds for that."""
RUNS_OF_LEAST = 3
"""Where operators are slow, it is enough to run the least number of elements so many times in the user's order."""
COMPARING: tuple[Mode, ...] = ("safe", "strict")
"""Modes that compare values, and in which decoders may take work over."""


class Trial:
    """Other orders on the elements of one sampled stretch."""

    def __init__(self, sampled: Sampled, request: OrderRequest) -> None:
        self._sampled = sampled
        self._comparison, self._strict = request.mode in COMPARING, request.mode == "strict"
        self._decoding: EngineName | None = request.engine if self._comparison and request.rewrites else None
        """The engine whose decoders may take work over; None: none does."""
        self._ops = {op.name: op for op in sampled.sequence.ops}
        self._taken_over: dict[OpOrder, TakenOver] = {}
        self._runner, self._names = sampled.runner, sampled.sequence.names
        self.exchanges = ExchangeCheck(sampled, exactly=self._strict)
        """Which pairs may be exchanged, and what that changes."""
        self.in_time = sampled.in_time

    # --- orders ----------------------------------------------------------------------------------------------

    def look(self, order: OpOrder) -> str:
        """Run an order on the first elements; return why it is refused, or ""."""
        rejected, ran = self._rejected_on(order, range(FIRST_ELEMENTS))
        return rejected or (NO_TIME if ran < min(FIRST_ELEMENTS, len(self._sampled.held)) else "")

    def verify(self, order: OpOrder) -> tuple[str, Pair | None, int]:
        """Run an order, and its exchanges one by one, on the other elements of the sample.

        Return why it is refused, or "", the exchange that is to blame, if one is, and how many elements it has run.
        """
        held = len(self._sampled.held)
        rejected, ran = self._rejected_on(order, range(FIRST_ELEMENTS, held))
        pair = None
        if self._comparison and not rejected:
            pair, ran = self.exchanges.rejected_on(order, range(FIRST_ELEMENTS, FIRST_ELEMENTS + ran))
            rejected = "" if pair is None else self.exchanges.rejects()[pair]
        return rejected, pair, min(held, FIRST_ELEMENTS) + ran

    def _rejected_on(self, order: OpOrder, numbers: range) -> tuple[str, int]:
        usual = self._names if self._comparison else None
        return self._run_variant(usual, order, numbers, math.inf, functools.partial(self._mismatch, order))

    def _run_variant(
        self,
        usual: OpOrder | None,
        order: OpOrder,
        numbers: range,
        until: float,
        judge: Judge,
        *,
        decoders: Sequence[str] = (),
    ) -> tuple[str, int]:
        """Run elements in another way; return why it is refused, or "", and how many were run before the time was up.

        `usual`: what each result is judged beside; None: its form alone counts.
        """
        sampled, spec, ran = self._sampled, ElementSpec(), 0
        try:
            stages, others = (self._runner.stages(order, decoders=decoders), self._runner.stages(usual or ()))
            for number in numbers[: len(sampled.held)]:
                if not sampled.in_time() or sampled.clock() > until:
                    break
                # The other way first: it must not find what the user's order leaves in a variable
                # (docs/decisions/autoorder.md#114-a-bound-by-the-operators-effect).
                after = self._results(stages, number)
                before = after if usual is None else self._results(others, number)
                # The user's order is counted again: one that holds a memory lets other elements through now.
                if {len(before), len(after)} != {sampled.results[number]}:
                    count = sampled.results[number]
                    return f"it lets {len(after)} elements through where the user's order lets {count}", ran
                for mine, other in zip(before, after, strict=True):
                    spec.add(other)
                    if usual is not None and (rejected := judge(number, mine, other)):
                        return f"{self.exchanges.place(number, sampled.held[number])}: {rejected}", ran
                ran += 1
        except OP_FAILURES as error:
            return f"it fails: {error.message.splitlines()[0]}", ran
        return sampled.spec.difference(spec), ran

    def _results(self, stages: Sequence[Stage], number: int) -> list[Element]:
        return [self._runner.columns(token) for token in run_through(stages, self._sampled.token(number))]

    def _mismatch(self, order: OpOrder, number: int, mine: Element, other: Element) -> str:
        """Return why an element's result in an order is not what the user meant; empty if it may be."""
        if not self._comparison or equal(mine, other):
            return ""
        if self._strict:
            return "its result is not equal to that of the user's order"
        given, without = self._without(order, self._sampled.held[number])
        compared = [without] if self._sampled.results[number] == 1 else []
        mixing = max((1, *map(self.exchanges.mixing, exchanges(self._names, order))))
        found = element_moved(mine, other, compared, given, mixing)
        return f"column {found.column!r}: {found.description()}" if found.rejected else ""

    def _without(self, order: OpOrder, token: Token) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return what enters the operators that are exchanged, and an element's result without those passed by."""
        passed = {first for first, _ in exchanges(self._names, order)}
        begins = next((place for place, (a, b) in enumerate(zip(self._names, order, strict=True)) if a != b), 0)
        left = tuple(name for name in self._names if name not in passed)
        try:
            entering = run_through(self._runner.stages(self._names)[:begins], self._runner.fresh(token))
            given = dict(self._runner.columns(self._runner.fresh(entering[0])))
            made = run_through(self._runner.stages(left), self._runner.fresh(token))
        # An operator that needs what was left out tells nothing.
        except OP_FAILURES:
            return {}, None
        return given, dict(self._runner.columns(made[0])) if len(made) == 1 else None

    def compare(self, order: OpOrder, *, beside: OpOrder | None = None) -> tuple[SpeedComparison | None, str]:
        """Run an order in turn with the user's, or with another one, until it is clear whether it is faster.

        Decoders take over what `measure_taken_over` has found of an order, or of the user's.  Returns None if there was
        no time for it, and how one of them fails on an element; empty if none does.
        """
        return self._in_turn([self._fused(beside or self._names), self._fused(order)], WORTH_A_MOVE)

    def _in_turn(self, stages: Sequence[list[Stage]], times: float) -> tuple[SpeedComparison | None, str]:
        try:
            return compare_speed(self._sampled, stages, times), ""
        except OP_FAILURES as error:
            return None, f"it fails: {error.message.splitlines()[0]}"

    def _fused(self, order: OpOrder) -> list[Stage]:
        found = self._taken_over.get(order) or self._taken_over.get(self._names, NOTHING_TAKEN_OVER)
        return self._runner.stages(order, fused=True, decoders=found.decoders)

    # --- what decoders take over -----------------------------------------------------------------------------

    def measure_taken_over(self, order: OpOrder) -> TakenOver:
        """Return what decoders take over in an order: it has run on the sample, its results may be so, it is faster."""
        if order not in self._taken_over:
            users, ways = self._taken_over.get(self._names), self._choices(order)
            # The same can be taken over as in the user's order, where it was measured.
            alike = users is not None and ways == self._choices(self._names)
            self._taken_over[order] = users if alike and users is not None else self._accept_if_better(order, ways)
        return self._taken_over[order]

    def _choices(self, order: OpOrder) -> list[list[Pushed]]:
        return choices([self._ops[name] for name in order], self._decoding) if self._decoding else []

    def _accept_if_better(self, order: OpOrder, ways: list[list[Pushed]]) -> TakenOver:
        rejected: list[RejectedOrder] = []
        # It may be faster with equal pixels: small photographs are hardly decoded smaller, but in part.
        exact = [[one for one in some if not one.reduces] for some in ways]
        for some in [ways] if exact == ways else [ways, exact]:
            found = self._try_pushdown(order, some)
            rejected += found.rejected
            if not found.pushed:
                break
            both = [self._runner.stages(order, fused=True, decoders=one) for one in ((), found.decoders)]
            measured, failed = self._in_turn(both, WORTH)
            if not (why := failed or too_slow(measured, WORTH)):
                return replace(found, measured=measured, rejected=tuple(rejected))
            rejected += [_not_taken_over(one, why) for one in found.pushed]
            if not self.in_time():
                break
        return TakenOver(rejected=tuple(rejected))

    def _try_pushdown(self, order: OpOrder, ways: list[list[Pushed]]) -> TakenOver:
        """Run an order with what each decoder could take over in it, one after the other."""
        found = NOTHING_TAKEN_OVER
        for some in ways:
            for one in some:
                rejected, detected_changes = self._pushdown_rejection(order, found.decoders, one)
                if rejected:
                    found = replace(found, rejected=(*found.rejected, _not_taken_over(one, rejected)))
                    continue
                found = replace(found, pushed=(*found.pushed, one), detected_changes=detected_changes)
                # The ways come with the most first, so that the others would take over less.
                break
        return found

    def _pushdown_rejection(
        self, order: OpOrder, others: Sequence[str], one: Pushed
    ) -> tuple[str, tuple[ColumnDifference, ...]]:
        """Return why a decoder may not take over what it could beside others, or "", and by how much columns differ."""
        if one.reduces and self._strict:
            return "images would be decoded at a reduced size, or warped at once, which changes their pixels", ()
        # Without the library the whole would be decoded either way, and nothing gained.
        if one.only_parts and isinstance(library := part_decoding.library(), str):
            return library, ()
        sampled, pairs = self._sampled, RewriteCheck()
        judge = functools.partial(self._check_rewrite, pairs)
        until = sampled.clock() + max(TAKEN_OVER_S, RUNS_OF_LEAST * LEAST_ELEMENTS * (sampled.profile().seconds or 0.0))
        numbers = range(TAKEN_OVER_ELEMENTS)
        rejected, ran = self._run_variant(order, order, numbers, until, judge, decoders=(*others, one.decoder))
        if not rejected and ran < min(LEAST_ELEMENTS, len(sampled.held)):
            return NO_TIME, ()
        behind = order[order.index(one.ops[0]) :]
        rejected = rejected or pairs.rejection_reason() or self._changed_decision(behind, pairs)
        return rejected, pairs.detected_changes()

    def _check_rewrite(self, pairs: RewriteCheck, number: int, mine: Element, other: Element) -> str:
        pairs.add(mine, other)
        unequal = self._strict and not equal(mine, other)
        return "its result is not equal to that of the user's order" if unequal else ""

    def _changed_decision(self, behind: OpOrder, pairs: RewriteCheck) -> str:
        """Return which operator decides by a column that has other values; empty if none does."""
        changed = [one.column for one in pairs.detected_changes() if one.changed]
        for name in behind if changed else ():
            facts = self.exchanges.op_properties[name]
            for column in sorted(facts.reads) if facts.decides else ():
                if any(one.startswith(column) for one in changed):
                    return f"{name!r} decides by column {column!r} which elements there are, and it has other values"
        return ""


def _not_taken_over(one: Pushed, why: str) -> RejectedOrder:
    return RejectedOrder(one.ops, f"the decoder takes nothing over (rule {one.rule}): {why}")
