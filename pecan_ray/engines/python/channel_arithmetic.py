"""Normalizations of images in NumPy, with a number for each channel.

`(image - MEANS) / DEVIATIONS` has a loop over three numbers for each pixel, which takes four times as long as the same
with constants as long as a row of the image.  The results are equal to the last bit: both do the same to each number.
Whether a function does that and nothing else is watched while it runs (`pecan_ray.engines.python.rows`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

from pecan_ray.engines.python.plain_functions import named_values, why_not_plain
from pecan_ray.engines.python.rows import NUMBERS, RowsColumn, RowsWatch, array_of
from pecan_ray.plan.operators import Map, is_pass_dependent

CHANNELS = (2, 3, 4)
"""Of images in which it is worth it; with more the loop over them is long enough."""
SMALLEST = 1 << 12
"""Numbers of an image below which the calls, and not the loops, take the time."""


def is_channel_arithmetic(op: Map) -> bool:
    """Tell whether a function could do arithmetic with a number for each channel of its image, by what it names."""
    if is_pass_dependent(op) or not isinstance(op.fn, types.FunctionType) or why_not_plain(op.fn):
        return False
    # Before NumPy 2 the dtype of a result depended on whether a constant was one number.
    return int(np.__version__.partition(".")[0]) >= 2 and any(_is_by_channel(value) for _, value in named_values(op.fn))


def _is_by_channel(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) in CHANNELS and all(isinstance(one, (int, float)) for one in value)
    return isinstance(value, np.ndarray) and value.size in CHANNELS and value.shape[-1] == value.size


class PerChannelFunction:
    """A function of an image, called with rows of pixels in place of pixels as long as it does arithmetic alone."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self._rejected = False

    def __reduce__(self) -> tuple[Any, ...]:
        # The verdict is left behind: it is found again with the first image.
        return PerChannelFunction, (self.fn,)

    def __call__(self, image: Any) -> Any:
        """Return what the function makes of an image."""
        if self._rejected or not _is_image(image):
            return self.fn(image)
        height, width, channels = image.shape
        # `exactly`: only operations whose last bit is prescribed
        # (docs/decisions/rewrites.md#154-constants-by-channel).
        watch = RowsWatch(1, exactly=True, channels=channels)
        try:
            given = RowsColumn(image.reshape(1, height, width * channels), watch)
            made = array_of(self.fn(given), watch)
        except Exception:  # what it raises of an image is raised below
            self._rejected = True
            return self.fn(image)
        if watch.rejected:
            # For good: what is no plain arithmetic for one image is none for the next, and each try costs a
            # call.
            self._rejected = True
            return self.fn(image)
        return made.reshape(image.shape)


def _is_image(value: Any) -> bool:
    if type(value) is not np.ndarray or value.ndim != 3 or value.dtype.kind not in NUMBERS:
        return False
    return value.shape[2] in CHANNELS and value.size >= SMALLEST and value.dtype.isnative
