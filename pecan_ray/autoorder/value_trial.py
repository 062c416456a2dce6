"""Are the values of an order those that the user meant?  The sample's elements are compared, and unusual ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pecan_ray.autoorder.deciders import Deciders
from pecan_ray.autoorder.exposed_elements import ExposedElements
from pecan_ray.autoorder.fresh_check import FreshCheck
from pecan_ray.autoorder.op_inputs import OpInputs
from pecan_ray.autoorder.op_runner import OP_FAILURES, Token, run_through
from pecan_ray.autoorder.op_watch import OpWatch
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import (
    HARDLY,
    MOST_ELEMENTS,
    NO_TIME,
    OpOrder,
    ValueCheck,
    drawn_by_both,
    exchanges,
    lost_work,
    uncontrolled,
)
from pecan_ray.reorder.policy import Pair
from pecan_ray.reorder.value_guard import ColumnDifference

TAKEN_OVER = 0.3
"""Standard deviations by which a value may differ from itself where a decoder takes over the work behind it.  Of
photographs that are decoded at a reduced size it is 0.03 to 0.14, the more the smaller they become."""


class ValueTrial:
    """The values of orders beside those of the user's, on one sampled stretch."""

    def __init__(self, sampled: Sampled, watch: OpWatch) -> None:
        self._sampled, self._watch, self._runner = sampled, watch, sampled.runner
        self._user: OpOrder = sampled.stretch.names
        self._ops = sampled.profile().ops
        self._uncontrolled = uncontrolled(self._ops)
        self._check = ValueCheck(sampled.held, self._runner.columns)
        self._inputs = OpInputs(sampled, self._ops)
        self._deciders = Deciders(sampled, self._ops, self._uncontrolled)
        self._exposed = ExposedElements(sampled, self._check.noisy)
        self._fresh = FreshCheck(sampled, sampled.fresh, self._check.noisy) if sampled.fresh is not None else None
        self._unusual: dict[OpOrder, str] = {}
        self.idle = ""
        """The operator that did nothing any more in the order that was begun last; empty if none."""

    def begin(self, order: OpOrder) -> None:
        """Forget what an order has made of the elements."""
        self.idle = ""
        self._check.begin(order)

    def keep(self, number: int, outputs: Sequence[Token]) -> None:
        """Keep what has become of an element in the user's order."""
        self._check.keep(number, outputs)

    def compare(self, order: OpOrder, number: int, outputs: Sequence[Token]) -> None:
        """Take into account what has become of an element in another order, if not too many were seen."""
        if number >= MOST_ELEMENTS:
            return
        if not self._check.kept(number):
            usual = self._runner.stages(self._user)
            self._check.keep(number, run_through(usual, self._sampled.token(number)))
        self._check.compare(order, number, outputs)

    def differences(self, order: OpOrder) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs in an order that was looked at."""
        free = self._free(order)
        afresh = () if self._fresh is None else self._fresh.differences(order, free)
        return afresh or self._check.differences(order, free)

    def differences_taken_over(self, made: OpOrder, order: OpOrder) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs where decoders take over work in an order.

        `made`: the operators that are left.
        """
        return self._check.differences(made, self._free(order))

    def taken_over_refused(self, made: OpOrder, order: OpOrder, decoders: Collection[str], *, bounded: bool) -> str:
        """Return why decoders may not take over work in an order; empty if they may.

        `made`: what is left of it.  `bounded`: values have to stay near those of the user's order.
        """
        if refused := self._check.refused(made, self._free(order)):
            return f"its values are others: {refused}"
        for one in self.differences_taken_over(made, order):
            drawn = any(one.column.startswith(column) for column in self._uncontrolled)
            if bounded and one.apart > TAKEN_OVER and not drawn:
                return f"column {one.column!r}: a value differs from itself by {one.apart:.2g} standard deviations"
        return self._deciders.refused(order, order, decoders)

    def _free(self, order: OpOrder) -> frozenset[str]:
        """Return the columns whose elements need not be recognised in an order."""
        return self._uncontrolled | drawn_by_both(self._ops, order)

    @property
    def afresh(self) -> bool:
        """Whether orders are run where no other one has, on all elements in the end."""
        return self._fresh is not None

    def refused_afresh(self, order: OpOrder, count: int, *, exactly: bool = False) -> str:
        """Return why an order is refused where the user's has not run before it on the first elements; empty if not."""
        if self._fresh is None:
            return ""
        free = self._uncontrolled if exactly else self._free(order)
        return self._fresh.refused(order, count, free, exactly=exactly)

    def ran_afresh(self, order: OpOrder) -> int:
        """Return on how many elements an order has run so."""
        return 0 if self._fresh is None else self._fresh.elements(order)

    def refused(self, order: OpOrder) -> str:
        """Return why the values of an order are not those that the user meant; empty if they may be."""
        free = self._free(order)
        if refused := self._check.refused(order, free):
            return f"its values are others: {refused}"
        if any(one.apart > HARDLY for one in self.differences(order)):
            if lost := self._lost_work(order):
                return lost
            if refused := self._hidden_exchange(order, free - self._uncontrolled):
                return refused
        return self.refused_on_unusual_values(order)

    def refused_on_unusual_values(self, order: OpOrder, *, exactly: bool = False) -> str:
        """Return why an order is refused by elements that the sample does not have, or seldom; empty if it is not."""
        if order not in self._unusual:
            if not self._sampled.in_time():
                return NO_TIME
            free = self._uncontrolled if exactly else self._free(order)
            with np.errstate(all="ignore"):  # a function may warn of values that it is never given
                refused = self._deciders.refused(self._user, order) or self._inputs.refused(order)
                refused = refused or self._exposed.refused(order, free, exactly=exactly)
            self._unusual[order] = refused
        return self._unusual[order]

    def _lost_work(self, order: OpOrder) -> str:
        """Return which operator does nothing any more; empty if none."""
        usual, now = (self._watch.acted.get(one, []) for one in (self._user, order))
        for name in {name for pair in exchanges(self._user, order) for name in pair}:
            before, new = ([one.get(name, False) for one in acted] for acted in (usual, now))
            if lost := lost_work(name, before, new):
                self.idle = name
                return lost
        return ""

    def _hidden_exchange(self, order: OpOrder, drawn: frozenset[str]) -> str:
        """Return which exchange of operators that do not both draw makes elements of `drawn` columns others.

        Where two that draw are exchanged, elements need not be recognised, and another exchange could hide behind that.
        """
        by_name = {op.name: op for op in self._ops}
        for pair in exchanges(self._user, order) if drawn else ():
            first, second = (by_name[name] for name in pair)
            if (first.random and second.random) or not drawn & (first.writes | second.writes):
                continue
            if refused := self._exchange_refused(pair):
                return f"its values are others where {pair[0]!r} and {pair[1]!r} are exchanged: {refused}"
        return ""

    def _exchange_refused(self, pair: Pair) -> str:
        before = self._user[: self._user.index(pair[0])]
        orders = ((*before, *pair), (*before, *pair[::-1]))
        values = ValueCheck(self._sampled.held, self._runner.columns)
        try:
            usual, exchanged = (self._runner.stages(order) for order in orders)
            for number in range(len(self._watch.runs[self._user])):
                if not self._sampled.in_time():
                    return NO_TIME
                outputs = [run_through(stages, self._sampled.token(number)) for stages in (usual, exchanged)]
                if len(outputs[0]) != len(outputs[1]):
                    return ""  # the order itself was seen to let as many through
                values.keep(number, outputs[0])
                values.compare(orders[1], number, outputs[1])
        except OP_FAILURES:
            return ""  # without those between them they do not run: nothing is to be learned
        return values.refused(orders[1], self._uncontrolled)
