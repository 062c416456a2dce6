"""Arrays of lists, of which NumPy changes values without a word.

It rounds a large integer beside a float or a small one, wraps a moment around in the finer unit of another one, cuts
zero bytes off texts, and makes texts of numbers beside them.

Decisions: docs/decisions/values.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pecan_ray.plan.splits import Array

EXACT_BELOW = 2**53
"""Integers are rounded from here on: float64 has 53 bits for digits."""


def exact_array(value: Any) -> Array:
    """Return a value as an array.

    A list whose integers need more than 63 bits, none of them negative and none beside a float, becomes uint64, and a
    list of texts that an array of texts does not hold becomes one of objects.  Raises OverflowError for a list whose
    integers no type of number holds together with its other values, or whose moments no unit, and whatever
    `numpy.asarray` does.
    """
    array = np.asarray(value)
    if not isinstance(value, (list, tuple)):
        return array
    if array.dtype.kind in "SUmM":
        return _exact_texts_or_moments(array, np.asarray(value, object))
    # Smaller floats cannot be rounded integers, and a look at each value takes long.
    if array.dtype.kind not in "fc" or not (np.abs(array) >= EXACT_BELOW).any():
        return array
    return _exact_integers(array, np.asarray(value, object))


def _exact_texts_or_moments(array: Array, stored: Array) -> Array:
    values = stored.ravel().tolist()
    if array.dtype.kind in "SU":
        kind, zero = (str, "\0") if array.dtype.kind == "U" else (bytes, b"\0")
        return array if all(isinstance(one, kind) and one[-1:] != zero for one in values) else stored
    # Compared in the moment's own unit: in a common one both would wrap around alike.
    pairs = zip(array.ravel(), values, strict=True)
    if all(isinstance(one, type(held)) and str(held.astype(one.dtype)) == str(one) for held, one in pairs):
        return array
    raise OverflowError(
        f"{array.dtype.name} does not hold all of its values: make them datetime64 or timedelta64 of one unit that does"
    )


def _exact_integers(array: Array, stored: Array) -> Array:
    pairs = list(zip(stored.ravel().tolist(), array.ravel().tolist(), strict=True))
    rounded = next((one for one, held in pairs if isinstance(one, (int, np.integer)) and int(one) != held), None)
    if rounded is None:
        return array
    whole = all(isinstance(one, (int, np.integer)) and 0 <= one < 1 << 64 for one, _ in pairs)
    # Refused rather than rounded: docs/decisions/values.md#97-values-as-they-are-stored.
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
