"""Numbers that JAX would narrow out of their range: they are refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from pecan_ray.errors import PlanError

NARROWED: dict[str, Any] = {
    "int64": np.int32,
    "uint64": np.uint32,
    "float64": np.float32,
    "complex128": np.complex64,
}
"""What JAX makes of dtypes of 64 bits a number, unless it is told otherwise."""


def check_compatible(name: str, value: Any) -> None:
    """Raise PlanError for numbers that are out of range where JAX narrows them, as it does unless it is told otherwise.

    Floats are rounded, as everywhere, but do not become infinite.
    """
    array = np.asarray(value)
    narrow = None if jax.config.jax_enable_x64 else NARROWED.get(array.dtype.name)
    if narrow is not None and _leaves_range(array, np.dtype(narrow)):
        raise PlanError(
            f"column {name!r} has numbers beyond {np.dtype(narrow)}, to which JAX would cut them: set "
            '`jax.config.update("jax_enable_x64", True)`, or make them smaller, or text, in a .map.'
        )


def _leaves_range(array: Any, narrow: Any) -> bool:
    with np.errstate(over="ignore"):
        narrowed = array.astype(narrow)
    if narrow.kind in "iu":
        return not np.array_equal(narrowed, array)
    return not np.array_equal(np.isfinite(narrowed), np.isfinite(array))
