"""Whether values survive the way to the trainer: all but arrays of numbers are pickled there."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from pecan_ray.by_value import dumps
from pecan_ray.engines.foreign import is_tensor
from pecan_ray.engines.nesting import check_nesting
from pecan_ray.errors import describe_error, is_interrupt

PLAIN = frozenset({bytes, str, int, float, complex, bool, type(None)})
"""Types whose values can always be pickled."""
MASKED = "it is a masked array, whose mask would be lost (fill it, with numpy.ma.getmaskarray as a column of its own)"
LEVELS = 4
"""So deep in containers values are looked at one by one; deeper ones are tried by pickling them, which costs more."""
PLAIN_OR_NUMBERS = PLAIN | {np.dtype(code).type for code in "?bhilqBHILQefdFD"}


def why_not_serializable(value: Any) -> str:
    """Return why a value cannot be pickled here and unpickled elsewhere; empty if it can."""
    if type(value) in PLAIN or isinstance(value, np.generic):
        return ""
    if isinstance(value, np.ndarray):
        if not value.dtype.hasobject or PLAIN.issuperset(map(type, value.flat)):
            return ""
    # Pickling once only to find out costs as much as sending, so what surely can be pickled is not tried.
    elif type(value) in (list, tuple, dict) and _holds_arrays_alone(value, LEVELS):
        return ""
    try:
        check_nesting(value)
        # Read back as well: a class may pickle and fail when it is made again.
        pickle.loads(dumps(value))
    except BaseException as error:  # objects may refuse it in any way
        if is_interrupt(error):
            raise
        return f"it holds {_named(value)}, and {describe_error(error)}"
    return ""


def _holds_arrays_alone(value: Any, levels: int) -> bool:
    """Tell whether a container holds nothing but plain values, arrays of numbers and tensors, to some depth."""
    if type(value) is dict and not PLAIN.issuperset(map(type, value)):
        return False
    for one in value.values() if type(value) is dict else value:
        if type(one) in PLAIN_OR_NUMBERS or (type(one) is np.ndarray and not one.dtype.hasobject):
            continue
        nested = levels > 0 and type(one) in (list, tuple, dict) and _holds_arrays_alone(one, levels - 1)
        if not nested and not is_tensor(one):
            return False
    return True


def why_columns_not_serializable(value: Mapping[str, Any]) -> str:
    """Return why some column of an element cannot be sent; empty if all can."""
    return next((f"column {name!r}: {why}" for name, one in value.items() if (why := why_not_serializable(one))), "")


def _named(value: Any) -> str:
    kind = type(value)
    return f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"
