"""Operators that decide which elements there are: filters, and flat maps that make more of one than of another.

What they decide by leaves no trace in an element that stays, so no comparison of results sees that another one would
have been dropped.  They have to be given the very values that they are given in the user's order, but for those at
whose form alone they look.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.exposed_elements import array_of
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder
from pecan_ray.engines.foreign import with_array
from pecan_ray.plan.operators import Filter
from pecan_ray.reorder.value_guard import MISSING

ELEMENTS = 12
LEAST = 3
ENOUGH_S = 0.4
"""Where it takes longer, the least are enough."""
ROUNDING = 1e-5
"""Share of the largest number of an array by which floats may differ."""


class Deciders:
    """Those of one sampled stretch."""

    def __init__(self, sampled: Sampled, ops: Sequence[OpSample], uncontrolled: Collection[str]) -> None:
        """`uncontrolled`: columns that are others in every run."""
        self._sampled, self._runner, self._uncontrolled = sampled, sampled.runner, uncontrolled
        self._ops = [op for op in ops if op.elements_in and (isinstance(op.op, Filter) or _uneven(op))]

    def refused(self, usual: OpOrder, order: OpOrder, decoders: Collection[str] = ()) -> str:
        """Return which operator would decide by other values in an order than in the usual one; empty if none.

        `decoders`: those that take over what follows them in the order.
        """
        if not self._ops:
            return ""
        sides = self._runner.stages(usual), self._runner.stages(order, decoders=decoders)
        began = self._sampled.clock()
        for number in range(min(ELEMENTS, len(self._sampled.held))):
            if number >= LEAST and self._sampled.clock() - began > ENOUGH_S:
                break
            if not self._sampled.in_time():
                return NO_TIME
            try:
                before, after = (self._given(stages, number) for stages in sides)
                for name in before.keys() & after.keys():
                    (op,) = (one for one in self._ops if one.name == name)
                    (stage,) = (one for one in sides[0] if name in one.names)
                    if column := self._decides_by(op, stage, number, before[name], after[name]):
                        return (
                            f"{name!r} decides by column {column!r} which elements there are, and it has other values"
                        )
            except OP_FAILURES as error:
                return f"it fails: {error.message.splitlines()[0]}"
        return ""

    def _given(self, stages: Sequence[Stage], number: int) -> dict[str, Token]:
        """Return what each of these operators is given of an element first."""
        found, pieces = dict[str, Token](), [self._sampled.token(number)]
        left = {op.name for op in self._ops}
        for stage in stages:
            if not pieces or not left:
                break
            for name in left & set(stage.names):
                found[name] = self._runner.fresh(pieces[0])
            left -= set(stage.names)
            pieces = [output for piece in pieces for output in stage(piece)]
        return found

    def _decides_by(self, op: OpSample, stage: Stage, number: int, usual: Token, new: Token) -> str:
        """Return a column that an operator decides by and that has other values than it usually has, or ""."""
        before, after = (self._runner.columns(token) for token in (usual, new))
        for name in sorted(op.reads - set(self._uncontrolled)):
            if name not in before or _alike(before[name], after.get(name, MISSING)):
                continue
            if not self._looks_at_form(stage, number, usual, name):
                return name
        return ""

    def _looks_at_form(self, stage: Stage, number: int, token: Token, column: str) -> bool:
        """Tell whether it makes as many elements of other values of the same shape and type."""
        value = self._runner.columns(token)[column]
        array = array_of(value)
        if array is None or not array.size or array.dtype.kind not in "biuf":
            return False
        counts = {len(self._sampled.run([stage], number, self._runner.fresh(token)))}
        for other in (np.zeros_like(array), np.full_like(array, array.max()), array[::-1] if array.ndim else array):
            replaced = self._runner.replaced(token, {column: with_array(value, np.ascontiguousarray(other))})
            try:
                counts.add(len(self._sampled.run([stage], number, replaced)))
            except OP_FAILURES:
                return False
        return len(counts) == 1


def _uneven(op: OpSample) -> bool:
    """Tell whether it makes more of one element than of another, as far as the sum tells."""
    return op.spreads and op.elements_out % op.elements_in != 0


def _alike(before: object, after: object) -> bool:
    if equal(before, after):
        return True
    a, b = array_of(before), array_of(after)
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind != "f":
        return False
    largest = float(np.abs(a).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0.0, atol=ROUNDING * largest, equal_nan=True))
