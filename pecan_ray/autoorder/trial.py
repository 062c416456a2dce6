"""Trying another order on the sample: does it run, are its results what the user meant, is it faster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pecan_ray import part_decoding
from pecan_ray.autoorder.adopted import NOTHING_TAKEN_OVER, Refused, TakenOver
from pecan_ray.autoorder.element_moved import ColumnDifference, RewrittenElements, element_moved
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.exchange_check import NO_TIME, ExchangeCheck, OpOrder, exchanges
from pecan_ray.autoorder.facts import OpLoad
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token, run_through
from pecan_ray.autoorder.op_tally import OpTally
from pecan_ray.autoorder.order_request import Check, OrderRequest
from pecan_ray.autoorder.push_down import choices
from pecan_ray.autoorder.rewrites import Pushed
from pecan_ray.autoorder.sample import LEAST_ELEMENTS, Sampled, timed_run
from pecan_ray.autoorder.speed import PATIENCE_S, SpeedComparison, compare_speed
from pecan_ray.errors import told
from pecan_ray.options import EngineName
from pecan_ray.plan.splits import Element
from pecan_ray.reorder import Mode
from pecan_ray.reorder.policy import Pair

FIRST_LOOK = 16
"""Elements that show whether an order is worth being measured."""
VERIFYING_SHARE = 0.5
"""An order is verified on all elements of the sample, as far as that takes no more than this share of the time left."""
TAKEN_OVER_ELEMENTS = 64
"""Elements on which decoders take over what follows them, to see whether results stay,"""
TAKEN_OVER_S = 0.7
"""and the time for that;"""
RUNS_OF_LEAST = 3
"""where operators are slow, it is enough to run the least number of elements so many times in the user's order."""
NO_TIME_TO_MEASURE = "there was no time to measure it"
TAKEN_OVER_PATIENCE_S = 0.7
"""Measured seconds that show whether it is faster so."""
COMPARING: tuple[Mode, ...] = ("safe", "strict")
"""Modes that compare values, and in which decoders may take work over."""


class Trial:
    """Other orders on the elements of one sampled stretch."""

    def __init__(
        self, sampled: Sampled, check: Check | None, engine: EngineName, mode: Mode, *, rewrites: bool = True
    ) -> None:
        self._sampled, self._check = sampled, check
        self._comparing, self._strict = mode in COMPARING, mode == "strict"
        self._decoding: EngineName | None = engine if mode in COMPARING and rewrites else None
        """The engine whose decoders may take work over; None: none does."""
        self._ops = {op.name: op for op in sampled.stretch.ops}
        self._taken_over: dict[OpOrder, TakenOver] = {}
        self._no_faster: set[tuple[OpOrder, Pushed]] = set()
        self._runner, self._names = sampled.runner, sampled.stretch.names
        self._user = self._runner.stages(self._names)
        self._timed: dict[OpOrder, dict[str, OpTally]] = {}
        """What operators did in orders that were looked at."""
        self.exchanges = ExchangeCheck(sampled, exactly=self._strict)
        """Which pairs may be exchanged, and what that changes."""
        self.failed: str = ""
        """The operator that failed in the order that was looked at last; empty if none did."""

    @property
    def user(self) -> OpOrder:
        """The operators in the user's order."""
        return self._names

    def in_time(self) -> bool:
        """Tell whether something more may be begun."""
        return self._sampled.in_time()

    def loads(self, order: OpOrder) -> tuple[OpLoad, ...]:
        """Return what operators are given in an order that was looked at."""
        return tuple(tally.load() for tally in self._timed.get(order, {}).values() if tally.elements_in)

    # --- orders ----------------------------------------------------------------------------------------------

    def look(self, order: OpOrder) -> str:
        """Run an order on the first elements and note the operators' times in it; return why it is refused, or ""."""
        tallies = self._timed[order] = {name: OpTally(self._ops[name]) for name in order}
        refused = self._refused_on(order, range(FIRST_LOOK), tallies=tallies)[0]
        for name, tally in self._sampled.tallies.items():
            tally.elsewhere += tallies[name].timed
        return refused

    def verify(self, order: OpOrder) -> tuple[str, Pair | None, int]:
        """Run an order, and its exchanges one by one, on the other elements of the sample.

        Return why it is refused, or "", the exchange that is to blame, if one is, and how many elements it has run.
        """
        held = len(self._sampled.held)
        until = self._sampled.clock() + VERIFYING_SHARE * self._sampled.left_s()
        refused, ran = self._refused_on(order, range(FIRST_LOOK, held), until)
        pair = None
        if self._comparing and not refused:
            pair = self.exchanges.refused_on(order, range(FIRST_LOOK, min(held, FIRST_LOOK + ran)))
        if pair is not None:
            refused = self.exchanges.refusals()[pair]
        return refused, pair, min(len(self._sampled.held), FIRST_LOOK) + ran

    def _refused_on(
        self,
        order: OpOrder,
        numbers: range,
        until: float = float("inf"),
        *,
        tallies: Mapping[str, OpTally] | None = None,
    ) -> tuple[str, int]:
        """Run an order on some elements; return why it is refused, or "", and how many elements it has run.

        `tallies`: operators are timed one by one, and all of the elements have to be run.
        """
        sampled, spec, ran = self._sampled, ElementSpec(), 0
        self.failed = ""
        try:
            stages = self._runner.stages(order)
            for number in numbers[: len(sampled.held)]:
                if not sampled.in_time() or sampled.clock() > until:
                    break
                token, count = sampled.token(number), sampled.results[number]
                outputs = self._outputs(stages, token, tallies)
                if len(outputs) != count:
                    return f"it lets {len(outputs)} elements through where the user's order lets {count}", ran
                after = [self._runner.columns(output) for output in outputs]
                for element in after:
                    spec.add(element)
                if self._comparing or self._check is not None:
                    usual = run_through(self._user, sampled.token(number))
                    before = [self._runner.columns(one) for one in usual]
                    if refused := self._others(order, sampled.held[number], before, after):
                        return f"{self.exchanges.place(number, sampled.held[number])}: {refused}", ran
                ran += 1
        except OP_FAILURES as error:
            self.failed = str(error.fields.get("op", ""))
            return f"it fails: {error.message.splitlines()[0]}", ran
        if tallies is not None and ran < min(FIRST_LOOK, len(sampled.held)):
            return NO_TIME, ran
        return sampled.spec.difference(spec), ran

    def _outputs(self, stages: Sequence[Stage], token: Token, tallies: Mapping[str, OpTally] | None) -> list[Token]:
        if tallies is None:
            return run_through(stages, token)
        pieces = [token]
        for stage in stages:
            pieces = [made for piece in pieces for made in timed_run(self._runner, tallies, stage, piece)]
        return pieces

    def _others(
        self, order: OpOrder, token: Token, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
    ) -> str:
        """Return why an element's results in an order are not those that the user meant; empty if they may be."""
        if len(before) != len(after):
            return f"it becomes {len(after)} elements instead of {len(before)}"
        for mine, other in zip(before, after, strict=True):
            if self._check is not None and (refused := refused_by_check(self._check, mine, other)):
                return refused
            if not self._comparing or equal(mine, other):
                continue
            if self._strict:
                return "its result is not equal to that of the user's order"
            given, without = self._without(order, token)
            found = element_moved(mine, other, [without] if len(before) == 1 else [], given)
            if found.moved.refused:
                return f"column {found.column!r}: {found.moved.told()}"
        return ""

    def _without(self, order: OpOrder, token: Token) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return what enters the operators that are exchanged, and an element's result without those passed by."""
        passed = {first for first, _ in exchanges(self._names, order)}
        begins = next((place for place, (a, b) in enumerate(zip(self._names, order, strict=True)) if a != b), 0)
        left = tuple(name for name in self._names if name not in passed)
        try:
            entering = run_through(self._user[:begins], self._runner.fresh(token))
            given = dict(self._runner.columns(self._runner.fresh(entering[0])))
            made = run_through(self._runner.stages(left), self._runner.fresh(token))
        except OP_FAILURES:
            return {}, None
        return given, dict(self._runner.columns(made[0])) if len(made) == 1 else None

    def compare(self, order: OpOrder, *, beside: OpOrder | None = None) -> tuple[SpeedComparison | None, str]:
        """Run an order in turn with the user's, or with another one, until it is clear whether it is faster.

        In the user's own order decoders take over what `measure_taken_over` has found of it so far.  Returns None if
        there was no time for it, and how one of them fails on an element; empty if none does.
        """
        return self._in_turn([self._fused(beside or self._names), self._fused(order)], PATIENCE_S)

    def _in_turn(self, stages: Sequence[list[Stage]], patience_s: float) -> tuple[SpeedComparison | None, str]:
        try:
            return compare_speed(self._sampled, stages, patience_s), ""
        except OP_FAILURES as error:
            return None, f"it fails: {error.message.splitlines()[0]}"

    def _fused(self, order: OpOrder) -> list[Stage]:
        found = self._taken_over.get(order, NOTHING_TAKEN_OVER) if order == self._names else self.taken_over(order)
        return self._runner.stages(order, fused=True, decoders=found.decoders)

    # --- what decoders take over -----------------------------------------------------------------------------

    def taken_over(self, order: OpOrder) -> TakenOver:
        """Return what decoders may take over in an order: it was run on the sample, and its results may be so."""
        if order not in self._taken_over:
            self._taken_over[order] = self._try_taking_over(order)
        return self._taken_over[order]

    def only_here(self, order: OpOrder) -> bool:
        """Tell whether decoders take something over in an order that they do not, so far, in the user's."""
        here, users = (
            {(one.rule, *sorted(one.ops)) for one in self._taken_over.get(names, NOTHING_TAKEN_OVER).pushed}
            for names in (order, self._names)
        )
        return not here <= users

    def measure_taken_over(self, order: OpOrder) -> TakenOver:
        """Return what decoders take over in an order, which is nothing where that is not certainly faster.

        In another order than the user's it stays where there is no time to tell: the whole is compared with it.
        """
        found = self.taken_over(order)
        while found.pushed and found.measured is None:
            stages = [self._runner.stages(order, fused=True, decoders=one) for one in ((), found.decoders)]
            measured, failed = self._in_turn(stages, TAKEN_OVER_PATIENCE_S)
            if measured is None and not failed and order != self._names:
                return found
            if measured is not None and measured.faster:
                found = replace(found, measured=measured)
            else:
                why = f"it is not faster: {measured.told()}" if measured else failed or NO_TIME_TO_MEASURE
                refused = tuple(_not_taken_over(one, why) for one in found.pushed)
                self._no_faster.update((order, one) for one in found.pushed)
                # It may be faster with equal pixels: small photographs are hardly decoded smaller, but in part.
                reduces = any(one.reduces for one in found.pushed)
                retry = measured is not None and reduces and self.in_time()
                again = self._try_taking_over(order) if retry else NOTHING_TAKEN_OVER
                found = replace(again, refused=(*found.refused, *refused, *again.refused))
            self._taken_over[order] = found
        return found

    def _try_taking_over(self, order: OpOrder) -> TakenOver:
        """Run an order with what each decoder could take over in it, one after the other."""
        found = NOTHING_TAKEN_OVER
        if self._decoding is None:
            return found
        for ways in choices([self._ops[name] for name in order], self._decoding):
            for one in ways:
                if (order, one) in self._no_faster:
                    continue
                before, decoders = part_decoding.counts(), (*found.decoders, one.decoder)
                refused = self._not_to_try(one)
                differences: tuple[ColumnDifference, ...] = ()
                if not refused:
                    refused, differences = self._taking_over_refused(order, decoders, order.index(one.ops[0]))
                if refused:
                    found = replace(found, refused=(*found.refused, _not_taken_over(one, refused)))
                    continue
                told = part_decoding.told(part_decoding.counts() - before)
                notes = (*found.notes, *([f"{one.decoder}: {told}"] if told else []))
                found = replace(found, pushed=(*found.pushed, one), differences=differences, notes=notes)
                break
        return found

    def _not_to_try(self, one: Pushed) -> str:
        """Return why something that a decoder could take over need not be run; empty if it is to be."""
        if one.reduces and self._strict:
            return "images would be decoded at a reduced size, or warped at once, which changes their pixels"
        library = part_decoding.library() if one.only_parts else ""
        return library if isinstance(library, str) else ""

    def _refused_pair(self, mine: Element, other: Element) -> str:
        """Return why what decoders have made may not take the place of an element of the user's order, or ""."""
        if self._strict and not equal(mine, other):
            return "its result on the sample is not equal to that of the user's order"
        return refused_by_check(self._check, mine, other) if self._check is not None else ""

    def _taking_over_refused(
        self, order: OpOrder, decoders: Collection[str], place: int
    ) -> tuple[str, tuple[ColumnDifference, ...]]:
        """Return why decoders may not take over what they could in an order, or "", and by how much columns differ.

        `place`: where the last one of them stands.
        """
        sampled, pairs, spec, ran = self._sampled, RewrittenElements(), ElementSpec(), 0
        seconds = sampled.profile().seconds or 0.0
        until = sampled.clock() + max(TAKEN_OVER_S, RUNS_OF_LEAST * LEAST_ELEMENTS * seconds)
        try:
            sides = self._runner.stages(order), self._runner.stages(order, decoders=decoders)
            for number in range(min(TAKEN_OVER_ELEMENTS, len(sampled.held))):
                if not sampled.in_time() or sampled.clock() > until:
                    break
                before, after = ([self._runner.columns(one) for one in made] for made in self._made(sides, number))
                if len(before) != len(after):
                    return f"{len(after)} elements come through instead of {len(before)}", ()
                for mine, other in zip(before, after, strict=True):
                    spec.add(other)
                    if refused := self._refused_pair(mine, other):
                        return refused, ()
                    pairs.add(mine, other)
                ran += 1
        except OP_FAILURES as error:
            return f"it fails: {error.message.splitlines()[0]}", ()
        if ran < min(LEAST_ELEMENTS, len(sampled.held)):
            return NO_TIME, ()
        refused = sampled.spec.difference(spec) or pairs.told_refused() or self._decided_by(order[place:], pairs)
        return refused, pairs.differences()

    def _made(self, sides: Sequence[Sequence[Stage]], number: int) -> Iterator[list[Token]]:
        for stages in sides:
            yield run_through(stages, self._sampled.token(number))

    def _decided_by(self, behind: OpOrder, pairs: RewrittenElements) -> str:
        """Return which operator decides by a column that has other values; empty if none does."""
        changed = [one.column for one in pairs.differences() if one.changed]
        for name in behind if changed else ():
            facts = self.exchanges.facts[name]
            for column in sorted(facts.reads) if facts.decides else ():
                if any(one.startswith(column) for one in changed):
                    return f"{name!r} decides by column {column!r} which elements there are, and it has other values"
        return ""


def make_trial(sampled: Sampled, request: OrderRequest) -> Trial:
    """Return the trial of orders that a request asks for."""
    return Trial(sampled, request.check, request.engine, request.mode, rewrites=request.rewrites)


def trial_error(error: BaseException) -> str:
    """Return why a trial was given up, in words."""
    return f"trying another way to run them ended with {told(error)}".partition("\n")[0]


def _not_taken_over(one: Pushed, why: str) -> Refused:
    return Refused(one.ops, f"the decoder takes nothing over (rule {one.rule}): {why}")


def refused_by_check(check: Check, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return why a user's check refuses an element; empty if it does not."""
    try:
        answer = check(before, after)
    except Exception as error:  # a check may be made of assertions
        return f"check= raised {type(error).__name__}: {error}".strip()
    return "" if answer is None or answer else "check= returned False"
