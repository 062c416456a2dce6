"""Arrays of lists of numbers: NumPy rounds a large integer beside a float or a small one, without a word."""

from __future__ import annotations

from typing import Any

import numpy as np

from pecan_ray.plan.splits import Array

EXACT_BELOW = 2**53
"""Integers are rounded from here on: float64 has 53 bits for digits."""


def exact_array(value: Any) -> Array:
    """Return a value as an array.

    A list whose integers need more than 63 bits, none of them negative and none beside a float, becomes uint64.  Raises
    OverflowError for one whose integers no type of number holds together with its other values, and whatever
    `numpy.asarray` does.
    """
    array = np.asarray(value)
    may_be_rounded = isinstance(value, (list, tuple)) and array.dtype.kind in "fc"
    if not may_be_rounded or not (np.abs(array) >= EXACT_BELOW).any():
        return array
    stored = np.asarray(value, object)
    pairs = list(zip(stored.ravel().tolist(), array.ravel().tolist(), strict=True))
    rounded = next((one for one, held in pairs if isinstance(one, (int, np.integer)) and int(one) != held), None)
    if rounded is None:
        return array
    whole = all(isinstance(one, (int, np.integer)) and 0 <= one < 1 << 64 for one, _ in pairs)
    if not whole:
        raise OverflowError(
            f"the integer {rounded} would be rounded: no type of number holds it beside the other values; make texts "
            "of them, or an array of dtype object"
        )
    return stored.astype(np.uint64)


def same_integers(array: Array, converted: Array) -> bool:
    """Tell whether an array's integers are the same in another one that was made of it, maybe of floats."""
    if array.dtype.kind not in "iu" or converted.dtype.kind != "f":
        return True
    large = np.abs(converted) >= EXACT_BELOW
    return all(map(int.__eq__, array[large].tolist(), map(int, converted[large].tolist())))
