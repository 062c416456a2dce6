"""The values of orders beside those of the user's, each where nothing has run before."""

from __future__ import annotations

from collections.abc import Collection

from pecan_ray.autoorder.fresh_runs import FreshRun, FreshRuns, RunLimits
from pecan_ray.autoorder.sample import LEAST_ELEMENTS, Sampled
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder
from pecan_ray.reorder.value_guard import ColumnDifference, ValueGuard

ENOUGH_S = 0.3
"""After so long a few elements are enough for a first look."""
ALL_S = 1.2
"""Time for all elements of a sample."""
MOST_S = 20.0
"""No run takes longer, however much time there is."""


class FreshCheck:
    """Orders of one sampled stretch, run in processes of their own."""

    def __init__(self, sampled: Sampled, runs: FreshRuns, noisy: frozenset[str]) -> None:
        self._sampled, self._runs, self._noisy = sampled, runs, noisy
        self._user: OpOrder = sampled.stretch.names
        self._usual: FreshRun | None = None
        self._asked = 0
        """Elements that the user's order was asked for."""
        self._guards: dict[OpOrder, ValueGuard] = {}
        """Of orders that were run on enough elements."""
        self._ran: dict[OpOrder, int] = {}
        """On how many."""

    def refused(self, order: OpOrder, count: int, free: Collection[str], *, exactly: bool) -> str:
        """Return why an order is refused by the first elements, or by as many as there is time for; empty if not.

        `exactly`: its results have to be equal.
        """
        late = NO_TIME if order not in self._guards else ""  # what it has passed before holds
        if not self._sampled.in_time():
            return late
        limits = RunLimits(ENOUGH_S if count < len(self._sampled.held) else ALL_S, min(self._sampled.left_s(), MOST_S))
        places = self._sampled.places[:count]
        if self._usual is None or self._asked < count:
            new, self._usual = self._runs.run([order, self._user], places, limits)
            self._asked = count
        else:
            (new,) = self._runs.run([order], places, limits)
        usual = self._usual
        if usual.failed:
            return f"your own order does not run in a process of its own: {usual.failed}"
        if new.failed:
            return f"it fails where your order has not run before it: {new.failed}"
        both = list(zip(usual.made, new.made, strict=False))
        if len(both) < min(LEAST_ELEMENTS, count):
            return late
        if refused := self._sampled.spec.difference(new.spec):
            return refused
        guard, self._ran[order] = ValueGuard(self._noisy), len(both)
        self._guards[order] = guard
        for before, after in both:
            if len(before) != len(after):
                return f"it lets {len(after)} elements through where your order lets {len(before)}"
            for one, other in zip(before, after, strict=True):
                guard.add(one, other)
        if exactly:
            refused = next((f"column {one.column!r}" for one in guard.differences(free) if one.changed), "")
        else:
            refused = guard.refused(free)
        return f"its values are others where your order has not run before it: {refused}" if refused else ""

    def elements(self, order: OpOrder) -> int:
        """Return on how many elements an order was run."""
        return self._ran.get(order, 0)

    def differences(self, order: OpOrder, free: Collection[str]) -> tuple[ColumnDifference, ...]:
        """Return by how much each column differs in an order; nothing where it was not run."""
        guard = self._guards.get(order)
        return () if guard is None else tuple(guard.differences(free))
