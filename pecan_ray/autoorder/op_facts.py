"""What is known of how the operators of a sampled stretch are made, from running them on a few of its elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import array_of, leaves
from pecan_ray.autoorder.facts import OpSample
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.engines.foreign import with_array
from pecan_ray.plan.operators import Filter
from pecan_ray.reorder.never import OpFacts
from pecan_ray.reorder.relative_bound import CHANNELS, SMALL

ELEMENTS = 12
TRIED = 2
"""On so many elements values are put to other places, to see whether an operator looks at them one by one."""
ONE_STEP = 1.0
"""Integers may be rounded otherwise: a mean that is subtracted is summed up in another sequence."""


class _Seen:
    """What one operator did to some elements."""

    def __init__(self) -> None:
        self.arrays: set[str] = set()
        self.lengths: dict[str, set[tuple[int, int]]] = {}
        self.resizes: dict[str, set[int]] = {}
        self.pointwise: list[bool] = []

    def compare(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for name, value in before.items():
            if any(isinstance(leaf, np.ndarray) and leaf.ndim > 0 for leaf in leaves({name: value}).values()):
                self.arrays.add(name)
            if name not in after or after[name] is value:
                continue
            a, b = _shape(value), _shape(after[name])
            if a and len(a) == len(b):
                self.resizes.setdefault(name, set()).update(axis for axis in range(len(a)) if a[axis] != b[axis])
                if len(a) <= 2:
                    self.lengths.setdefault(name, set()).add((a[0], b[0]))


def facts_of(sampled: Sampled) -> dict[str, OpFacts]:
    """Return the facts of all operators of a stretch."""
    ops = sampled.profile().ops
    seen = {op.name: _Seen() for op in ops}
    stages = sampled.runner.stages(sampled.stretch.names)
    for number in range(min(ELEMENTS, len(sampled.held))):
        if not sampled.in_time():  # then no exchange is judged by this
            break
        pieces = [sampled.token(number)]
        for stage, op in zip(stages, ops, strict=False):
            made: list[Token] = []
            for piece in pieces:
                if number < TRIED:
                    seen[op.name].pointwise.append(_is_pointwise(sampled, op, stage, number, piece))
                before = dict(sampled.runner.columns(piece))
                outputs = stage(piece)
                for output in outputs:
                    seen[op.name].compare(before, sampled.runner.columns(output))
                made += outputs
            pieces = made
    return {op.name: _facts(op, seen[op.name]) for op in ops}


def _facts(op: OpSample, seen: _Seen) -> OpFacts:
    uneven = op.spreads and (not op.elements_in or op.elements_out % op.elements_in != 0)
    by_content = frozenset(name for name, lengths in seen.lengths.items() if not op.random and _by_content(lengths))
    return OpFacts(
        name=op.name,
        reads=op.reads,
        writes=op.writes | op.creates | op.drops,
        arrays=frozenset(seen.arrays & op.reads),
        decides=isinstance(op.op, Filter) or uneven,
        draws=op.draws,
        unequal=op.unequal and not op.draws,
        pointwise=bool(seen.pointwise) and all(seen.pointwise),
        removes=by_content,
        resizes={name: frozenset(axes) for name, axes in seen.resizes.items() if axes},
    )


def _shape(value: Any) -> tuple[int, ...]:
    array = array_of(value)
    if array is not None:
        return tuple(array.shape)
    return (len(value),) if isinstance(value, (str, bytes, list, tuple)) else ()


def _by_content(lengths: set[tuple[int, int]]) -> bool:
    """Tell whether new lengths do not follow from the old ones: not a constant, a bound, a difference or a ratio."""
    if all(a == b for a, b in lengths):
        return False
    made = [b for _, b in lengths]
    most, least = max(made), min(made)
    ratio = sum(made) / max(sum(a for a, _ in lengths), 1)
    rules = (
        most == least,
        all(b == min(a, most) for a, b in lengths),
        all(b == max(a, least) for a, b in lengths),
        len({b - a for a, b in lengths}) == 1,
        all(abs(b - ratio * a) <= 1 for a, b in lengths),
    )
    return not any(rules)


def _is_pointwise(sampled: Sampled, op: OpSample, stage: Stage, number: int, token: Token) -> bool:
    """Tell whether an operator, given values at other places, makes the same of them there."""
    columns = sampled.runner.columns(token)
    changed = {}
    for name in op.reads & op.writes:
        array = array_of(columns.get(name))
        if array is None or array.size <= SMALL or array.dtype.kind not in "iuf":
            return False
        changed[name] = array
    if not changed or op.creates or op.drops:
        return False
    moved = {name: with_array(columns[name], _shuffled(array)) for name, array in changed.items()}
    try:
        plain = sampled.run([stage], number, token)
        other = sampled.run([stage], number, sampled.runner.replaced(token, moved))
    except OP_FAILURES:
        return False
    if len(plain) != 1 or len(other) != 1:
        return False
    results = [sampled.runner.columns(one) for one in (plain[0], other[0])]
    return all(_same_elsewhere(*(array_of(one.get(name)) for one in results), like=changed[name]) for name in changed)


def _same_elsewhere(plain: Any, other: Any, *, like: np.ndarray[Any, Any]) -> bool:
    if plain is None or other is None or plain.shape != like.shape or other.shape != like.shape:
        return False
    expected = _shuffled(plain).astype(np.float64)
    bound = ONE_STEP if plain.dtype.kind in "iu" else 1e-4 * float(np.abs(expected).max(initial=0.0))
    return bool(np.allclose(other.astype(np.float64), expected, rtol=0.0, atol=bound, equal_nan=True))


def _shuffled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array whose rows and columns have changed places, its channels where they were."""
    for axis in range(array.ndim):
        if array.shape[axis] > CHANNELS:
            places: Sequence[int] = np.random.default_rng(axis).permutation(array.shape[axis]).tolist()
            array = np.take(array, places, axis=axis)
    return np.ascontiguousarray(array)
