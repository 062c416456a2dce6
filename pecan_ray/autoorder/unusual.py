"""Values that the sample does not show, or seldom: does an order agree with the user's on them?

A saturation of few pixels is no difference by any measure over a sample, and an operator that is given bytes rather
than floats may do the same on dark pictures.  So both orders are run on elements that are pushed to the ends of their
range (`pecan_ray.reorder.exposure`), and an operator that is given another dtype than in the user's order is run on
the same numbers in both.  One that decides by the size of its numbers has to be given the very values that it is given
in the user's order: what it does of others is not to be told from a sample.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import equal
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import Stage, Token, run_through
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.value_check import NO_TIME, OpOrder, exchanges
from pecan_ray.autoorder.values import summaries
from pecan_ray.engines.foreign import as_array, with_array
from pecan_ray.errors import ElementError
from pecan_ray.reorder.decides import jumps
from pecan_ray.reorder.exposure import SHARES, Array, alike, ends, exposable, exposed, holds, reach
from pecan_ray.reorder.value_guard import MISSING, Summaries, ValueGuard

EXPOSED = 16
"""Elements of the sample that are exposed, every second one too much, the others too little."""
ENOUGH_S = 0.5
"""After so long fewer are enough,"""
LEAST = 4
"""but so many."""
RECAST = 3
"""Elements on which an operator is tried with two dtypes."""


@dataclass(frozen=True)
class Exposed:
    """An element, pushed to the ends of its range where an order begins to differ from the user's."""

    number: int
    token: Token
    usual: tuple[Summaries, ...]
    """What becomes of it in the user's order."""


class UnusualValues:
    """Unusual elements of one sampled stretch."""

    def __init__(self, sampled: Sampled, ops: Sequence[OpSample], noisy: frozenset[str]) -> None:
        self._sampled, self._runner, self._noisy = sampled, sampled.runner, noisy
        self._ops = {op.name: op for op in ops}
        self._user: OpOrder = sampled.stretch.names
        self._exposed: dict[int, list[Exposed]] = {}
        self._verdicts: dict[OpOrder, str] = {}

    def refused(self, order: OpOrder, free: Collection[str]) -> str:
        """Return why an order is refused; empty if it agrees with the user's."""
        if order not in self._verdicts:
            if not self._sampled.in_time():
                return NO_TIME
            with np.errstate(all="ignore"):  # a function may warn of values that it is never given
                self._verdicts[order] = self._other_inputs(order) or self._other_ends(order, free)
        return self._verdicts[order]

    # --- the ends of the range

    def _other_ends(self, order: OpOrder, free: Collection[str]) -> str:
        place = next((n for n, (a, b) in enumerate(zip(self._user, order, strict=True)) if a != b), len(order))
        if place not in self._exposed:
            self._exposed[place] = list(self._expose(place))
        stages = self._runner.stages(order)[place:]
        guard = ValueGuard(self._noisy, exposed=True)
        for one in self._exposed[place]:
            if not self._sampled.in_time():
                return NO_TIME
            try:
                made = self._run(stages, one.number, one.token)
            except ElementError as error:
                return f"it fails where values reach the ends of their range: {error.message.splitlines()[0]}"
            if len(made) != len(one.usual):
                return (
                    f"it lets {len(made)} elements through where values reach the ends of their range, and the "
                    f"user's order lets {len(one.usual)}"
                )
            for before, output in zip(one.usual, made, strict=True):
                guard.add(before, summaries(self._runner.columns(output)))
        refused = guard.refused(free)
        return f"its values are others where they reach the ends of their range: {refused}" if refused else ""

    def _expose(self, place: int) -> Iterator[Exposed]:
        """Yield elements as they come to a place of the user's order, exposed, and what becomes of them."""
        stages, given = self._runner.stages(self._user), []
        began = self._sampled.clock()
        for number in range(min(EXPOSED, len(self._sampled.held))):
            given += [(number, piece) for piece in self._run(stages[:place], number, self._sampled.held[number])]
        spans = self._spans([piece for _, piece in given])
        for count, (number, piece) in enumerate(given if spans else []):
            late = not self._sampled.in_time()
            if count >= EXPOSED or late or (count >= LEAST and self._sampled.clock() - began > ENOUGH_S):
                return
            token = self._replaced(piece, spans, bright=count % 2 == 0, share=SHARES[count // 2 % len(SHARES)])
            try:
                made = self._run(stages[place:], number, token)
            except ElementError:
                continue  # the user's order does not take it either
            yield Exposed(number, token, tuple(summaries(self._runner.columns(output)) for output in made))

    def _spans(self, pieces: Sequence[Token]) -> dict[str, tuple[float, float]]:
        """Return the ends of the range of each column that can be exposed."""
        found: dict[str, list[Array]] = {}
        for piece in pieces:
            for name, value in self._runner.columns(piece).items():
                if (array := _array(value)) is not None and exposable(array):
                    found.setdefault(name, []).append(array)
        spans = {}
        for name, arrays in found.items():
            lows, highs = zip(*map(reach, arrays), strict=True)
            spans[name] = ends(arrays[0].dtype, min(lows), max(highs))
        return spans

    def _replaced(self, piece: Token, spans: Mapping[str, tuple[float, float]], *, bright: bool, share: float) -> Token:
        columns = self._runner.columns(piece)
        new = {}
        for name, (low, high) in spans.items():
            array = _array(columns.get(name))
            if array is not None and exposable(array):
                new[name] = with_array(columns[name], exposed(array, low, high, bright=bright, share=share))
        return self._runner.replaced(piece, new)

    def _run(self, stages: Sequence[Stage], number: int, token: Token) -> list[Token]:
        self._sampled.seed(number)
        return run_through(stages, self._runner.fresh(token))

    # --- single operators: the same numbers in another dtype, and decisions

    def _other_inputs(self, order: OpOrder) -> str:
        moved = {name for pair in exchanges(self._user, order) for name in pair}
        sides = [dict(zip(names, self._runner.stages(names), strict=False)) for names in (self._user, order)]
        for number in range(min(RECAST, len(self._sampled.held))):
            try:
                usual, new = (self._given(side, number) for side in sides)
            except ElementError as error:
                return f"it fails: {error.message.splitlines()[0]}"
            for name in [name for name in self._user if name in moved & usual.keys() & new.keys()]:
                if not self._sampled.in_time():
                    return NO_TIME
                op, tokens, stages = self._ops[name], (usual[name], new[name]), (sides[0][name], sides[1][name])
                if op.draws:
                    continue
                refused = self._treats_otherwise(op, number, tokens, stages)
                if refused or (refused := self._decides_otherwise(op, number, tokens, stages[0])):
                    return refused
        return ""

    def _decides_otherwise(self, op: OpSample, number: int, tokens: tuple[Token, Token], stage: Stage) -> str:
        """Return that an operator decides by values that are others than in the user's order."""
        before, after = (self._runner.columns(token) for token in tokens)
        others = [
            name for name in sorted(op.reads) if name in before and not equal(before[name], after.get(name, MISSING))
        ]
        for name in others:
            array = _array(before[name])
            scaled = array is not None and exposable(array) and array.dtype.kind == "f"
            if scaled and self._jumps(op, number, tokens[0], stage, name):
                return f"{op.name!r} decides by how large {name!r} is, which has other values"
        return ""

    def _jumps(self, op: OpSample, number: int, token: Token, stage: Stage, column: str) -> bool:
        value = self._runner.columns(token)[column]
        array = _array(value)
        assert array is not None

        def strength(scale: float) -> float:
            given = self._runner.replaced(
                token, {column: with_array(value, (array * scale).astype(array.dtype, copy=False))}
            )
            made = [self._runner.columns(output) for output in self._run([stage], number, given)]
            results = [_array(one[name]) for one in made for name in op.writes if name in one]
            squares = [float((one.astype(np.float64) ** 2).mean()) for one in results if one is not None and one.size]
            return math.sqrt(sum(squares))

        try:
            return jumps(strength)
        except ElementError:
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
            if holds(usual, new):
                narrow, wide = 1, 0
            elif holds(new, usual):
                narrow, wide = 0, 1
            else:
                return f"{op.name!r} is given {column!r} as {new}, and as {usual} in the user's order"
            for token in self._variants(tokens[narrow], column):
                cast = _array(self._runner.columns(token)[column])
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
        if spans := {name: span for name, span in self._spans([token]).items() if name == column}:
            for bright in (True, False):
                yield self._replaced(token, spans, bright=bright, share=SHARES[0])

    def _same(
        self, number: int, tokens: tuple[Token, Token], stages: tuple[Stage, Stage], narrow: np.dtype[Any]
    ) -> bool:
        try:
            made = [self._run([stage], number, token) for stage, token in zip(stages, tokens, strict=True)]
        except ElementError:
            return True  # whatever it takes in both dtypes is the same
        if len(made[0]) != len(made[1]):
            return False
        for outputs in zip(*made, strict=True):
            first, second = (self._runner.columns(output) for output in outputs)
            for name in first.keys() & second.keys():
                a, b = _array(first[name]), _array(second[name])
                if a is not None and b is not None and not alike(a, b, narrow):
                    return False
        return True

    def _dtypes(self, token: Token, columns: Collection[str]) -> dict[str, np.dtype[Any]]:
        arrays = {name: _array(value) for name, value in self._runner.columns(token).items() if name in columns}
        return {name: one.dtype for name, one in arrays.items() if one is not None and one.dtype.kind in "biuf"}


def _array(value: Any) -> Array | None:
    """Return a value as an array, if it is one."""
    return value if isinstance(value, np.ndarray) else as_array(value)
