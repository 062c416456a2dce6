"""The value with which elements of unequal shapes are padded, in both engines."""

from __future__ import annotations

from typing import Any

import numpy as np

from pecan_ray.errors import PlanError, to_str


def fill_value(padding: Any, dtype: np.dtype[Any], name: str, op: str) -> Any:
    """Return the padding as a value of the column's dtype; raises PlanError where it would become another value."""
    try:
        with np.errstate(invalid="ignore"):
            value = np.asarray(padding).astype(dtype)
        # -1 in a column of uint8 would become 255 without a word.
        kept = dtype.kind not in "biu" or bool(value == padding)
    except (TypeError, ValueError, OverflowError):
        kept = False
    if not kept:
        raise PlanError(f"{op}: padding {padding!r} is no value of column {to_str(name)}, whose dtype is {dtype}.")
    return value
