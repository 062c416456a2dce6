"""How deep values hold others: what holds itself, or very many levels, cannot be copied, sent, or put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

MOST_LEVELS = 200
"""Copying and putting together take up to four calls a level, of 1000 that Python allows at a time."""


class NestedValueError(ValueError):
    """A value holds itself, or too many levels of others."""


def check_nesting(value: Any) -> None:
    """Raise `NestedValueError` for a list, tuple, dict or array of objects that holds itself, or too many levels."""
    _Walk().enter(value)


class _Walk:
    def __init__(self) -> None:
        self._ancestor_ids: set[int] = set()
        """Those in which this one is."""
        self._done: set[int] = set()

    def enter(self, value: Any) -> None:
        held = _held(value)
        if held is None or id(value) in self._done:
            return
        if id(value) in self._ancestor_ids:
            raise NestedValueError(f"it returned a value that holds itself (a {type(value).__name__})")
        if len(self._ancestor_ids) == MOST_LEVELS:
            raise NestedValueError(f"it returned values within values, more than {MOST_LEVELS} levels deep")
        self._ancestor_ids.add(id(value))
        for one in held:
            self.enter(one)
        # Only ancestors make a circle: one list in two places is shared, and no fault.
        self._ancestor_ids.remove(id(value))
        self._done.add(id(value))


def _held(value: Any) -> Iterable[Any] | None:
    """Return what a container holds; None for what is none."""
    if isinstance(value, dict):
        # Not `value.values()`: a subclass may compute its values when asked.
        return dict.values(value)
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object:
        held: list[Any] = value.ravel().tolist()
        return held
    return None
