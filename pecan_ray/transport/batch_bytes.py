"""How much memory a batch takes, which bounds what waits of it on both sides."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

# Bytes of a Python number, or a reference, in a column of objects.
POINTER_BYTES = 8


def bytes_of(columns: Mapping[str, Any]) -> int:
    """Estimate the bytes of a batch's columns: those of arrays, of texts, and of what nested values hold."""
    return _sum(columns.values())


def _sum(values: Iterable[Any]) -> int:
    return sum(map(_value_bytes, values))


def _value_bytes(value: Any) -> int:
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    if isinstance(value, np.ndarray):
        # `nbytes` of an array of objects counts the references alone.
        return value.nbytes + (_sum(value.flat) if value.dtype.hasobject else 0)
    if isinstance(value, Mapping):
        return _sum(value.values())
    if isinstance(value, (list, tuple)):
        return POINTER_BYTES * len(value) + _sum(value)
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(value)
