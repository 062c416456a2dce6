"""Trying another order on the sample: does it run, are its results what the user meant, is it faster."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from pecan_ray import part_decoding
from pecan_ray.autoorder.adopted import NOTHING_TAKEN_OVER, Refused, TakenOver
from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.facts import OpLoad
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token, run_through
from pecan_ray.autoorder.op_watch import LEAST_LOOKED_AT, OpWatch
from pecan_ray.autoorder.order_request import Check, OrderRequest
from pecan_ray.autoorder.push_down import EARLY, KNOWN_FUNCTIONS, choices, merged
from pecan_ray.autoorder.rewrites import Pushed
from pecan_ray.autoorder.sample import LEAST_ELEMENTS, Sampled
from pecan_ray.autoorder.speed import PATIENCE_S, SpeedComparison, compare_speed
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder
from pecan_ray.autoorder.value_trial import ValueTrial
from pecan_ray.errors import told
from pecan_ray.options import EngineName
from pecan_ray.plan.operators import Filter
from pecan_ray.reorder import EQUAL_RESULTS, Mode
from pecan_ray.reorder.policy import Pair
from pecan_ray.reorder.value_guard import ColumnDifference

COMMUTE_ELEMENTS = 16
FIRST_LOOK = 16
"""Elements that show whether an order is worth being measured,"""
FIRST_LOOK_S = 0.2
"""unless they take longer: then a few of them do."""
REST_S = 1.0
"""Time for verifying an order on the elements beyond those."""
TAKEN_OVER_ELEMENTS = 64
"""Elements on which decoders take over what follows them, to see whether results stay,"""
TAKEN_OVER_S = 0.7
"""and the time for that;"""
RUNS_OF_LEAST = 3
"""where operators are slow, it is enough to run the least number of elements so many times in the user's order."""
NO_TIME_TO_MEASURE = "there was no time to measure it"
TAKEN_OVER_PATIENCE_S = 0.7
"""Measured seconds that show whether it is faster so."""
COMPARING: tuple[Mode, ...] = ("safe", "strict", "cost")
"""Modes that compare values, and in which decoders may take work over."""
SLOWED_SHARE = 0.02
"""An operator that is slow in an order counts if it loses this share of all the time."""


class Trial:
    """Other orders on the elements of one sampled stretch."""

    def __init__(
        self,
        sampled: Sampled,
        check: Check | None,
        engine: EngineName,
        mode: Mode,
    ) -> None:
        self._sampled, self._check = sampled, check
        self._equal_results = mode in EQUAL_RESULTS
        """Of orders; what is rewritten in them"""
        self._equal_rewrites = mode == "strict"
        """need not be equal, but within bounds."""
        self._decoding: EngineName | None = engine if mode in COMPARING else None
        """The engine whose decoders may take work over; None: none does."""
        self._guarded = mode in ("safe", "cost")
        """Values are to stay where they need not be equal."""
        self._ops = {op.name: op for op in sampled.stretch.ops}
        self._taken_over: dict[OpOrder, TakenOver] = {}
        self._no_faster: set[tuple[OpOrder, Pushed]] = set()
        self._runner, self._names = sampled.runner, sampled.stretch.names
        self._user = self._runner.stages(self._names)
        self._user_seconds = sampled.profile().seconds or 0.0
        self._verdicts: dict[Pair, bool] = {}
        self._watch = OpWatch(self._runner)
        self._values = ValueTrial(sampled, self._watch)
        self.failed: str = ""
        """The operator that failed in the order that was looked at last; empty if none did."""
        self.slowed: dict[str, float] = {}
        """Operators that the sizes alone do not explain in that order: the seconds that they lost per element."""

    @property
    def user(self) -> OpOrder:
        """The operators in the user's order."""
        return self._names

    def in_time(self) -> bool:
        """Tell whether something more may be begun."""
        return self._sampled.in_time()

    @property
    def recasting(self) -> set[str]:
        """Operators that changed a column's dtype in some order."""
        return self._watch.recasting

    @property
    def idle(self) -> str:
        """The operator that did nothing any more in the order that was looked at last; empty if none."""
        return self._values.idle

    def loads(self, order: OpOrder) -> tuple[OpLoad, ...]:
        """Return what operators are given in an order that was looked at."""
        return self._watch.loads(order)

    def differences(self, order: OpOrder) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs in an order that was looked at."""
        return self._values.differences(order)

    def other_values(self, order: OpOrder, count: int | None = None) -> str:
        """Return why the values of an order are not those that the user meant; empty if they may be.

        `count`: elements on which it is run where the user's order has not run; None: the first ones.
        """
        if not (self._equal_results or self._guarded):
            return ""
        count = self._first if count is None else count
        if refused := self._values.refused_afresh(order, count, exactly=self._equal_results):
            return refused
        if self._equal_results:
            return self._values.refused_on_unusual_values(order, exactly=True)
        return self._values.refused(order)

    def look(self, order: OpOrder) -> str:
        """Run an order on the first elements and note the operators' times in it; return why it is refused, or ""."""
        return self.look_at_form(order) or self.other_values(order)

    def look_at_form(self, order: OpOrder) -> str:
        """Do the same without a judgement of the values."""
        self._values.begin(order)
        self._watch_user()
        self._watch.begin(order)
        refused, ran = self._verify(order, range(self._first), watched=True)
        if not refused and ran < self._first:
            refused = NO_TIME
        user, tallies = self._names, self._sampled.tallies
        moved = [name for name in order if set(user[: user.index(name)]) != set(order[: order.index(name)])]
        losses = {name: self._watch.lost_s(name, tallies[name], user, order) for name in moved}
        self.slowed = {name: lost for name, lost in losses.items() if lost > SLOWED_SHARE * self._user_seconds}
        for name in order:
            if name not in self.slowed:  # such times tell of another thing than the size and would mislead estimates
                tallies[name].elsewhere += [point for run in self._watch.runs[order] for point in run.get(name, [])]
        return refused

    def _watch_user(self) -> None:
        """Watch the operators on the first elements in the user's order, once."""
        if self._names in self._watch.runs:
            return
        self._watch.begin(self._names)
        began = self._sampled.clock()
        for number in range(min(FIRST_LOOK, len(self._sampled.held))):
            if number >= LEAST_LOOKED_AT and self._sampled.clock() - began > FIRST_LOOK_S:
                break
            self._values.keep(number, self._watch.run(self._names, self._user, self._sampled.token(number)))

    @property
    def _first(self) -> int:
        """The first elements, on which operators were watched in the user's order."""
        return len(self._watch.runs[self._names])

    def verify_rest(self, order: OpOrder) -> tuple[str, int]:
        """Run an order on the other elements; return why it is refused, or "", and how many elements it has run."""
        held = len(self._sampled.held)
        if self._values.afresh and self._check is None and not self._equal_results:
            return self.other_values(order, held), self._values.ran_afresh(order)
        refused, ran = self._verify(order, range(self._first, held), self._sampled.clock() + REST_S)
        return refused or self.other_values(order, held), self._first + ran

    def _verify(
        self,
        order: OpOrder,
        numbers: range,
        until: float = math.inf,
        *,
        watched: bool = False,
        decoders: Collection[str] = (),
    ) -> tuple[str, int]:
        """Run an order on some elements; return why it is refused, or "", and how many elements it has run."""
        sampled, spec, ran = self._sampled, ElementSpec(), 0
        exactly = self._equal_rewrites if decoders else self._equal_results
        made = self._made(order, decoders)
        self.failed = ""
        try:
            stages = self._runner.stages(order, decoders=decoders)
            for number in numbers[: len(sampled.held)]:
                if not sampled.in_time() or sampled.clock() > until:
                    break
                token, count = sampled.token(number), sampled.results[number]
                outputs = self._watch.run(order, stages, token) if watched else run_through(stages, token)
                if len(outputs) != count:
                    return f"it lets {len(outputs)} elements through where the user's order lets {count}", ran
                after = [self._runner.columns(output) for output in outputs]
                for element in after:
                    spec.add(element)
                if refused := self._compare_results(number, after, exactly=exactly):
                    return refused, ran
                self._values.compare(made, number, outputs)
                ran += 1
        except OP_FAILURES as error:
            self.failed = str(error.fields.get("op", ""))
            return f"it fails: {error.message.splitlines()[0]}", ran
        return sampled.spec.difference(spec), ran

    def _compare_results(self, number: int, after: Sequence[dict[str, Any]], *, exactly: bool) -> str:
        if self._check is None and not exactly:
            return ""
        before = [self._runner.columns(piece) for piece in run_through(self._user, self._sampled.token(number))]
        for mine, other in zip(before, after, strict=True):
            if exactly and not equal(mine, other):
                return "its result on the sample is not equal to that of the user's order"
            if self._check is not None and (refused := refused_by_check(self._check, mine, other)):
                return refused
        return ""

    def commutes(self, pair: Pair) -> bool:
        """Tell whether exchanging two operators leaves the results on the first elements equal.

        One of these elements at least has to be changed by both: what an operator does only to others (a blur of faces
        where there are any) is not seen there.  Of filters `Deciders` sees more.
        """
        if pair not in self._verdicts:
            self._verdicts[pair] = self._commutes(*pair)
        return self._verdicts[pair]

    def _commutes(self, first: str, second: str) -> bool:
        before = self._runner.stages(self._names[: self._names.index(first)])
        seen = any(isinstance(self._ops[name], Filter) for name in (first, second))
        try:
            usual, exchanged = (self._runner.stages(order) for order in ((first, second), (second, first)))
            for token in self._sampled.held[:COMMUTE_ELEMENTS]:
                if not self._sampled.in_time():
                    return False
                given, middle, made = self._steps((before, usual[:1], usual[1:]), token)
                if not equal(made, self._steps((before, exchanged), token)[-1]):
                    return False
                seen = seen or (not equal(given, middle) and not equal(middle, made))
        except OP_FAILURES:
            return False
        return seen

    def _steps(self, parts: Sequence[Sequence[Stage]], token: Token) -> list[list[dict[str, Any]]]:
        """Return what has become of an element behind each part of some stages."""
        pieces, found = [self._runner.fresh(token)], []
        for stages in parts:
            pieces = [made for piece in pieces for made in run_through(stages, piece)]
            found.append([dict(self._runner.columns(self._runner.fresh(piece))) for piece in pieces])
        return found

    def compare(
        self, order: OpOrder, other: OpOrder | None = None, patience_s: float = PATIENCE_S
    ) -> tuple[SpeedComparison | None, str]:
        """Run an order in turn with another one (None: the user's), until it is clear whether it is faster.

        In the user's own order decoders take over what `measure_taken_over` has found of it so far.  Returns None if
        there was no time for it, and how one of them fails on an element; empty if none does.
        """
        return self._in_turn([self._fused(other or self._names), self._fused(order)], patience_s)

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

    def warps(self, order: OpOrder) -> bool:
        """Tell whether operators could become one warp in an order, or are known, where results may be others."""
        if self._decoding is None or self._equal_rewrites:
            return False
        ways = choices([self._ops[name] for name in order], self._decoding)
        return any(one.rule in EARLY for found in ways for one in found)

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
                # Known functions may be faster with equal pixels: one warp is not always less than several functions.
                smaller = any(one.rule == KNOWN_FUNCTIONS and one.reduces for one in found.pushed)
                retry = measured is not None and smaller and self.in_time()
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
                if refused := self._not_to_try(one) or self._taking_over_refused(order, decoders):
                    found = replace(found, refused=(*found.refused, _not_taken_over(one, refused)))
                    continue
                differences = self._values.differences_taken_over(self._made(order, decoders), order)
                told = part_decoding.told(part_decoding.counts() - before)
                notes = (*found.notes, *([f"{one.decoder}: {told}"] if told else []))
                found = replace(found, pushed=(*found.pushed, one), differences=differences, notes=notes)
                break
        return found

    def _not_to_try(self, one: Pushed) -> str:
        """Return why something that a decoder could take over need not be run; empty if it is to be."""
        if one.reduces and self._equal_rewrites:
            return "images would be decoded at a reduced size, or warped at once, which changes their pixels"
        library = part_decoding.library() if one.only_parts else ""
        return library if isinstance(library, str) else ""

    def _taking_over_refused(self, order: OpOrder, decoders: Collection[str]) -> str:
        """Return why decoders may not take over what they could in an order; empty if they may."""
        made = self._made(order, decoders)
        self._values.begin(made)
        until = self._sampled.clock() + max(TAKEN_OVER_S, RUNS_OF_LEAST * LEAST_ELEMENTS * self._user_seconds)
        refused, ran = self._verify(order, range(TAKEN_OVER_ELEMENTS), until, decoders=decoders)
        self.failed = ""
        if not refused and ran < min(LEAST_ELEMENTS, len(self._sampled.held)):
            return NO_TIME
        if refused or not self._guarded:
            return refused
        bounded = self._equal_results or order == self._names  # an exchange that changes values hides what this does
        return self._values.taken_over_refused(made, order, decoders, bounded=bounded)

    def _made(self, order: OpOrder, decoders: Collection[str]) -> OpOrder:
        """Return the operators that are left of an order where decoders take over others."""
        if self._decoding is None or not decoders:
            return order
        return tuple(op.name for op in merged([self._ops[name] for name in order], self._decoding, decoders)[0])


def make_trial(sampled: Sampled, request: OrderRequest) -> Trial:
    """Return the trial of orders that a request asks for."""
    return Trial(sampled, request.check, request.engine, request.mode)


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
