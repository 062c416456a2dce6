"""How far does an exchange move a result, compared with what the exchanged operators do to it at all?

Of one element and one array, with `u` the user's result, `x` the exchanged one and `w` the results without one of the
two operators: E = |x - u|, D = |u - w|.  E / D has to be small for the element as a whole and for each of its blocks: a
blur that becomes four times as wide moves results by more than it moved them itself, a box that lies elsewhere has all
of its effect where the user's result has none.  The scale of the values does not matter, and neither does how they are
distributed over other elements.

Where values are rounded to 8 bits at another place than before, results differ by a step of those: that is equal.
What numbers mean decides before how large they are: names of classes, boxes and labels are equal or they are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.plan.splits import Array

# docs/decisions/autoorder.md#119-labelled-exchanges has the curve: at these bounds 2 and 2 harmful exchanges
# pass, of 121 and 131.
BOUND = 0.25
"""Largest E / D of an element,"""
BOUND_OF_BLOCK = 0.5
"""and of a block of it.  Of 30 photographs before and behind a resize the most different one has 0.1 (0.4 in a block)
with colours, gamma and flips; what a trainer minds (blurs, noise, JPEG blocks, CLAHE, marks and boxes in pixels)
has more than 0.4, and more than 1 in a block."""
SMALL = 64
"""Arrays of so many numbers are boxes, points or labels: they are equal or they are not."""
FEW_VALUES = 32
"""So are integers of so few different values: classes,"""
WIDE = 4
"""and integers of so many bytes: numbers of words."""
CHANNELS = 4
"""A dimension of this size at most is one of channels: it is not cut into blocks."""
BLOCKS = 8
"""Blocks along each dimension of a picture, a film or a spectrogram,"""
SEGMENTS = 32
"""and along the only one of a sound."""
STEPS = 2.0
"""Steps of 8 bits by which a value may differ that is rounded elsewhere,"""
STEPS_OF_BLOCK = 0.75
"""and the mean of a block."""
ROUNDING = 1e-5
"""Share of the largest value by which floats may differ;"""
HALF = 2e-3
"""those of half precision."""
UNITS = 4.0
"""If an operator changes the type, or the spread by more than this factor, it changes the unit: of its effect only
counts what no scale and no offset explain."""

SHARE_OF_ELEMENT = 0.25
"""No effect counts for more than what a block of the result shows (how far its values are from their mean), or this
share of what the element shows: beside an inversion, a blur in the same function would be nothing."""


@dataclass(frozen=True)
class Moved:
    """By how much an exchange moves one array."""

    share: float
    """E / D of the whole: 0 if they are equal but for rounding,"""
    local: float = 0.0
    """and that of the block in which it is largest."""
    by: float = 0.0
    """Mean E,"""
    effect: float = 0.0
    """and mean D."""
    why: str = ""
    """Why there is no share: another shape, other names."""

    @property
    def rejected(self) -> bool:
        """Whether the exchange moves it by too much."""
        return self.share > BOUND or self.local > BOUND_OF_BLOCK

    @property
    def excess(self) -> float:
        """Return how near it is to being refused: more than 1 if it is."""
        return max(self.share / BOUND, self.local / BOUND_OF_BLOCK)

    def description(self) -> str:
        """Say it in words."""
        if self.why:
            return self.why
        if math.isinf(self.local):
            return f"values differ by {self.by:.3g} on average, also where one of the operators does nothing"
        return f"it differs by {self.share:.0%} of what the operators do to it, and a part of it by {self.local:.0%}"


EQUAL = Moved(0.0)


def moved(
    user: Array, exchanged: Array, without: Iterable[Array | None], step: float = 0.0, *, each: bool = False
) -> Moved:
    """Compare a result with the one behind an exchange, and with those without one of the exchanged operators.

    `without`: None, or an array of another shape, where one cannot be compared; with none of them, results have to be
    equal but for rounding.  `step`: the size of a step of 8 bits in the result (`step_of`), 0 where there are none.
    `each`: neither operator mixes values, so that each is a block of its own.
    """
    if (told := _compare_dtypes(user, exchanged)) is not None:
        return told
    first, second = _numbers(user), _numbers(exchanged)
    # Told by itself: a difference of infinities is no number, and would count as nothing below.
    if (np.isfinite(first) != np.isfinite(second)).any():
        return Moved(math.inf, why="other values of it are infinite or NaN")
    difference = np.abs(_finite(first - second))
    least = _rounding(user, first)
    mean, largest = (difference, difference) if each else (_by_blocks(difference, one) for one in (np.mean, np.max))
    block = STEPS if each else STEPS_OF_BLOCK
    # Both: rounding moves single values by steps, and the mean of a block by less than one.
    rounded = (largest <= max(STEPS * step, least)) & (mean <= max(block * step, least))
    if rounded.all():
        return EQUAL
    effects = [_value_change(user, first, one, least) for one in without if one is not None and one.shape == user.shape]
    if not effects:
        why = "it differs, and nothing tells how much the operators do: without one of them it has another form"
        return Moved(math.inf, by=float(difference.mean()), why=why)
    effect, done = _min_value_change(effects, _finite(first), each=each)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(rounded, 0.0, np.where(effect > least, mean / effect, math.inf))
    by = float(difference.mean())
    return Moved(by / done if done > least else math.inf, float(shares.max()), by, done)


def _compare_dtypes(user: Array, exchanged: Array) -> Moved | None:
    """Return what needs no amounts: other shapes and dtypes, equal results, and numbers that are names."""
    if user.shape != exchanged.shape or user.dtype != exchanged.dtype:
        return Moved(math.inf, why=f"it becomes {_to_str(exchanged)} instead of {_to_str(user)}")
    u, x = _plain(user), _plain(exchanged)
    if u.dtype.kind not in "biufc":
        return EQUAL if bool((user == exchanged).all()) else Moved(math.inf, why="it becomes another one")
    if np.array_equal(u, x, equal_nan=u.dtype.kind in "fc"):
        return EQUAL
    if not names_things(user):
        return None
    if u.dtype.kind == "f":
        largest = float(np.abs(u[np.isfinite(u)]).max(initial=0.0))
        if np.allclose(u, x, rtol=0.0, atol=ROUNDING * largest, equal_nan=True):
            return EQUAL
    return Moved(math.inf, why="its numbers differ, and have to be equal, as classes, boxes and labels have")


def _min_value_change(effects: Sequence[Array], finite: Array, *, each: bool) -> tuple[Array, float]:
    """Return what the operator that does less does to each block, and to the whole.

    Neither counts for more than how much the result itself varies: what is flat has nothing to show.
    """
    # Decision 119: the smaller effect counts. A cast that makes all black is nothing beside what a division does.
    done = min(float(one.mean()) for one in effects)
    if each:
        return np.minimum.reduce(list(effects)), done
    shown = float(np.abs(finite - finite.mean()).mean())
    effect = np.minimum.reduce([_by_blocks(one, np.mean) for one in effects])
    # Decision 123: without this cap, three times a blur would be nothing beside an inversion in the same function.
    return np.minimum(effect, np.maximum(_block_offsets(finite), SHARE_OF_ELEMENT * shown)), min(done, shown)


def _finite(array: Array) -> Array:
    return np.nan_to_num(array, nan=0.0, posinf=0.0, neginf=0.0)


def names_things(array: Array) -> bool:
    """Tell whether the numbers of an array are not amounts: labels, boxes, classes, words by their numbers."""
    if array.size <= SMALL or array.dtype.kind == "b":
        return True
    if array.dtype.kind not in "iu":
        return False
    # Decision 119: word 7 is not near word 8.
    return array.dtype.itemsize >= WIDE or len(np.unique(array)) <= FEW_VALUES


def step_of(given: Sequence[Array], made: Sequence[Array]) -> float:
    """Return how large a step of the integers that enter operators is in what becomes of them; 0 where floats enter."""
    if not given or not made or any(one.dtype.kind not in "iu" or one.dtype.itemsize >= WIDE for one in given):
        return 0.0
    before, after = (_max_offset(side) for side in (given, made))
    return after / before if before else 0.0


def _max_offset(arrays: Sequence[Array]) -> float:
    ends = [_numbers(one) for one in arrays if one.size]
    ends = [one[np.isfinite(one)] for one in ends]
    known = [(float(one.min()), float(one.max())) for one in ends if one.size]
    return max((high for _, high in known), default=0.0) - min((low for low, _ in known), default=0.0)


def _value_change(user: Array, u: npt.NDArray[np.float64], without: Array, least: float) -> npt.NDArray[np.float64]:
    """Return by how much an operator moves each value, a change of unit apart."""
    u, w = _finite(u), _finite(_numbers(without))
    plain = np.abs(u - w)
    spreads = float(u.std()), float(w.std())
    upright = float(((u - u.mean()) * (w - w.mean())).mean()) >= 0.0  # a negative is another unit, too
    if upright and user.dtype == without.dtype and max(spreads) <= UNITS * max(min(spreads), least):
        return plain
    fitted = np.abs(u - _in_units_of(u, w))
    # A fit minimizes squares, so its mean distance may be the larger one.
    return fitted if float(fitted.mean()) < float(plain.mean()) else plain


def _in_units_of(u: npt.NDArray[np.float64], w: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `w` with the scale and the offset, by channel, that bring it nearest to `u`."""
    # Channels last as in NumPy, or first as in PyTorch.
    channel = next((axis for axis in (u.ndim - 1, 0) if u.ndim > 1 and u.shape[axis] <= CHANNELS), None)
    axes = tuple(axis for axis in range(u.ndim) if axis != channel)
    centred = [one - one.mean(axis=axes, keepdims=True) for one in (u, w)]
    square = (centred[1] ** 2).mean(axis=axes, keepdims=True)
    scale = (centred[0] * centred[1]).mean(axis=axes, keepdims=True) / np.where(square > 0, square, 1.0)
    return np.asarray(u.mean(axis=axes, keepdims=True) + scale * centred[1], np.float64)


def _by_blocks(values: npt.NDArray[np.float64], over: Any) -> npt.NDArray[np.float64]:
    """Return the means, or the largest values, of an array's blocks."""
    long = [axis for axis in range(values.ndim) if values.shape[axis] > CHANNELS]
    count = SEGMENTS if len(long) == 1 else BLOCKS
    add = np.maximum if over is np.max else np.add
    for axis in range(values.ndim):
        size = values.shape[axis]
        edges = np.linspace(0, size, min(size, count if axis in long else 1) + 1).astype(np.intp)
        values = add.reduceat(values, edges[:-1], axis=axis)
        if over is not np.max:
            shape = [-1 if other == axis else 1 for other in range(values.ndim)]
            values = values / np.diff(edges).reshape(shape)
    return np.asarray(values, np.float64)


def _block_offsets(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how far the values of each block are from its mean."""
    means = _by_blocks(values, np.mean)
    for axis, size in enumerate(values.shape):
        edges = np.linspace(0, size, means.shape[axis] + 1).astype(np.intp)
        means = np.repeat(means, np.diff(edges), axis=axis)
    return _by_blocks(np.abs(values - means), np.mean)


def _rounding(array: Array, numbers: npt.NDArray[np.float64]) -> float:
    """Return by how much its values may differ and be equal."""
    finite = numbers[np.isfinite(numbers)]
    largest = float(np.abs(finite).max(initial=0.0))
    # Integers are exact, so they may not differ at all.
    if array.dtype.kind in "iub":
        return 0.0
    return (HALF if array.dtype.itemsize < WIDE else ROUNDING) * largest


def _plain(array: Array) -> Array:
    """Return an array that NumPy computes with: dates as integers, types of other libraries as floats."""
    if array.dtype.kind in "mM":
        return array.view(np.int64)
    if array.dtype.kind == "V" and array.dtype.names is None:
        return array.astype(np.float32)
    return array


def _numbers(array: Array) -> npt.NDArray[np.float64]:
    """Return parts of complex numbers side by side, and all as floats."""
    array = _plain(array)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1).astype(np.float64)
    return array.astype(np.float64)


def _to_str(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
