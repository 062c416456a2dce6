"""What is kept of a value for comparing it with the same one behind another order: a few kilobytes at most."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

SMALL = 64
"""Arrays of so many numbers are kept whole and compared number by number."""
LOOKED_AT = 1 << 15
"""Numbers of a large array that are looked at, evenly spread."""
CHANNELS = 4
"""A last or leading dimension of this size at most is one of channels, whose values mean different things."""
SIDE_OF_PICTURE = 12
"""Blocks along each dimension of an array of several dimensions,"""
BLOCKS_OF_SEQUENCE = 64
"""and of one with a single long dimension."""
POINTS = 1024
"""Single values, evenly spread."""
WIDE = 4
"""Bytes of integers that number things; narrower ones are samples of a picture or a sound."""
BINS = 16
FEW_VALUES = 32
"""An array of integers with so many different values is a map of classes."""


@dataclass(frozen=True, slots=True)
class Field:
    """A number, or an array of them."""

    shape: tuple[int, ...]
    whole: bool
    """Whether its type has integers or truth values only."""
    ids: bool
    """Whether it is a row of wide integers, as words of a text are by their numbers."""
    exact: npt.NDArray[Any] | None
    """All of its values, if they are few."""
    finite: float
    """Share of values that are neither infinite nor NaN; the others count as 0 below."""
    means: Floats
    """By channel."""
    deviations: Floats
    low: float
    high: float
    common: float
    """Share of the values that are most alike: those in the fullest of `BINS` parts of their range."""
    classes: bool
    """Whether it looks like a map of classes: few different integers."""
    blocks: Floats
    """Means of blocks: the picture made small."""
    textures: Floats
    """Standard deviations within the blocks."""
    structure: float
    """Share of the variance that the blocks have."""
    structure_of_noise: float
    """What that would be if neighbours were not alike."""
    points: Floats

    @property
    def mean(self) -> float:
        """Mean over all channels."""
        return float(self.means.mean())

    @property
    def deviation(self) -> float:
        """Standard deviation over all channels."""
        return math.sqrt(float((self.deviations**2).mean() + self.means.var()))


@dataclass(frozen=True, slots=True)
class Text:
    """Text, bytes, or another value that can only be equal or not."""

    length: int
    identity: Hashable


ValueSummary: TypeAlias = Field | Text


def summarise(value: Any) -> ValueSummary:
    """Return what is kept of a number, an array, a text or bytes; whatever else there is counts by its type."""
    if isinstance(value, (str, bytes, bytearray)):
        return Text(len(value), hash(bytes(value) if isinstance(value, bytearray) else value))
    if isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)):
        array = np.asarray(value)
        if array.dtype.kind in "OSUV" and array.dtype.isbuiltin != 2:
            items = array.ravel().tolist()
            return Text(len(items), (array.shape, *map(_identity, items)))
        return _field(array)
    return Text(0, _identity(value))


def _identity(value: Any) -> Hashable:
    """Return something that equal values have in common; objects that compare by identity count by their type."""
    compares = next(one for one in type(value).__mro__ if "__eq__" in vars(one))
    if compares is object:
        return type(value).__qualname__
    try:
        hash(value)
    except TypeError:
        return type(value).__qualname__, repr(value)
    return type(value).__qualname__, value


def _numbers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that NumPy computes with: parts of complex ones, dates as integers, small floats as float32."""
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], axis=-1)
    if array.dtype.kind in "mM":
        return array.view(np.int64)
    if array.dtype.kind not in "biuf":
        return array.astype(np.float32)
    return array


def _field(given: npt.NDArray[Any]) -> Field:
    array = _numbers(given)
    whole = array.dtype.kind in "biu"
    exact = array.copy() if array.size <= SMALL else None
    some = _spread(array).astype(np.float64)
    finite = 1.0
    if not whole and some.size and not (finite_values := np.isfinite(some)).all():
        finite, some = float(finite_values.mean()), np.where(finite_values, some, 0.0)
    by_channel = by_channels(some)
    means, variances = (by_channel.mean(axis=1), by_channel.var(axis=1)) if some.size else (np.zeros(1), np.zeros(1))
    points = _points(some)
    distinct, common = _most_common(points)
    blocks, textures, per_block = _blocks(some)
    variance = float(variances.mean())
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = (float(some.min()), float(some.max())) if some.size else (0.0, 0.0)
    return Field(
        shape=given.shape,
        whole=whole,
        ids=whole and given.ndim == 1 and array.dtype.itemsize >= WIDE,
        exact=exact,
        finite=finite,
        means=means,
        deviations=np.sqrt(variances),
        low=low,
        high=high,
        common=common,
        classes=whole and distinct <= FEW_VALUES,
        blocks=blocks,
        textures=textures,
        structure=_within_channels(blocks) / variance if variance else 0.0,
        structure_of_noise=1 / per_block,
        points=points.ravel(),
    )


def _spread(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return at most about `LOOKED_AT` of the numbers: every so many-th along the longest dimensions."""
    steps = [1] * array.ndim
    size = array.size
    while size > LOOKED_AT:
        axis = max(range(array.ndim), key=lambda a: array.shape[a] // steps[a])
        steps[axis] += 1
        size = math.prod(-(-side // step) for side, step in zip(array.shape, steps, strict=True))
    return array[tuple(slice(step // 2, None, step) for step in steps)]


def channel_axis(shape: tuple[int, ...]) -> int | None:
    """Return which dimension is one of channels, if any."""
    if len(shape) >= 2 and shape[-1] <= CHANNELS < math.prod(shape[:-1]):
        return len(shape) - 1
    if len(shape) >= 3 and shape[-3] <= CHANNELS < math.prod(shape[-2:]):
        return len(shape) - 3
    return None


def by_channels(some: Floats) -> Floats:
    """Return the values by channel: [channel, place]."""
    axis = channel_axis(some.shape)
    if axis is None:
        return some.reshape(1, -1)
    return np.moveaxis(some, axis, 0).reshape(some.shape[axis], -1)


def _within_channels(blocks: Floats) -> float:
    return float(by_channels(blocks).var(axis=1).mean())


def _points(some: Floats) -> Floats:
    """Return values at evenly spread places, [channel, place]."""
    if not some.size:
        return np.zeros((1, 0))
    axis = channel_axis(some.shape)
    cells = np.moveaxis(some, axis, 0) if axis is not None else some[np.newaxis]
    long = [side for side in cells.shape[1:] if side > 1]
    each = max(1, round(POINTS ** (1 / max(1, len(long)))))
    places = [np.arange(cells.shape[0])]
    for side in cells.shape[1:]:
        count = min(side, each)
        places.append(((np.arange(count) + 0.5) * side / max(count, 1)).astype(np.intp))
    return cells[np.ix_(*places)].reshape(cells.shape[0], -1)


def _most_common(points: Floats) -> tuple[int, float]:
    """Return the number of different values, and the share of those that are most alike (mean of the channels)."""
    if not points.size:
        return 0, 1.0
    shares = [np.histogram(channel, BINS)[0].max() / channel.size for channel in points]
    return len(np.unique(points)), float(np.mean(shares))


def _blocks(some: Floats) -> tuple[Floats, Floats, float]:
    """Return means and standard deviations of blocks, and how many numbers a block has."""
    if not some.size:
        return np.zeros(0), np.zeros(0), 1.0
    axis = channel_axis(some.shape)
    sums, squares, count = some, some * some, 1.0
    long = [a for a in range(some.ndim) if a != axis and some.shape[a] > 1]
    most = BLOCKS_OF_SEQUENCE if len(long) == 1 else SIDE_OF_PICTURE
    for a in long:
        side = some.shape[a]
        number = min(side, most)
        edges = (np.arange(number) * side) // number
        widths = np.diff([*edges, side]).reshape([-1 if a == other else 1 for other in range(some.ndim)])
        sums, squares = np.add.reduceat(sums, edges, a) / widths, np.add.reduceat(squares, edges, a) / widths
        count *= side / number
    return sums, np.sqrt(np.maximum(squares - sums * sums, 0.0)), count
