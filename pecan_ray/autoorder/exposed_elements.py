"""Elements that are pushed to the ends of their range: does an order agree with the user's on them?

A saturation of few pixels is no difference by any measure over a sample.  Of exposed elements it touches half.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pecan_ray.autoorder.op_runner import OP_FAILURES, Token
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder
from pecan_ray.autoorder.values import summaries
from pecan_ray.engines.foreign import as_array, with_array
from pecan_ray.reorder.exposure import SHARES, ends, exposable, exposed, reach
from pecan_ray.reorder.value_guard import Summaries, ValueGuard

Reaches: TypeAlias = dict[str, tuple[float, float]]
"""The ends of the range of each column that can be exposed."""

EXPOSED = 16
"""Elements of the sample that are exposed, every second one too much, the others too little."""
ENOUGH_S = 0.3
"""After so long fewer are enough,"""
LEAST = 2 * len(SHARES)
"""but so many: a bright and a dark one of each share.  With half of them, orders were refused that are right."""


@dataclass(frozen=True)
class Exposed:
    """An element, pushed to the ends of its range where an order begins to differ from the user's."""

    number: int
    token: Token
    usual: tuple[Summaries, ...]
    """What becomes of it in the user's order."""


class ExposedElements:
    """Exposed elements of one sampled stretch."""

    def __init__(self, sampled: Sampled, noisy: frozenset[str]) -> None:
        self._sampled, self._runner, self._noisy = sampled, sampled.runner, noisy
        self._user: OpOrder = sampled.stretch.names
        self._exposed: dict[int, list[Exposed]] = {}

    def refused(self, order: OpOrder, free: Collection[str], *, exactly: bool = False) -> str:
        """Return why an order is refused; empty if it agrees with the user's (`exactly`: its results are equal)."""
        place = next((n for n, (a, b) in enumerate(zip(self._user, order, strict=True)) if a != b), len(order))
        if place not in self._exposed:
            self._exposed[place] = list(self._expose(place))
        if not self._sampled.in_time():
            return NO_TIME
        stages = self._runner.stages(order)[place:]
        guard = ValueGuard(self._noisy, exposed=True)
        for one in self._exposed[place]:
            if not self._sampled.in_time():
                return NO_TIME
            try:
                made = self._sampled.run(stages, one.number, one.token)
            except OP_FAILURES as error:
                return f"it fails where values reach the ends of their range: {error.message.splitlines()[0]}"
            if len(made) != len(one.usual):
                return (
                    f"it lets {len(made)} elements through where values reach the ends of their range, and the "
                    f"user's order lets {len(one.usual)}"
                )
            for before, output in zip(one.usual, made, strict=True):
                guard.add(before, summaries(self._runner.columns(output)))
        if exactly:
            changed = next((one.column for one in guard.differences(free) if one.changed), None)
            return f"column {changed!r} is not equal where values reach the ends of their range" if changed else ""
        refused = guard.refused(free)
        return f"its values are others where they reach the ends of their range: {refused}" if refused else ""

    def _expose(self, place: int) -> Iterator[Exposed]:
        """Yield elements as they come to a place of the user's order, exposed, and what becomes of them."""
        stages, held = self._runner.stages(self._user), self._sampled.held
        began, given = self._sampled.clock(), list[tuple[int, Token]]()
        for number in range(min(EXPOSED, len(held))):
            if self._enough(number, began):
                break
            given += [(number, piece) for piece in self._sampled.run(stages[:place], number, held[number])]
        spans = spans_of(self._runner.columns(piece) for _, piece in given)
        for count, (number, piece) in enumerate(given[:EXPOSED] if spans else []):
            if self._enough(count, began):
                return
            share = SHARES[count // 2 % len(SHARES)]
            columns = exposed_columns(self._runner.columns(piece), spans, bright=count % 2 == 0, share=share)
            token = self._runner.replaced(piece, columns)
            try:
                made = self._sampled.run(stages[place:], number, token)
            except OP_FAILURES:
                continue  # the user's order does not take it either
            yield Exposed(number, token, tuple(summaries(self._runner.columns(output)) for output in made))

    def _enough(self, count: int, began: float) -> bool:
        return not self._sampled.in_time() or (count >= LEAST and self._sampled.clock() - began > ENOUGH_S)


def spans_of(elements: Iterable[Mapping[str, Any]]) -> Reaches:
    """Return the ends of the range of each column that can be exposed."""
    found: dict[str, list[npt.NDArray[Any]]] = {}
    for element in elements:
        for name, value in element.items():
            if (array := array_of(value)) is not None and exposable(array):
                found.setdefault(name, []).append(array)
    spans = {}
    for name, arrays in found.items():
        lows, highs = zip(*map(reach, arrays), strict=True)
        spans[name] = ends(arrays[0].dtype, min(lows), max(highs))
    return spans


def exposed_columns(element: Mapping[str, Any], spans: Reaches, *, bright: bool, share: float) -> dict[str, Any]:
    """Return the columns of an element that can be exposed, exposed."""
    found = {}
    for name, (low, high) in spans.items():
        array = array_of(element.get(name))
        if array is not None and exposable(array):
            found[name] = with_array(element[name], exposed(array, low, high, bright=bright, share=share))
    return found


def array_of(value: Any) -> npt.NDArray[Any] | None:
    """Return a value as an array, if it is one."""
    return value if isinstance(value, np.ndarray) else as_array(value)
