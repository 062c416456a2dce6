"""Arithmetic on the bytes of images as one table: what AutoOrder puts in the place of maps that do nothing else.

A byte has 256 values.  Functions that compute each number of an image by itself (a cast, a division, means and
deviations of channels, a gamma) are run on an image of one pixel for each of these values, with every element anew, so
that they draw and read what they would; then the image's pixels are looked up.  As with rows, functions are watched
(`pecan_ray.engines.python.rows`): where one does anything else, it runs on the image.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pecan_ray.engines.python.pixel_column import PixelColumn, PixelLayout, PixelWatch, pixels_of, reordered_by
from pecan_ray.engines.python.rows import NotInRowsError, NumberArray
from pecan_ray.errors import is_interrupt, told
from pecan_ray.plan.operators import wants_rng
from pecan_ray.warps import Draw, opencv

VALUES = 256
LEAST_NUMBERS = 4096
"""Numbers of an image below which making a table takes as long as computing."""
MOST_CHANNELS = 4
"""Of an image with channels; OpenCV's tables have as many."""
DTYPES = frozenset(np.dtype(name) for name in ("u1", "i1", "u2", "i2", "i4", "f4", "f8"))
"""Of results, as OpenCV knows them."""
PATIENCE = 3
"""After so many images of which it could not be made, with none between them, functions run as they are for good."""
TableSteps: TypeAlias = "tuple[tuple[str, Any], ...]"
"""Names of operators, by which they draw, and their functions."""


class PixelTable(NamedTuple):
    """What becomes of each byte."""

    values: NumberArray
    """[256, channels of the result]"""
    layout: PixelLayout


class LookupTable:
    """Several functions of a column as one look-up."""

    draws_by_name = True
    """It is given random numbers for each name."""

    def __init__(self, steps: TableSteps, exactly: bool = False) -> None:
        """`exactly`: only arithmetic whose result is prescribed to the last bit."""
        self.steps, self.exactly = steps, exactly
        self._drawing = {name for name, function in steps if wants_rng(function)}
        self._failures = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return LookupTable, (self.steps, self.exactly)

    def __call__(self, image: Any, rng: Draw) -> Any:
        """Return what becomes of an image."""
        if self._failures < PATIENCE and can_be_looked_up(image):
            try:
                found = looked_up(image, self.table(image.shape, rng))
            except NotInRowsError:
                self._failures += 1
            else:
                self._failures = 0
                return found
        for name, function in self.steps:
            image = function(image, **({"rng": rng(name)} if name in self._drawing else {}))
        return image

    def table(self, shape: tuple[int, ...], rng: Draw) -> PixelTable:
        """Return what becomes of each byte in each channel of an image of that shape.

        Raises `NotInRowsError` where it depends on anything else.
        """
        channels = shape[2] if len(shape) == 3 else 1
        watch = PixelWatch(VALUES, self.exactly, shape=shape)
        bytes_each = np.repeat(np.arange(VALUES, dtype=np.uint8), channels)
        pixel = bytes_each.reshape(VALUES, *(1,) * (len(shape) - 1), channels)
        value: Any = PixelColumn(pixel, watch, PixelLayout.of(shape))
        for name, function in self.steps:
            try:
                if (reordered := reordered_by(function, value)) is not None:
                    value = reordered
                    continue
                with np.errstate(divide="raise", over="raise", invalid="raise"):  # which would be told of the image
                    value = function(value, **({"rng": rng(name)} if name in self._drawing else {}))
                value = pixels_of(value, watch)
            except BaseException as error:
                if is_interrupt(error) or isinstance(error, NotInRowsError):
                    raise
                raise NotInRowsError(f"{name}: {told(error)}") from error
            if watch.refused:
                raise NotInRowsError(f"{name}: {watch.refused}")
        if value.dtype not in DTYPES:
            raise NotInRowsError(f"it makes numbers of {value.dtype}")
        return PixelTable(value.values(), value.layout)


def can_be_looked_up(image: Any) -> bool:
    """Tell whether a value is an image of bytes that is worth a table."""
    if type(image) is not np.ndarray or image.dtype != np.uint8 or image.size < LEAST_NUMBERS:
        return False
    return image.ndim == 2 or (image.ndim == 3 and image.shape[2] <= MOST_CHANNELS)


def looked_up(image: NumberArray, table: PixelTable) -> NumberArray:
    """Return the table's values for the bytes of an image, channel by channel, in the layout that it says."""
    cv2, layout = opencv(), table.layout
    if image.strides[1] < 0:  # a mirrored view, which OpenCV mirrors faster than NumPy copies it
        image = cv2.flip(image[:, ::-1], 1).reshape(image.shape)
    if layout.planes_first:
        return _planes(image, table)
    if layout.channels != PixelLayout.of(image.shape).channels:
        image = _reordered(image, layout.channels)
    made: NumberArray = cv2.LUT(image, np.ascontiguousarray(table.values[np.newaxis]))
    return made.reshape(image.shape).transpose(layout.axes)


def _planes(image: NumberArray, table: PixelTable) -> NumberArray:
    """Write each channel of the result in one piece, and not pixel by pixel: they come first in it."""
    cv2, channels = opencv(), table.layout.channels
    planes = cv2.split(image) if image.shape[2] > 1 else [image[:, :, 0]]
    made = np.empty((len(channels), *image.shape[:2]), table.values.dtype)
    for place, channel in enumerate(channels):
        cv2.LUT(planes[channel], np.ascontiguousarray(table.values[:, place])[np.newaxis], dst=made[place])
    return made


def _reordered(image: NumberArray, channels: tuple[int, ...]) -> NumberArray:
    """Return an image with these of its channels, while they are bytes."""
    if image.shape[2] == 3 and channels == (2, 1, 0):
        made: NumberArray = opencv().cvtColor(image, opencv().COLOR_BGR2RGB)
        return made
    return np.ascontiguousarray(image[..., list(channels)])
