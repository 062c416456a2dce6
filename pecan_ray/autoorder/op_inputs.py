"""What single operators are given in another order: other dtypes, and other values to decide by.

An operator that is given another dtype than in the user's order has to make the same of the same numbers: bytes end at
255 where floats do not.  One that decides by the size of its numbers has to be given the very values that it is given
in the user's order: what it does of others is not to be told from a sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.exposed_elements import array_of, exposed_columns, spans_of
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.push_down import GEOMETRY
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder, exchanges
from pecan_ray.engines.foreign import with_array
from pecan_ray.reorder.decides import jumps
from pecan_ray.reorder.exposure import SHARES, alike, exposable, holds
from pecan_ray.reorder.value_guard import MISSING

ELEMENTS = 3
"""Elements on which operators are tried,"""
OF_RANDOM = 12
"""and those that draw random numbers: on half of them a contrast is weakened, so that nothing is clipped."""
ENOUGH_S = 0.4
"""Where that takes longer, the first ones have to do."""
INTERPOLATED = frozenset(map(np.dtype, ("u1", "f4")))
"""In these dtypes `pecan_ray.images` moves pixels about alike but for rounding: bilinear, nothing is clipped."""


class OpInputs:
    """The operators of one sampled stretch, and what they are given."""

    def __init__(self, sampled: Sampled, ops: Sequence[OpSample]) -> None:
        self._sampled, self._runner = sampled, sampled.runner
        self._ops = {op.name: op for op in ops}
        self._user: OpOrder = sampled.stretch.names

    def refused(self, order: OpOrder) -> str:
        """Return why an order is refused; empty if its operators do of their input what they do in the user's."""
        moved = {name for pair in exchanges(self._user, order) for name in pair}
        sides = [dict(zip(names, self._runner.stages(names), strict=False)) for names in (self._user, order)]
        began, asked = self._sampled.clock(), set[str]()
        for number in range(min(OF_RANDOM, len(self._sampled.held))):
            if number == ELEMENTS:
                moved = {name for name in moved if self._ops[name].random}
            if not moved or (number >= ELEMENTS and self._sampled.clock() - began > ENOUGH_S):
                break
            try:
                usual, new = (self._given(side, number) for side in sides)
            except OP_FAILURES as error:
                return f"it fails: {error.message.splitlines()[0]}"
            for name in [name for name in self._user if name in moved & usual.keys() & new.keys()]:
                if not self._sampled.in_time():
                    return NO_TIME
                op, tokens, stages = self._ops[name], (usual[name], new[name]), (sides[0][name], sides[1][name])
                if op.draws:
                    continue
                refused = self._treats_otherwise(op, number, tokens, stages)
                if not refused and name not in asked and (others := self._others(op, tokens)):
                    asked.add(name)
                    refused = self._decides(op, number, tokens[0], stages[0], others)
                if refused:
                    return refused
        return ""

    def _others(self, op: OpSample, tokens: tuple[Token, Token]) -> list[str]:
        """Return the columns that an operator reads and that have other values than in the user's order."""
        before, after = (self._runner.columns(token) for token in tokens)
        return [
            name for name in sorted(op.reads) if name in before and not equal(before[name], after.get(name, MISSING))
        ]

    def _decides(self, op: OpSample, number: int, token: Token, stage: Stage, columns: Sequence[str]) -> str:
        """Return that an operator decides by how large numbers in one of these columns are; empty if it does not."""
        for name in () if moves_pixels(op) else columns:
            array = array_of(self._runner.columns(token)[name])
            scaled = array is not None and exposable(array) and array.dtype.kind == "f"
            if scaled and self._jumps(op, number, token, stage, name):
                return f"{op.name!r} decides by how large {name!r} is, which has other values"
        return ""

    def _jumps(self, op: OpSample, number: int, token: Token, stage: Stage, column: str) -> bool:
        value = self._runner.columns(token)[column]
        array = array_of(value)
        assert array is not None

        def strength(scale: float) -> float:
            given = self._runner.replaced(
                token, {column: with_array(value, (array * scale).astype(array.dtype, copy=False))}
            )
            made = [self._runner.columns(output) for output in self._sampled.run([stage], number, given)]
            results = [array_of(one[name]) for one in made for name in op.writes if name in one]
            squares = [float((one.astype(np.float64) ** 2).mean()) for one in results if one is not None and one.size]
            return math.sqrt(sum(squares))

        try:
            return jumps(strength)
        except OP_FAILURES:
            return False  # it does not take all scales

    def _given(self, stages: Mapping[str, Stage], number: int) -> dict[str, Token]:
        """Return what each operator is given of an element first."""
        found, pieces = {}, [self._sampled.token(number)]
        for name, stage in stages.items():
            if not pieces:
                break
            found[name] = self._runner.fresh(pieces[0])
            pieces = [output for piece in pieces for output in stage(piece)]
        return found

    def _treats_otherwise(
        self, op: OpSample, number: int, tokens: tuple[Token, Token], stages: tuple[Stage, Stage]
    ) -> str:
        """Return that an operator makes something else of the same numbers in the dtypes of two orders."""
        dtypes = [self._dtypes(token, op.reads | op.writes) for token in tokens]
        differing = [name for name in dtypes[0].keys() & dtypes[1].keys() if dtypes[0][name] != dtypes[1][name]]
        for column in sorted(differing):
            usual, new = dtypes[0][column], dtypes[1][column]
            if moves_pixels(op) and {usual, new} == INTERPOLATED:
                continue
            if holds(usual, new):
                narrow, wide = 1, 0
            elif holds(new, usual):
                narrow, wide = 0, 1
            else:
                return f"{op.name!r} is given {column!r} as {new}, and as {usual} in the user's order"
            for token in self._variants(tokens[narrow], column):
                cast = array_of(self._runner.columns(token)[column])
                assert cast is not None
                value = with_array(self._runner.columns(token)[column], cast.astype(dtypes[wide][column]))
                other = self._runner.replaced(token, {column: value})
                if not self._same(number, (token, other), (stages[narrow], stages[wide]), dtypes[narrow][column]):
                    return (
                        f"{op.name!r} is given {column!r} as {new}, and as {usual} in the user's order, of which it "
                        "makes something else where values are large or small"
                    )
        return ""

    def _variants(self, token: Token, column: str) -> Iterator[Token]:
        yield token
        columns = self._runner.columns(token)
        if spans := spans_of([{column: columns[column]}]):
            for bright in (True, False):
                yield self._runner.replaced(token, exposed_columns(columns, spans, bright=bright, share=SHARES[0]))

    def _same(
        self, number: int, tokens: tuple[Token, Token], stages: tuple[Stage, Stage], narrow: np.dtype[Any]
    ) -> bool:
        try:
            made = [self._sampled.run([stage], number, token) for stage, token in zip(stages, tokens, strict=True)]
        except OP_FAILURES:
            return True  # whatever it takes in both dtypes is the same
        if len(made[0]) != len(made[1]):
            return False
        for outputs in zip(*made, strict=True):
            first, second = (self._runner.columns(output) for output in outputs)
            for name in first.keys() & second.keys():
                a, b = array_of(first[name]), array_of(second[name])
                if a is not None and b is not None and not alike(a, b, narrow):
                    return False
        return True

    def _dtypes(self, token: Token, columns: Collection[str]) -> dict[str, np.dtype[Any]]:
        arrays = {name: array_of(value) for name, value in self._runner.columns(token).items() if name in columns}
        return {name: one.dtype for name, one in arrays.items() if one is not None and one.dtype.kind in "biuf"}


def moves_pixels(op: OpSample) -> bool:
    """Tell whether an operator is known to do nothing but crop, mirror or interpolate, large images for long."""
    return type(getattr(op.op, "fn", None)) in GEOMETRY
