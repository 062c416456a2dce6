"""How far does an exchange move a result, compared with what the exchanged operators do to it at all?

Of one element and one array, with `u` the user's result, `x` the exchanged one and `w` the results without one of the
two operators: E = |x - u|, D = |u - w|.  E / D has to be small for the element as a whole and for each of its blocks: a
blur that becomes four times as wide moves results by more than it moved them itself, a box that lies elsewhere has all
of its effect where the user's result has none.  The scale of the values does not matter, and neither does how they are
distributed over other elements.

Where values are rounded to 8 bits at another place than before, results differ by a step of those: that is equal,
unless a step is all that an operator does to any element.  Floats are equal but for the last bits of each value,
however large another value of their array is: one may stand for what is missing.
What numbers mean decides before how large they are: classes, boxes, labels and dates are equal or they are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.plan.splits import Array

# docs/decisions/autoorder.md#119-labelled-exchanges has the curve: 2 of 121 and 2 of 131 harmful exchanges pass.
BOUND = 0.25
"""Largest E / D of an element."""
BOUND_OF_BLOCK = 0.5
"""Largest E / D of a block of an element.  Of 30 photographs before and behind a resize the most different one has 0.1
(0.4 in a block) with colours, gamma and flips; what a trainer minds (blurs, noise, JPEG blocks, CLAHE, marks and boxes
in pixels) has more than 0.4, and more than 1 in a block."""
# docs/decisions/autoorder.md#199-the-largest-value-and-what-a-scale-hides
BOUND_OF_VALUE = 0.125
"""Largest share of the range of a result's values, of each channel, by which one of them may move: 0.1 with colours,
gamma and contrast, 0.17 to 1 where marks, hues, inverses and rare values become others."""
SMALL = 64
"""Arrays of so many numbers are boxes, points or labels: they are equal or they are not."""
FEW_VALUES = 32
"""So are integers of so few different values: classes."""
WIDE = 4
"""So are integers of so many bytes: numbers of words."""
CHANNELS = 4
"""A dimension of this size at most is one of channels: it is not cut into blocks."""
BLOCKS = 8
"""Blocks along each dimension of a picture, a film or a spectrogram.  Chosen: smaller ones have the chance of few
pixels, larger ones hide a mark."""
SEGMENTS = 32
"""Blocks along the only dimension of a sound."""
STEPS = 2.0
"""Steps of 8 bits by which a value may differ that is rounded elsewhere."""
STEPS_OF_BLOCK = 0.75
"""Steps by which the mean of a block may differ."""
# docs/decisions/autoorder.md#213-rounding-is-of-a-value
ULPS = 8.0
"""By so many times the precision of its type a float may differ.  Sums of a few hundred terms differ by less."""
COARSE = 2.0**-7
"""Precision of the types of other libraries: that of bfloat16."""
OTHER_UNIT = 16.0
"""Channels that are so many times as large on average are of another unit.  Those of colours seldom are."""
NEAR = 0.01
"""Values within this share of the farthest distance from the median are its ground, where more than half are equal."""
UNITS = 4.0
"""If an operator changes the type, or the spread by more than this factor, it changes the unit: of its effect only
counts what no scale and no offset explain."""
LEFT_OF_A_FIT = 1e-4
"""That counts for no less than this share of all that it does, or of how far values lie apart: rounding is less."""
FAR = 4.0
"""Values may be this many times as far from their mean as half of them are from their median: 1.2 in photographs."""
SHARE_OF_ELEMENT = 0.25
"""No effect counts for more than what a block of the result shows (how far its values are from their mean), or this
share of what the element shows: beside an inversion, a blur in the same function would be nothing."""


@dataclass(frozen=True)
class Moved:
    """By how much an exchange moves one array."""

    share: float
    """E / D of the whole: 0 if they are equal but for rounding."""
    local: float = 0.0
    """E / D of the block in which it is largest."""
    largest: float = 0.0
    """By which share of the range of its values one of them moves, at most."""
    by: float = 0.0
    """Mean E."""
    effect: float = 0.0
    """Mean D."""
    why: str = ""
    """Why there is no share: another shape, other names."""
    column: str = ""
    """Which value of an element it is."""
    subtle: bool = False
    """It is rounding alone, and an operator does no more than that: it may mark the lowest bits."""

    @property
    def rejected(self) -> bool:
        """Return whether the exchange moves it by too much."""
        return self.excess > 1

    @property
    def excess(self) -> float:
        """Return how near it is to being refused: more than 1 if it is."""
        return max(self.share / BOUND, self.local / BOUND_OF_BLOCK, self.largest / BOUND_OF_VALUE)

    def description(self) -> str:
        """Say it in words."""
        if self.why:
            return self.why
        if math.isinf(self.local):
            return f"values differ by {self.by:.3g} on average, also where one of the operators does nothing"
        told = f"it differs by {self.share:.0%} of what the operators do to it, and a part of it by {self.local:.0%}"
        return f"{told}; a single value moves by {self.largest:.0%} of their range"


EQUAL = Moved(0.0)


def moved(user: Array, exchanged: Array, without: Iterable[Array | None], step: float = 0.0, mixing: int = 2) -> Moved:
    """Compare a result with the one behind an exchange, and with those without one of the exchanged operators.

    `without`: None, or an array of another shape, where one cannot be compared; with none of them, results have to be
    equal but for rounding.  `step`: the size of a step of 8 bits in the result (`step_of`), 0 where there are none.
    `mixing`: how many of the two operators mix values; where neither does, each value is a block.
    """
    if (told := _compare_dtypes(user, exchanged)) is not None:
        return told
    like = user.shape, user.dtype.kind == "c"
    alike = [one for one in without if one is not None and (one.shape, one.dtype.kind == "c") == like]
    if (axis := _axis_of_units(user)) is not None:
        # Beside an effect on times in seconds nothing would be left of one on places in degrees.
        each = zip(*(np.moveaxis(one, axis, 0) for one in (user, exchanged, *alike)), strict=True)
        return max((moved(u, x, w, step, mixing) for u, x, *w in each), key=lambda one: one.excess)
    return _moved_amounts(user, exchanged, alike, step, mixing)


def _moved_amounts(user: Array, exchanged: Array, alike: Sequence[Array], step: float, mixing: int) -> Moved:
    """Compare amounts of one unit."""
    first, second = _numbers(user), _numbers(exchanged)
    # Told by itself: a difference of infinities is no number, and would count as nothing below.
    open_ends = ~np.isfinite(first) | ~np.isfinite(second)
    if not np.array_equal(first[open_ends], second[open_ends], equal_nan=True):
        return Moved(math.inf, why="other values of it are infinite or NaN")
    first, second = _finite(first), _finite(second)
    difference = np.abs(first - second)
    rounding = _rounding(user) * np.abs(first)
    rounded = _is_rounded(difference, step, rounding, mixing)
    if rounded.all():
        return replace(EQUAL, subtle=_is_subtle(user, alike, step, rounding))
    effects = [_value_change(user, first, one, _median(rounding), mixing) for one in alike]
    if not effects:
        why = "it differs, and nothing tells how much the operators do: without one of them it has another form"
        return Moved(math.inf, by=float(difference.mean()), why=why)
    largest = _largest_move(first, np.where(difference > np.maximum(STEPS * step, rounding), difference, 0.0))
    return replace(_moved_in_blocks(difference, effects, first, rounding, rounded, mixing), largest=largest)


def _largest_move(values: Array, differences: Array) -> float:
    """Return by which share of the range of values one of them moves, in the channel in which that is most."""
    # Means and blocks do not see what befalls few values: a hue that wraps, a mark on what is overexposed.
    axis = _channel_axis(values)
    around = tuple(one for one in range(values.ndim) if one != axis)
    ranges, most = np.ptp(values, axis=around), differences.max(axis=around)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(most > 0, most / ranges, 0.0).max())


def _is_subtle(user: Array, without: Sequence[Array], step: float, rounding: Array) -> bool:
    # What casts does that at least. What rounds to integers moves them by one, however small a step has become.
    least = STEPS_OF_BLOCK * max(step, 1.0) if user.dtype.kind in "iu" else 0.0 if step else float(rounding.mean())
    uncast = [_numbers(one) for one in without if one.dtype == user.dtype]
    return any(float(np.abs(_numbers(user) - one).mean()) < least for one in uncast)


def _moved_in_blocks(
    difference: Array, effects: Sequence[Array], finite: Array, rounding: Array, rounded: Array, mixing: int
) -> Moved:
    """Return E / D of the whole, and of the block in which it is largest of those that are not `rounded`."""
    by = float(difference.mean())
    effect, done = _min_value_change(effects, finite, mixing)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = _by_blocks(difference, np.mean, mixing) / effect
    shares = np.where(effect > _by_blocks(rounding, np.mean, mixing), shares, math.inf)
    local = float(np.where(rounded, 0.0, shares).max())
    share = by / done if done > _median(rounding) else math.inf
    return Moved(share, local, by=by, effect=done)


def _is_rounded(difference: Array, step: float, rounding: Array, mixing: int) -> npt.NDArray[np.bool_]:
    """Tell for each block, or value, whether results differ there by no more than what is rounded elsewhere."""
    beyond = difference - np.maximum(STEPS * step, rounding)
    if not mixing:
        return np.asarray(beyond <= 0)
    # Both: rounding moves single values by steps, and the mean of a block by less than one.
    mean = _by_blocks(difference - np.maximum(STEPS_OF_BLOCK * step, rounding), np.mean, mixing)
    return np.asarray((_by_blocks(beyond, np.max, mixing) <= 0) & (mean <= 0))


def _compare_dtypes(user: Array, exchanged: Array) -> Moved | None:
    """Return what needs no amounts: other shapes and dtypes, equal results, and numbers that are names."""
    if user.shape != exchanged.shape or user.dtype != exchanged.dtype:
        kinds = [f"{one.dtype}{list(one.shape)}" for one in (exchanged, user)]
        return Moved(math.inf, why=f"it becomes {kinds[0]} instead of {kinds[1]}")
    u, x = _plain(user), _plain(exchanged)
    if u.dtype.kind not in "biufc":
        return EQUAL if bool((user == exchanged).all()) else Moved(math.inf, why="it becomes another one")
    if np.array_equal(u, x, equal_nan=u.dtype.kind in "fc"):
        return EQUAL
    if not names_things(user):
        return None
    if np.allclose(u, x, rtol=_rounding(user), atol=0.0, equal_nan=u.dtype.kind in "fc"):
        return EQUAL
    return Moved(math.inf, why="its numbers differ, and have to be equal, as classes, boxes and labels have")


def _min_value_change(effects: Sequence[Array], finite: Array, mixing: int) -> tuple[Array, float]:
    """Return what the operator that does less does to each block, and to the whole.

    Neither counts for more than how much the result itself varies: what is flat has nothing to show.
    """
    # Decision 119: the smaller effect counts. A cast that makes all black is nothing beside what a division does.
    done = min(float(one.mean()) for one in effects)
    if not mixing:
        return np.minimum.reduce(list(effects)), done
    shown = float(np.abs(finite - finite.mean()).mean())
    if half := _median_distance(finite):
        shown = min(shown, FAR * half)  # without what stands for missing values
    effect = np.minimum.reduce([_by_blocks(one, np.mean, mixing) for one in effects])
    # Decision 123: without this cap, three times a blur would be nothing beside an inversion in the same function.
    return np.minimum(effect, np.maximum(_block_offsets(finite), SHARE_OF_ELEMENT * shown)), min(done, shown)


def _finite(array: Array) -> Array:
    finite = np.isfinite(array)
    return array if finite.all() else np.where(finite, array, 0.0)


def names_things(array: Array) -> bool:
    """Tell whether the numbers of an array are not amounts: labels, boxes, classes, words by their numbers, dates."""
    if array.size <= SMALL or array.dtype.kind in "bmM":
        return True
    if array.dtype.kind not in "iu":
        return False
    # Decision 119: word 7 is not near word 8.
    return array.dtype.itemsize >= WIDE or len(np.unique(array)) <= FEW_VALUES


def step_of(given: Array, made: Array) -> float:
    """Return how large a step of the integers that enter operators is in what becomes of them; 0 where floats enter.

    By how far half of the values are from their median: one that stands for what is missing may be far from all.
    """
    if given.dtype.kind not in "iu" or names_things(given) or not made.size:
        return 0.0
    both = [_finite(_numbers(one)) for one in (given, made)]
    if not (before := _median_distance(both[0])):
        both = [_before_ground(one) for one in both]
        before = _median_distance(both[0])
    return _median_distance(both[1]) / before if before else 0.0


def _median_distance(numbers: Array) -> float:
    """Return how far half of the numbers are from their median."""
    return _median(np.abs(numbers - _median(numbers))) if numbers.size else 0.0


def _median(numbers: Array) -> float:
    """Return the median of finite numbers as `np.median` does, which takes six times as long."""
    middle = numbers.size // 2
    # One place alone: NumPy sorts parts by vector instructions where it is asked for no other.
    parted = np.partition(numbers, middle, axis=None)
    upper = float(parted[middle])
    return upper if numbers.size % 2 else (float(parted[:middle].max()) + upper) / 2


def _before_ground(numbers: Array) -> Array:
    """Return what a photograph before white shows: the numbers of a channel that are not near the median."""
    axis = _channel_axis(numbers)
    channel = numbers if axis is None else np.take(numbers, 0, axis)
    apart = np.abs(channel - _median(channel))
    return np.asarray(channel[apart > NEAR * float(apart.max())])


def _value_change(
    user: Array, u: npt.NDArray[np.float64], without: Array, least: float, mixing: int
) -> npt.NDArray[np.float64]:
    """Return by how much an operator moves each value, a change of unit apart, and of two that mix values any scale."""
    w = _finite(_numbers(without))
    plain = np.abs(u - w)
    spreads = float(u.std()), float(w.std())
    upright = float(((u - u.mean()) * (w - w.mean())).mean()) >= 0.0  # a negative is another unit, too
    # Beside a gain in the same function a mark would be nothing.
    if mixing < 2 and upright and user.dtype == without.dtype and max(spreads) <= UNITS * max(min(spreads), least):
        return plain
    left = LEFT_OF_A_FIT * np.minimum(plain, _median_distance(u))
    fitted = np.maximum(np.abs(u - _in_units_of(u, w)), left)
    # A fit minimizes squares, so its mean distance may be the larger one.
    return fitted if float(fitted.mean()) < float(plain.mean()) else plain


def _in_units_of(u: npt.NDArray[np.float64], w: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return `w` with the scale and the offset, by channel, that bring it nearest to `u`."""
    channel = _channel_axis(u)
    axes = tuple(axis for axis in range(u.ndim) if axis != channel)
    centred = [one - one.mean(axis=axes, keepdims=True) for one in (u, w)]
    square = (centred[1] ** 2).mean(axis=axes, keepdims=True)
    scale = (centred[0] * centred[1]).mean(axis=axes, keepdims=True) / np.where(square > 0, square, 1.0)
    return np.asarray(u.mean(axis=axes, keepdims=True) + scale * centred[1], np.float64)


def _channel_axis(array: Array) -> int | None:
    # Channels last as in NumPy, or first as in PyTorch.
    return next((axis for axis in (array.ndim - 1, 0) if array.ndim > 1 and array.shape[axis] <= CHANNELS), None)


def _axis_of_units(array: Array) -> int | None:
    """Return the axis of channels if these are of several units: places and times, colours and depths."""
    if (axis := _channel_axis(array)) is None or array.dtype.kind == "c":
        return None
    sizes = [float(np.abs(_finite(_numbers(one))).mean()) for one in np.moveaxis(array, axis, 0)]
    return axis if max(sizes) > OTHER_UNIT * min(sizes) > 0 else None


def _by_blocks(values: npt.NDArray[np.float64], over: Any, mixing: int = 1) -> npt.NDArray[np.float64]:
    """Return the means, or the largest values, of an array's blocks."""
    if not mixing:
        return values
    long = [axis for axis in range(values.ndim) if values.shape[axis] > CHANNELS]
    count = SEGMENTS if len(long) == 1 else BLOCKS
    add = np.maximum if over is np.max else np.add
    for axis in range(values.ndim):
        size = values.shape[axis]
        parts = min(size, count) if axis in long else 1
        edges = np.linspace(0, size, parts + 1).astype(np.intp)
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


def _rounding(array: Array) -> float:
    """Return the share of itself by which a value may differ and be equal."""
    # Integers are exact, and so are dates.
    if array.dtype.kind in "iubmM":
        return 0.0
    return ULPS * float(np.finfo(array.dtype).eps) if array.dtype.kind in "fc" else COARSE


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
