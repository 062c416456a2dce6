"""Values that a sample seldom has: arrays over- and under-exposed, and the same numbers in another dtype.

A clipping that touches one value in a thousand of a sample touches half of an over-exposed picture.  So an order has to
agree with the user's on arrays pushed to the ends of their range too; and an operator that is given another dtype than
in the user's order has to make the same of the same numbers.

The range of a dtype of one or two bytes is its own.  That of floats is [0, r] or [-r, r], where r is the least of
`NATURAL` that is not below what was seen, unless it is far above: then it is what was seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pecan_ray.reorder.value_summary import FEW_VALUES, SMALL, WIDE

NATURAL = (1.0, 255.0, 32767.0, 65535.0)
"""Largest values of pictures and sounds as floats."""
FAR = 8.0
"""A largest value is far above what was seen if it is so many times as large."""
OF_BYTES = 0.01
"""Share of their span by which results may differ where numbers of one byte are rounded,"""
OF_OTHERS = 2e-3
"""and where others are: half precision."""
SHARES = (0.5, 0.35, 0.65, 0.2)
"""Shares of an array that are pushed to an end: what asks for a mean or a largest value decides otherwise in some."""
SELDOM = 5e-3
"""Share of the results that may differ by more: whatever lies on a threshold."""


def exposable(array: npt.NDArray[Any]) -> bool:
    """Tell whether an array holds a picture, a sound or features: neither labels nor numbers of words nor classes."""
    if array.size <= SMALL or array.dtype.kind not in "iuf":
        return False
    if array.dtype.kind == "f":
        return True
    return array.dtype.itemsize < WIDE and len(np.unique(array)) > FEW_VALUES


def reach(array: npt.NDArray[Any]) -> tuple[float, float]:
    """Return the least and the largest value."""
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


def ends(dtype: np.dtype[Any], low: float, high: float) -> tuple[float, float]:
    """Return the ends of the range of which `low` and `high` were seen."""
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return float(bounds.min), float(bounds.max)
    largest = max(abs(low), abs(high))
    end = next((one for one in NATURAL if largest <= one <= FAR * largest), largest)
    return (-end if low < 0 else 0.0), end


def exposed(array: npt.NDArray[Any], low: float, high: float, *, bright: bool, share: float = 0.5) -> npt.NDArray[Any]:
    """Return an array whose upper share (or its lower share) has reached the end; of signed numbers: the strong one."""
    if not low < high:
        return array  # of zeros alone there is nothing to expose
    numbers = np.nan_to_num(array.astype(np.float64), posinf=high, neginf=low)
    if low < 0:
        middle = float(np.quantile(np.abs(numbers), 1 - share))
        factor = max(abs(low), abs(high)) / middle if middle else 1.0
        made = numbers * (factor if bright else -factor)
    else:
        middle = float(np.quantile(numbers, 1 - share if bright else share))
        middle = float(np.clip(middle, low + (high - low) / 16, high - (high - low) / 16))
        made = (
            low + (numbers - low) * ((high - low) / (middle - low))
            if bright
            else high - (high - numbers) * ((high - low) / (high - middle))
        )
    made = np.clip(made, low, high)
    return np.rint(made).astype(array.dtype) if array.dtype.kind in "iu" else made.astype(array.dtype)


def holds(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Tell whether a dtype has the numbers of another one, but for rounding."""
    if wide.kind == "f":
        return narrow.kind != "f" or narrow.itemsize <= wide.itemsize
    return np.can_cast(narrow, wide, "safe")


def alike(narrow: npt.NDArray[Any], wide: npt.NDArray[Any], given: np.dtype[Any]) -> bool:
    """Tell whether results are the same, made of equal numbers of the dtype `given` and of a wider one."""
    if narrow.shape != wide.shape:
        return False
    if narrow.dtype.kind not in "biuf" or wide.dtype.kind not in "biuf":
        return bool((narrow == wide).all())
    a, b = narrow.astype(np.float64), wide.astype(np.float64)
    if not a.size:
        return True
    finite = np.isfinite(a) & np.isfinite(b)
    low, high = reach(b)
    byte = given.kind in "biu" and given.itemsize == 1
    bound = OF_BYTES * (high - low) if byte else OF_OTHERS * max(abs(low), abs(high))
    off = np.abs(np.where(finite, a, 0.0) - np.where(finite, b, 0.0)) > bound
    same = finite | (np.isnan(a) & np.isnan(b)) | (a == b)
    return float((off | ~same).mean()) <= SELDOM
