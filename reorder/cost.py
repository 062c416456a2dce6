"""What an order costs, estimated from measurements.

Let g_j be op j's factor of bytes per element and e_j its elements out per element in (I_j = g_j · e_j).  Behind a set
S of ops an element has B·Π_S g_j bytes and there are Π_S e_j of them, whatever the order within S.  So op i placed
behind S takes Π_S e_j · t_i(B·Π_S g_j), with t_i its measured seconds as a function of input bytes, and an order takes
the sum.

The model takes a factor to be the same everywhere.  It is not for an op whose output has a fixed size (a resize
behind a crop): therefore an order is run on the sample before it is adopted.

An op without a measured time is taken to cost as much per byte as the measured ones do together; where none is
measured the estimate is the volume of data that flows into ops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pecan_ray.errors import PlanError
from pecan_ray.reorder.profile import ProfiledOp, check_ops, sections

LARGEST_EXPONENT = 300.0
"""Bound on |ln| of a product of factors: a thousand ops that double the data must not overflow."""


class Load(NamedTuple):
    """What an op is expected to be given in some order."""

    name: str
    bytes_ratio: float
    """Bytes of an element at its input, over those of an element that enters the first op."""
    elements: float
    """Elements that it is given per element that enters the first op."""
    seconds: float | None
    """Expected time per element that enters the first op; None: not measured."""


class LogSize(NamedTuple):
    """The data at some place of a pipeline, relative to what enters the first op; logarithms."""

    bytes: float = 0.0
    """ln of the bytes per element."""
    elements: float = 0.0
    """ln of the number of elements."""


@dataclass(frozen=True)
class CostModel:
    """Estimates for one list of ops; ops are named by their index in the user's order."""

    ops: tuple[ProfiledOp, ...]
    growth: tuple[float, ...]
    """ln g of each op."""
    log_element_factors: tuple[float, ...]
    """ln e of each op."""
    measured: tuple[float, ...]
    """ln of the relative bytes per element that each op was given while it was measured."""
    rate: float
    """Seconds per relative byte of an op that was not measured."""

    def seconds(self, index: int, at: LogSize) -> float:
        """Return op `index`'s seconds per source element when it is given `at`."""
        known = self.ops[index].seconds_at(_exp(at.bytes - self.measured[index]))
        return _exp(at.elements) * (self.rate * _exp(at.bytes) if known is None else known)

    def behind(self, index: int, at: LogSize) -> LogSize:
        """Return what comes out of op `index` when it is given `at`."""
        return LogSize(at.bytes + self.growth[index], at.elements + self.log_element_factors[index])

    def total(self, order: Iterable[int], start: LogSize | None = None) -> float:
        """Return the seconds per source element of the ops in this order."""
        at, total = start or LogSize(), 0.0
        for index in order:
            total += self.seconds(index, at)
            at = self.behind(index, at)
        return total

    def measured_total(self, order: Sequence[int]) -> float | None:
        """Return the seconds of the measured ops; None where an op that can move, or every op, is not measured."""
        contested = [index for section in sections(self.ops) if len(section) > 1 for index in section]
        unmeasured = any(self.ops[index].seconds is None for index in contested)
        if unmeasured or all(op.seconds is None for op in self.ops):
            return None
        return sum(load.seconds or 0.0 for load in self.loads(order))

    def loads(self, order: Iterable[int]) -> list[Load]:
        """Return what each op is expected to be given, and to take."""
        at, out = LogSize(), []
        for index in order:
            seconds = None if self.ops[index].seconds is None else self.seconds(index, at)
            out.append(Load(self.ops[index].name, _exp(at.bytes), _exp(at.elements), seconds))
            at = self.behind(index, at)
        return out


def cost_model(ops: tuple[ProfiledOp, ...], neutral_band: float = 0.0) -> CostModel:
    """Build the model of ops that were measured in the user's order."""
    log_element_factors = tuple(math.log(op.elements) for op in ops)
    # A neutral factor counts as 1: the noise of a sample would add up along an order.
    growth = tuple(
        0.0
        if op.elements == 1.0 and op.comparison_result(neutral_band) == "neutral"
        else math.log(op.inflation) - elements
        for op, elements in zip(ops, log_element_factors, strict=True)
    )
    measured = tuple(itertools.accumulate(growth[:-1], initial=0.0))[: len(ops)]
    volumes = sum(_exp(place) for op, place in zip(ops, measured, strict=True) if op.seconds is not None)
    seconds = sum(op.seconds_at(1.0) or 0.0 for op in ops)
    return CostModel(ops, growth, log_element_factors, measured, seconds / volumes if volumes else 1.0)


def predict(ops: Iterable[ProfiledOp], order: Sequence[str]) -> list[Load]:
    """Return what each op of `order` is expected to be given, and how long it takes; `ops` are in the user's order."""
    checked = check_ops(ops)
    index = {op.name: number for number, op in enumerate(checked)}
    if sorted(order) != sorted(index):
        raise PlanError(f"order must name each op once: {list(index)}, but got {list(order)}.")
    return cost_model(checked).loads(index[name] for name in order)


def _exp(exponent: float) -> float:
    if abs(exponent) > LARGEST_EXPONENT:
        return math.exp(math.copysign(LARGEST_EXPONENT, exponent))
    return math.exp(exponent)
