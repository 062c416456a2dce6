"""Trying another order on the sample: does it run, are its results what the user meant, is it faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pecan_ray.autoorder.element_spec import ElementSpec, equal
from pecan_ray.autoorder.facts import OpLoad
from pecan_ray.autoorder.op_runner import run_through
from pecan_ray.autoorder.op_watch import LEAST_LOOKED_AT, OpWatch
from pecan_ray.autoorder.order_request import Check
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.speed import PATIENCE_S, SpeedComparison, compare_speed
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder
from pecan_ray.autoorder.value_trial import ValueTrial
from pecan_ray.errors import ElementError
from pecan_ray.reorder.policy import Pair
from pecan_ray.reorder.value_guard import ColumnDifference

COMMUTE_ELEMENTS = 8
FIRST_LOOK = 16
"""Elements that show whether an order is worth being measured,"""
FIRST_LOOK_S = 0.2
"""unless they take longer: then a few of them do."""
REST_S = 1.0
"""Time for verifying an order on the elements beyond those."""
SLOWED_SHARE = 0.02
"""An operator that is slow in an order counts if it loses this share of all the time."""


class Trial:
    """Other orders on the elements of one sampled stretch."""

    def __init__(
        self,
        sampled: Sampled,
        check: Check | None,
        *,
        equal_results: bool,
        pushed: bool = False,
        guarded: bool = False,
    ) -> None:
        """`pushed`: orders are compared with what the decoder takes over in each; `guarded`: values are to stay."""
        self._sampled, self._check, self._equal_results, self._pushed = sampled, check, equal_results, pushed
        self._guarded = guarded
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

    def in_time(self) -> bool:
        """Tell whether something more may be begun."""
        return self._sampled.in_time()

    @property
    def recasting(self) -> set[str]:
        """Operators that changed a column's dtype in some order."""
        return self._watch.recasting

    def loads(self, order: OpOrder) -> tuple[OpLoad, ...]:
        """Return what operators are given in an order that was looked at."""
        return self._watch.loads(order)

    def differences(self, order: OpOrder) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs in an order that was looked at."""
        return self._values.differences(order)

    def other_values(self, order: OpOrder) -> str:
        """Return why the values of an order are not those that the user meant; empty if they may be."""
        if self._equal_results:
            return self._values.refused_on_unusual_values(order, exactly=True)
        return self._values.refused(order) if self._guarded else ""

    def look(self, order: OpOrder) -> str:
        """Run an order on the first elements and note the operators' times in it; return why it is refused, or ""."""
        return self.look_at_form(order) or self.other_values(order)

    def look_at_form(self, order: OpOrder) -> str:
        """Do the same without a judgement of the values."""
        self._values.begin(order)
        self._watch_user()
        self._watch.begin(order)
        refused, ran = self._verify(order, 0, self._first, watched=True)
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
        until = self._sampled.clock() + REST_S
        refused, ran = self._verify(order, self._first, len(self._sampled.held), until)
        refused = refused or self.other_values(order)
        return refused, self._first + ran

    def _verify(
        self, order: OpOrder, begin: int, end: int, until: float = math.inf, *, watched: bool = False
    ) -> tuple[str, int]:
        sampled, spec, ran = self._sampled, ElementSpec(), 0
        self.failed = ""
        try:
            stages = self._runner.stages(order)
            for number in range(begin, min(end, len(sampled.held))):
                if not sampled.in_time() or sampled.clock() > until:
                    break
                token, count = sampled.token(number), sampled.results[number]
                outputs = self._watch.run(order, stages, token) if watched else run_through(stages, token)
                if len(outputs) != count:
                    return f"it lets {len(outputs)} elements through where the user's order lets {count}", ran
                after = [self._runner.columns(output) for output in outputs]
                for element in after:
                    spec.add(element)
                if refused := self._compare_results(number, after):
                    return refused, ran
                self._values.compare(order, number, outputs)
                ran += 1
        except ElementError as error:
            self.failed = str(error.fields.get("op", ""))
            return f"it fails: {error.message.splitlines()[0]}", ran
        return sampled.spec.difference(spec), ran

    def _compare_results(self, number: int, after: Sequence[dict[str, Any]]) -> str:
        if self._check is None and not self._equal_results:
            return ""
        before = [self._runner.columns(piece) for piece in run_through(self._user, self._sampled.token(number))]
        for mine, other in zip(before, after, strict=True):
            if self._equal_results and not equal(mine, other):
                return "its result on the sample is not equal to that of the user's order"
            if self._check is not None and (refused := _ask(self._check, mine, other)):
                return refused
        return ""

    def commutes(self, pair: Pair) -> bool:
        """Tell whether exchanging two operators leaves the results on the first elements equal."""
        if pair not in self._verdicts:
            self._verdicts[pair] = self._commutes(*pair)
        return self._verdicts[pair]

    def _commutes(self, first: str, second: str) -> bool:
        before = self._names[: self._names.index(first)]
        try:
            usual, exchanged = (
                self._runner.stages(order) for order in ((*before, first, second), (*before, second, first))
            )
            for token in self._sampled.held[:COMMUTE_ELEMENTS]:
                if not self._sampled.in_time():
                    return False
                found = [
                    [self._runner.columns(piece) for piece in run_through(stages, self._runner.fresh(token))]
                    for stages in (usual, exchanged)
                ]
                if not equal(*found):
                    return False
        except ElementError:
            return False
        return True

    def compare(
        self, order: OpOrder, other: OpOrder | None = None, patience_s: float = PATIENCE_S
    ) -> SpeedComparison | None:
        """Run an order in turn with another one (None: the user's), until it is clear whether it is faster.

        None if there was no time for it.
        """
        orders = (other or self._names, order)
        return compare_speed(self._sampled, orders, pushed=self._pushed, patience_s=patience_s)


def _ask(check: Check, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return why a user's check refuses an element; empty if it does not."""
    try:
        answer = check(before, after)
    except Exception as error:  # a check may be made of assertions
        return f"check= raised {type(error).__name__}: {error}".strip()
    return "" if answer is None or answer else "check= returned False"
