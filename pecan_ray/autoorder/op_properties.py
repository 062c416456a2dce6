"""What is known of how the operators of a sampled stretch are made, from running them on its elements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.autoorder.element_spec import array_of
from pecan_ray.autoorder.op_runner import OP_FAILURES, Stage, Token
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.engines.foreign import with_array
from pecan_ray.plan.splits import Array
from pecan_ray.reorder.never import OpProperties
from pecan_ray.reorder.relative_bound import CHANNELS, SMALL

TRIED = 2
"""On so many elements values are put to other places, to see whether an operator looks at them one by one."""
ONE_STEP = 1.0
"""Integers may be rounded otherwise: a mean that is subtracted is summed up in another sequence."""


def op_properties(sampled: Sampled) -> dict[str, OpProperties]:
    """Return the facts of all operators of a stretch, with whether they look at values one by one."""
    pointwise: dict[str, list[bool]] = {name: [] for name in sampled.accumulators}
    for number in range(min(TRIED, len(sampled.held))):
        pieces = [sampled.token(number)]
        for stage in sampled.runner.stages(sampled.sequence.names):
            (name,) = stage.names
            pointwise[name] += [_is_pointwise(sampled, stage, number, piece) for piece in pieces]
            pieces = [made for piece in pieces for made in stage(piece)]
    facts = [one.stats for one in sampled.profile().ops]
    return {one.name: replace(one, pointwise=all(pointwise[one.name] or [False])) for one in facts}


def _large_numbers(columns: Mapping[str, Any], names: Collection[str]) -> dict[str, Array]:
    """Return columns as arrays if all of them are numbers, so many that their places tell; else none."""
    arrays = {}
    for name in names:
        array = array_of(columns.get(name))
        # Few numbers are boxes or labels, whose places mean something.
        if array is None or array.size <= SMALL or array.dtype.kind not in "iuf":
            return {}
        arrays[name] = array
    return arrays


def _is_pointwise(sampled: Sampled, stage: Stage, number: int, token: Token) -> bool:
    """Tell whether an operator, given values at other places, makes the same of them there."""
    tally, columns = sampled.accumulators[stage.names[0]], sampled.runner.columns(token)
    changed = _large_numbers(columns, tally.reads & tally.writes)
    if not changed or tally.creates or tally.drops:
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
    # 1e-4 of the largest value: sums of floats in another sequence differ by less.
    bound = ONE_STEP if plain.dtype.kind in "iu" else 1e-4 * float(np.abs(expected).max(initial=0.0))
    return bool(np.allclose(other.astype(np.float64), expected, rtol=0.0, atol=bound, equal_nan=True))


def _shuffled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array whose rows and columns have changed places, its channels where they were."""
    for axis in range(array.ndim):
        if array.shape[axis] > CHANNELS:
            # The axis is the seed: input and result are moved alike.
            places: Sequence[int] = np.random.default_rng(axis).permutation(array.shape[axis]).tolist()
            array = np.take(array, places, axis=axis)
    return np.ascontiguousarray(array)
