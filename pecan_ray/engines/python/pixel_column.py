"""All bytes of an image's pixels at once, for functions that compute each number by itself, or move channels.

A function is given a `PixelColumn` in the place of an image: a `RowsColumn` of 256 images of one pixel, which knows
where its numbers stand in the image: which channel each of its channels was, and in which order its axes are.
So a function may exchange channels (`image[..., ::-1]`) and put them first (`image.transpose(2, 0, 1)`); what computes
with two orders at a time refuses itself, since its numbers depend on more than one byte.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pecan_ray.engines.python.rows import NumberArray, RowsColumn, RowsWatch, array_of

WHOLE = slice(None)
MOVING = (np.transpose, np.moveaxis, np.swapaxes, np.rollaxis)
"""Functions of NumPy that put axes into another order."""


class PixelLayout(NamedTuple):
    """Where the numbers of a value stand in the image."""

    axes: tuple[int, ...]
    """The image's axis of each axis: 0, 1, 2 for rows, columns, channels."""
    channels: tuple[int, ...]
    """The image's channel of each channel; of an image without an axis for them one."""

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> PixelLayout:
        """Return that of an image itself."""
        return cls(tuple(range(len(shape))), tuple(range(shape[2])) if len(shape) == 3 else (0,))

    @property
    def channel_axis(self) -> int | None:
        """The axis of the channels; None where there is none."""
        return self.axes.index(2) if len(self.axes) == 3 else None

    @property
    def planes_first(self) -> bool:
        """Whether the channels come first, and rows and columns as they were."""
        return self.axes == (2, 0, 1)


@dataclass
class PixelWatch(RowsWatch):
    """What is known of one run over images of one pixel, one for each value."""

    shape: tuple[int, ...] = ()
    """That of the image whose pixels are looked up."""
    writes: ClassVar[bool] = True
    """These images are the function's own."""

    def check_cast(self, array: NumberArray, wanted: np.dtype[Any]) -> None:
        """Refuse a cast of what lies outside of the range: the processor makes of it what it likes."""
        if wanted.kind in "iu" and array.dtype.kind == "f":
            bounds = np.iinfo(wanted)
            if not (np.isfinite(array).all() and array.min() > bounds.min - 1 and array.max() < bounds.max + 1):
                self.refuse(f"it casts {array.dtype} to {wanted} beyond its range")


class PixelColumn(RowsColumn):
    """Images of one pixel; see the top of this file."""

    __slots__ = ("layout",)
    _watch: PixelWatch

    def __init__(self, array: NumberArray, watch: PixelWatch, layout: PixelLayout) -> None:
        super().__init__(array, watch)
        self.layout = layout

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the image, with these axes and channels."""
        return tuple(len(self.layout.channels) if axis == 2 else self._watch.shape[axis] for axis in self.layout.axes)

    def values(self) -> NumberArray:
        """Return what becomes of each byte: [256, channels]."""
        return self._array.reshape(len(self._array), len(self.layout.channels))

    # --- moving channels

    def __getitem__(self, key: Any) -> PixelColumn:
        """Return the image with its channels in another order, or some of them; all other parts refuse themselves."""
        parts = list(key) if isinstance(key, tuple) else [key]
        if any(part is Ellipsis for part in parts):
            place = next(number for number, part in enumerate(parts) if part is Ellipsis)
            parts[place : place + 1] = [WHOLE] * (self.ndim + 1 - len(parts))
        parts += [WHOLE] * (self.ndim - len(parts))
        axis = self.layout.channel_axis
        others = [part for number, part in enumerate(parts) if number != axis]
        if axis is None or len(parts) != self.ndim or not all(type(one) is slice and one == WHOLE for one in others):
            self._watch.refuse("it takes or sets parts of it")
        return self._channels(parts[axis], axis)

    def _channels(self, key: Any, axis: int) -> PixelColumn:
        is_list = isinstance(key, list) and all(type(one) is int for one in key)
        if not (type(key) is slice or is_list):
            self._watch.refuse("it takes or sets parts of it")
        kept = tuple(np.array(self.layout.channels)[key].tolist())
        if not kept:
            self._watch.refuse("it takes or sets parts of it")
        return PixelColumn(
            self._array[(WHOLE,) * (axis + 1) + (key,)], self._watch, self.layout._replace(channels=kept)
        )

    def transpose(self, *axes: Any) -> PixelColumn:
        """Return the image with its axes in another order."""
        order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        return self._moved(np.transpose, (tuple(order) if order and order != (None,) else None,), {})

    def swapaxes(self, first: Any, second: Any) -> PixelColumn:
        """Return the image with two axes exchanged."""
        return self._moved(np.swapaxes, (first, second), {})

    @property
    def T(self) -> PixelColumn:  # noqa: N802  # NumPy's name
        """The image with its axes the other way round."""
        return self._moved(np.transpose, (), {})

    def _moved(self, function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> PixelColumn:
        """Return the image with its axes as a function of NumPy moves them."""
        sizes = tuple(range(1, self.ndim + 1))
        moved = function(np.empty(sizes), *args, **keywords).shape
        order = tuple(sizes.index(size) for size in moved)
        array = self._array.transpose(0, *(1 + axis for axis in order))
        axes = tuple(self.layout.axes[axis] for axis in order)
        return PixelColumn(array, self._watch, self.layout._replace(axes=axes))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        if function in MOVING and args and args[0] is self:
            return self._moved(function, args[1:], keywords)
        axis = self.layout.channel_axis
        flips = function is np.flip and len(args) == 1 and args[0] is self and keywords.keys() == {"axis"}
        if flips and axis is not None and keywords["axis"] in (axis, axis - self.ndim):
            return self._channels(slice(None, None, -1), axis)
        return super().__array_function__(function, types, args, keywords)

    # --- what `RowsColumn` asks

    def _like(self, array: NumberArray) -> PixelColumn:
        return PixelColumn(array, self._watch, self.layout)

    def _check_alike(self, other: RowsColumn) -> None:
        super()._check_alike(other)
        if not isinstance(other, PixelColumn) or other.layout != self.layout:
            self._watch.refuse("it computes with channels, or axes, in another order")

    def _check_constant(self, value: NumberArray) -> None:
        """Refuse an array that is not the same for all pixels."""
        shape = (1,) * (self.ndim - value.ndim) + value.shape
        axis = self.layout.channel_axis
        others = [size for number, size in enumerate(shape) if number != axis]
        if math.prod(others) != 1 or (axis is not None and shape[axis] not in (1, len(self.layout.channels))):
            self._watch.refuse("it computes with an array that is not the same for all pixels")


def pixels_of(value: Any, watch: PixelWatch) -> PixelColumn:
    """Return what a function has made."""
    array_of(value, watch)
    assert isinstance(value, PixelColumn)
    return value


def reordered_by(function: Any, pixels: PixelColumn) -> PixelColumn | None:
    """Return what `cv2.cvtColor`, with a code that exchanges red and blue, makes of an image; None: it is another."""
    cv2 = sys.modules.get("cv2")
    if cv2 is None or type(function) is not functools.partial or function.func is not cv2.cvtColor:
        return None
    exchanges = not function.args and function.keywords in ({"code": cv2.COLOR_BGR2RGB}, {"code": cv2.COLOR_RGB2BGR})
    usual = pixels.layout.axes == (0, 1, 2) and len(pixels.layout.channels) == 3
    if not (exchanges and usual and pixels.dtype in (np.uint8, np.float32)):
        return None
    backwards = pixels[..., ::-1]
    return PixelColumn(backwards._array.copy(), backwards._watch, backwards.layout)
