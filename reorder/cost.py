"""What an order costs, estimated from measurements.

Let g_j be op j's factor of bytes per element and e_j its elements out per element in (I_j = g_j · e_j).  Behind a set
S of ops an element has B·Π_S g_j bytes and there are Π_S e_j of them, whatever the order within S.  So op i placed
behind S takes Π_S e_j times its seconds, in proportion to the bytes of an element unless it looks at few of them, and
an order takes the sum.

The model takes a factor to be the same everywhere.  It is not for an op whose output has a fixed size (a resize
behind a crop): therefore an order is run on the sample before it is adopted.

An op without a measured time is taken to cost as much per byte as the measured ones do together; where none is
measured the estimate is the volume of data that flows into ops.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pecan_ray.errors import PlanError
from pecan_ray.reorder.profile import ProfiledOp, check_ops, sections

LARGEST = 1e100
"""Bound on a product of factors: a thousand ops that double the data must not overflow."""
EXCHANGE_SHARE = 0.01
"""Share of the user's total that each exchange of two ops has to gain: what was measured is not more certain;"""
EXCHANGES_SHARE = 0.1
"""and what one op has to gain that passes all others of a long section."""
Needs: TypeAlias = Mapping[int, Collection[int]]
"""Op -> the ops of its section that must run before it."""


class Load(NamedTuple):
    """What an op is expected to be given in some order."""

    name: str
    bytes_ratio: float
    """Bytes of an element at its input, over those of an element that enters the first op."""
    elements: float
    """Elements that it is given per element that enters the first op."""
    seconds: float | None
    """Expected time per element that enters the first op; None: not measured."""


class CostModel:
    """Estimates for one list of ops, which were measured in the user's order; ops are named by their index there."""

    def __init__(self, ops: Sequence[ProfiledOp], neutral_band: float = 0.0) -> None:
        self._ops = ops
        # A neutral factor counts as 1: the noise of a sample would add up along an order.
        neutral = [op.elements == 1.0 and op.comparison_result(neutral_band) == "neutral" for op in ops]
        self._size_ratio = [1.0 if same else op.inflation / op.elements for op, same in zip(ops, neutral, strict=True)]
        self._measured_at = list(itertools.accumulate(self._size_ratio, _times, initial=1.0))
        """Bytes of an element that each op was given, over those that entered the first."""
        known = [(at, op.seconds) for at, op in zip(self._measured_at, ops, strict=False) if op.seconds is not None]
        volume = sum(at for at, _ in known)
        self._rate = sum(seconds for _, seconds in known) / volume if volume else 1.0
        """Seconds per relative byte of an op that was not measured."""

    def loads(self, order: Iterable[int]) -> list[Load]:
        """Return what each op is expected to be given, and to take."""
        size, elements, out = 1.0, 1.0, []
        for index in order:
            op = self._ops[index]
            # Time goes with the bytes, or not at all: curves by size made estimates finer, but each move is
            # measured (docs/decisions/autoorder.md#179-moves-earn-their-places).
            ratio = size / self._measured_at[index] if op.by_size else 1.0
            seconds = None if op.seconds is None else elements * op.seconds * ratio
            out.append(Load(op.name, size, elements, seconds))
            size, elements = _times(size, self._size_ratio[index]), _times(elements, op.elements)
        return out

    def total(self, order: Iterable[int]) -> float:
        """Return the seconds per source element of the ops in this order."""
        volumes = ((one.seconds, one.elements * one.bytes_ratio) for one in self.loads(order))
        return sum(self._rate * volume if seconds is None else seconds for seconds, volume in volumes)

    def measured_total(self, order: Iterable[int]) -> float | None:
        """Return the seconds of the measured ops; None where an op that can move, or every op, is not measured."""
        # Ops that cannot move are in both orders alike, and need no time.
        contested = [index for section in sections(self._ops) if len(section) > 1 for index in section]
        unmeasured = any(self._ops[index].seconds is None for index in contested)
        if unmeasured or all(op.seconds is None for op in self._ops):
            return None
        return sum(load.seconds or 0.0 for load in self.loads(order))

    def min_cost_order(self, section: range, needs: Needs) -> list[int]:
        """Return the order of a section to which moves of single ops lead, each of which gains more than its price."""
        order, begin = list(section), list(range(section.start))
        share = min(EXCHANGE_SHARE, EXCHANGES_SHARE / max(len(order), 1))
        price = max(share * self.total([*begin, *order]), 1e-300)

        def cost(one: list[int]) -> float:
            return self.total([*begin, *one]) + price * sum(a > b for a, b in itertools.combinations(one, 2))

        known = cost(order)
        while moved := [(cost(one), one) for one in _with_one_moved(order, needs)]:
            least, best = min(moved, key=operator.itemgetter(0))
            if not least < known:
                break
            known, order = least, best
        return order


def _times(one: float, other: float) -> float:
    return min(max(one * other, 1 / LARGEST), LARGEST)


def _with_one_moved(order: list[int], needs: Needs) -> Iterator[list[int]]:
    """Yield the orders in which one op stands elsewhere, and follows those that it needs."""
    for place, index in enumerate(order):
        rest = [*order[:place], *order[place + 1 :]]
        # Step by step away from its place: where an op that it needs stands in the way, no place beyond is
        # reachable.
        for to in range(place - 1, -1, -1):
            if order[to] in needs.get(index, ()):
                break
            yield [*rest[:to], index, *rest[to:]]
        for to in range(place + 1, len(order)):
            if index in needs.get(order[to], ()):
                break
            yield [*rest[:to], index, *rest[to:]]


def predict(ops: Iterable[ProfiledOp], order: Sequence[str]) -> list[Load]:
    """Return what each op of `order` is expected to be given, and how long it takes; `ops` are in the user's order."""
    checked = check_ops(ops)
    index = {op.name: number for number, op in enumerate(checked)}
    if sorted(order) != sorted(index):
        raise PlanError(f"order must name each op once: {list(index)}, but got {list(order)}.")
    return CostModel(checked).loads(index[name] for name in order)
