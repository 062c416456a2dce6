"""Bytes and elements that went into and came out of operators, counted while a job runs."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from pecan_ray.engines.foreign import is_pil_image, is_tensor, pil_image_bytes, tensor_bytes

POINTER_BYTES = 8
"""Size of a Python number."""
EVERY = 8
"""One of so many elements is counted, spread over the whole pass: tiny elements would feel more."""


def element_bytes(element: Mapping[str, Any]) -> int:
    """Return the bytes of an element, over all columns."""
    return sum(column_bytes(value) for value in element.values())


def column_bytes(value: Any) -> int:
    """Return the bytes of a value: of its items, where it is an array of objects, a list, or a dict."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return sum(map(column_bytes, value.ravel().tolist()))
    if isinstance(value, (np.ndarray, np.generic)):
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    if isinstance(value, Mapping):
        return element_bytes(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return sum(map(column_bytes, value))
    # Before the fallback, because a bool is one byte in a column and POINTER_BYTES would count eight.
    if isinstance(value, bool) or value is None:
        return int(value is not None)
    if is_pil_image(value):
        return pil_image_bytes(value)
    if is_tensor(value):
        return tensor_bytes(value)
    return int(getattr(value, "nbytes", POINTER_BYTES))


@dataclass(frozen=True)
class OpCount:
    """Sums over the elements of an operator that were counted."""

    elements_in: int = 0
    elements_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def __add__(self, other: OpCount) -> OpCount:
        return OpCount(*(mine + more for mine, more in zip(astuple(self), astuple(other), strict=True)))


class Counts:
    """The counts of all operators of one worker; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the counts."""
        self._of: dict[str, OpCount] = defaultdict(OpCount)

    def add(self, op: str, elements_in: int, bytes_in: int, after: Iterable[Mapping[str, Any]]) -> None:
        """Add what went into an operator and what came out."""
        # Outside of the lock: sizes of nested values take long, and all threads of the worker count here.
        sizes = [element_bytes(element) for element in after]
        with self._lock:
            self._of[op] += OpCount(elements_in, len(sizes), bytes_in, sum(sizes))

    def add_rows(self, op: str, rows: int, bytes_in: int, bytes_out: int, rows_out: int | None = None) -> None:
        """Add what went into an operator and came out of it, of many elements at a time; of a map as many."""
        with self._lock:
            self._of[op] += OpCount(rows, rows if rows_out is None else rows_out, bytes_in, bytes_out)

    def snapshot(self) -> dict[str, OpCount]:
        """Return the counts so far, by operator."""
        with self._lock:
            return dict(self._of)


def sum_of(counted: Iterable[Mapping[str, OpCount]]) -> dict[str, OpCount]:
    """Return what several workers have counted, together."""
    sums: dict[str, OpCount] = {}
    for counts in counted:
        for op, count in counts.items():
            sums[op] = sums.get(op, OpCount()) + count
    return sums
