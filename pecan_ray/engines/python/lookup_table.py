"""Arithmetic on the bytes of images as one table: what AutoOrder puts in the place of maps that do nothing else.

A byte has 256 values.  Functions that compute each number of an image by itself (a cast, a division, means and
deviations of channels, a gamma) are run on an image of one pixel for each of these values, with every element anew, so
that they draw and read what they would; then the image's pixels are looked up.  As with rows, functions are watched
(`pecan_ray.engines.python.rows`): where one does anything else, it runs on the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from pecan_ray.engines.python.rows import NotInRowsError, NumberArray, RowsColumn, RowsWatch, array_of
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


@dataclass
class PixelWatch(RowsWatch):
    """What is known of one run over images of one pixel, one for each value."""

    shape: tuple[int, ...] = ()
    """That of the image whose pixels are looked up."""
    writes: ClassVar[bool] = True
    """These images are the function's own."""

    def shape_of(self, array: NumberArray) -> tuple[int, ...]:
        """Return that of the image."""
        return self.shape

    def check_constant(self, value: NumberArray) -> None:
        """Refuse an array that is not the same for all pixels."""
        channels = self.shape[2] if len(self.shape) == 3 else 1
        if math.prod(value.shape[:-1]) != 1 or (value.ndim and value.shape[-1] not in (1, channels)):
            self.refuse("it computes with an array that is not the same for all pixels")

    def check_cast(self, array: NumberArray, wanted: np.dtype[Any]) -> None:
        """Refuse a cast of what lies outside of the range: the processor makes of it what it likes."""
        if wanted.kind in "iu" and array.dtype.kind == "f":
            bounds = np.iinfo(wanted)
            if not (np.isfinite(array).all() and array.min() > bounds.min - 1 and array.max() < bounds.max + 1):
                self.refuse(f"it casts {array.dtype} to {wanted} beyond its range")


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

    def table(self, shape: tuple[int, ...], rng: Draw) -> NumberArray:
        """Return what becomes of each byte in each channel of an image of that shape: [256, channels].

        Raises `NotInRowsError` where it depends on anything else.
        """
        channels = shape[2] if len(shape) == 3 else 1
        watch = PixelWatch(VALUES, self.exactly, shape=shape)
        bytes_each = np.repeat(np.arange(VALUES, dtype=np.uint8), channels)
        value: Any = RowsColumn(bytes_each.reshape(VALUES, *(1,) * (len(shape) - 1), channels), watch)
        for name, function in self.steps:
            try:
                with np.errstate(divide="raise", over="raise", invalid="raise"):  # which would be told of the image
                    value = function(value, **({"rng": rng(name)} if name in self._drawing else {}))
                made = array_of(value, watch)
            except BaseException as error:
                if is_interrupt(error) or isinstance(error, NotInRowsError):
                    raise
                raise NotInRowsError(f"{name}: {told(error)}") from error
            if watch.refused:
                raise NotInRowsError(f"{name}: {watch.refused}")
        if made.dtype not in DTYPES:
            raise NotInRowsError(f"it makes numbers of {made.dtype}")
        return made.reshape(VALUES, channels)


def can_be_looked_up(image: Any) -> bool:
    """Tell whether a value is an image of bytes that is worth a table."""
    if type(image) is not np.ndarray or image.dtype != np.uint8 or image.size < LEAST_NUMBERS:
        return False
    return image.ndim == 2 or (image.ndim == 3 and image.shape[2] <= MOST_CHANNELS)


def looked_up(image: NumberArray, values: NumberArray) -> NumberArray:
    """Return the table's values for the bytes of an image, channel by channel."""
    cv2 = opencv()
    if image.strides[1] < 0:  # a mirrored view, which OpenCV mirrors faster than NumPy copies it
        image = cv2.flip(image[:, ::-1], 1).reshape(image.shape)
    made: NumberArray = cv2.LUT(image, np.ascontiguousarray(values[np.newaxis]))
    return made.reshape(image.shape)
