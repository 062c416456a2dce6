"""Whether an order leaves the values of the sample what the user meant: the user's results, kept small, and its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from typing import TypeAlias

from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import Token
from pecan_ray.autoorder.values import summaries
from pecan_ray.plan.operators import Filter
from pecan_ray.plan.splits import Element
from pecan_ray.reorder.value_guard import ColumnDifference, Summaries, ValueGuard
from pecan_ray.reorder.value_summary import Field

OpOrder: TypeAlias = tuple[str, ...]
MOST_ELEMENTS = 128
"""Elements whose values are compared; of the others only the form is."""
NO_TIME = "there was no time to run it"
LOST = 0.25
"""Share of the elements that an operator changes: if it lets more of them pass in another order, that is refused,"""
HARDLY = 0.02
"""unless values then differ by no more than this share of a standard deviation."""


class ValueCheck:
    """The results of one stretch's sample in the user's order, and what other orders make of them."""

    def __init__(self, held: Sequence[Token], columns: Callable[[Token], Element]) -> None:
        self._held, self._columns = held, columns
        self._usual: dict[int, list[Summaries]] = {}
        self._guards: dict[OpOrder, ValueGuard] = {}
        self._noise: frozenset[str] | None = None

    def keep(self, number: int, outputs: Sequence[Token]) -> None:
        """Keep what has become of an element in the user's order."""
        if number not in self._usual:
            self._usual[number] = [summaries(self._columns(output)) for output in outputs]

    def kept(self, number: int) -> bool:
        """Tell whether an element's results are there."""
        return number in self._usual

    def compare(self, order: OpOrder, number: int, outputs: Sequence[Token]) -> None:
        """Take into account what has become of an element in another order."""
        guard = self._guards.setdefault(order, ValueGuard(self.noisy))
        for before, output in zip(self._usual[number], outputs, strict=True):
            guard.add(before, summaries(self._columns(output)))

    def begin(self, order: OpOrder) -> None:
        """Forget what an order has made of the elements."""
        self._guards.pop(order, None)

    def refused(self, order: OpOrder, free: Collection[str]) -> str:
        """Return why the values of an order are not those that the user meant; empty if they may be."""
        guard = self._guards.get(order)
        return "" if guard is None else guard.refused(free)

    def differences(self, order: OpOrder, free: Collection[str]) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs in an order."""
        guard = self._guards.get(order)
        return () if guard is None else tuple(guard.differences(free))

    @property
    def noisy(self) -> frozenset[str]:
        """The columns that enter the stretch as noise."""
        if self._noise is None:
            found: dict[str, list[bool]] = {}
            for token in self._held[:4]:
                for (column, _), one in summaries(self._columns(token)).items():
                    if isinstance(one, Field) and one.exact is None and not one.classes:
                        found.setdefault(column, []).append(one.structure < 3 * one.structure_of_noise)
            self._noise = frozenset(column for column, noisy in found.items() if all(noisy))
        return self._noise


def exchanges(user: OpOrder, order: OpOrder) -> list[tuple[str, str]]:
    """Return the pairs, as in the user's order, that another order has the other way round."""
    place = {name: number for number, name in enumerate(order)}
    return [(first, second) for first, second in combinations(user, 2) if place[first] > place[second]]


def uncontrolled(ops: Collection[OpSample]) -> frozenset[str]:
    """Return the columns for which operators draw other numbers in every run."""
    return frozenset(
        column for op in ops if op.draws or (op.random and op.unequal) for column in op.writes | op.creates
    )


def drawn_by_both(ops: Sequence[OpSample], order: OpOrder) -> frozenset[str]:
    """Return the columns for which operators draw random numbers whose order is another than the user's."""
    by_name = {op.name: op for op in ops}
    found: frozenset[str] = frozenset()
    for first, second in exchanges(tuple(by_name), order):
        a, b = by_name[first], by_name[second]
        if a.random and b.random:
            found |= _may_draw(a) & _may_draw(b)
    return found


def _may_draw(op: OpSample) -> frozenset[str]:
    """Return the columns that an operator writes, and the one that it is for: few of its runs may have been watched."""
    own = {op.op.on} if op.op.on is not None and not isinstance(op.op, Filter) else set()
    return op.writes | op.creates | own


def lost_work(name: str, usual: Sequence[bool], new: Sequence[bool]) -> str:
    """Say that an operator hardly does anything any more, from whether it changed each element; empty if it does."""
    acted = [now for before, now in zip(usual, new, strict=False) if before]
    lost = sum(not now for now in acted)
    if lost <= LOST * len(acted):
        return ""
    return f"{name!r} does nothing any more on {lost} of the {len(acted)} elements that it changed"
