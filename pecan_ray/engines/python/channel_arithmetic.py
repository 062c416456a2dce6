"""Normalizations of images in NumPy, with a number for each channel.

`(image - MEANS) / DEVIATIONS` has a loop over three numbers for each pixel, which takes four times as long as the same
with constants as long as a row of the image.  The results are equal to the last bit: both do the same to each number.
Whether a function does that and nothing else is watched while it runs (`pecan_ray.engines.python.rows`).
"""

from __future__ import annotations

import builtins
import dis
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pecan_ray.engines.python.rows import NUMBERS, RowsColumn, RowsWatch, array_of
from pecan_ray.plan.operators import Map, is_pass_dependent

CHANNELS = (2, 3, 4)
"""Of images in which it is worth it; with more the loop over them is long enough."""
SMALLEST = 1 << 12
"""Numbers of an image below which the calls, and not the loops, take the time."""
FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def is_channel_arithmetic(op: Map) -> bool:
    """Tell whether a function could do arithmetic with a number for each channel of its image, by what it names.

    It names nothing but NumPy and numbers, so that calling it with something else than its image changes nothing.
    """
    fn = op.fn
    if not isinstance(fn, types.FunctionType) or fn.__code__.co_flags & FLAGS or is_pass_dependent(op):
        return False
    if int(np.__version__.partition(".")[0]) < 2:  # the dtype of a result depended on whether a constant was one number
        return False
    values = list(_constants(fn))
    return all(map(_is_plain, values)) and any(_is_by_channel(value) for value in values)


def _constants(fn: types.FunctionType) -> Iterator[Any]:
    """Yield what a function names, and what is written in it; attributes and methods are those of its image."""
    names = {one.argval for one in dis.get_instructions(fn) if one.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")}
    yield from (fn.__globals__.get(name, vars(builtins).get(name)) for name in names)
    yield from (cell.cell_contents for cell in fn.__closure__ or ())
    yield from fn.__defaults__ or ()
    # Texts are the docstring and names of dtypes; a nested function is a code object, which `_is_plain`
    # refuses.
    yield from (one for one in fn.__code__.co_consts if not isinstance(one, (str, type(None))))


def _is_plain(value: Any) -> bool:
    if value is np or isinstance(value, (bool, int, float, np.generic)):
        return True
    if isinstance(value, type):
        return value in (bool, int, float) or issubclass(value, np.generic)
    if isinstance(value, tuple):
        return all(isinstance(one, (bool, int, float, str)) for one in value)
    return isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS


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
