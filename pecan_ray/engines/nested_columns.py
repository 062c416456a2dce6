"""Arrays within columns that are lists, tuples or dicts: on their way they are columns of their own.

Columns that are arrays lie in the memory of a batch, and everything else is pickled beside it.  A batch of lists of
images would be copied several times so.  Folded, such a column has the names of other columns in the place of arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.engines.contract import is_plain

LEAST_BYTES = 4096
"""Smaller arrays are pickled: a column of its own takes some hundred bytes of messages and alignment."""
# Exact types only: a subclass (a namedtuple, an OrderedDict) could not be made again from its parts.
CONTAINERS = (list, tuple, dict)


@dataclass(frozen=True)
class _Place:
    """Stands for an array that is a column of its own."""

    column: str


@dataclass(frozen=True)
class _ColumnTemplate:
    """A column whose large arrays are columns of their own."""

    value: Any


def extract_arrays(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a batch with the large arrays within them as further columns."""
    nested = [name for name, column in columns.items() if type(column) in CONTAINERS]
    found: dict[str, Any] = dict(columns)
    for name in nested:
        arrays: dict[str, Any] = {}
        # No column of a user's has a zero byte in its name by accident, so added names do not meet theirs.
        value = _taken_out(columns[name], f"\0{name}\0", arrays)
        if arrays:
            found |= {name: _ColumnTemplate(value), **arrays}
    return found


def restore_arrays(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns that `extract_arrays` was given."""
    if not any(type(column) is _ColumnTemplate for column in columns.values()):
        return columns
    used: set[str] = set()
    whole = {
        name: _put_back(column.value, columns, used) if type(column) is _ColumnTemplate else column
        for name, column in columns.items()
    }
    return {name: column for name, column in whole.items() if name not in used}


def _taken_out(value: Any, prefix: str, arrays: dict[str, Any]) -> Any:
    if type(value) is dict:
        return {name: _taken_out(one, prefix, arrays) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_taken_out(one, prefix, arrays) for one in value])
    if type(value) is np.ndarray and value.nbytes >= LEAST_BYTES and is_plain(value.dtype):
        place = _Place(f"{prefix}{len(arrays)}")
        arrays[place.column] = value
        return place
    return value


def _put_back(value: Any, columns: Mapping[str, Any], used: set[str]) -> Any:
    if type(value) is dict:
        return {name: _put_back(one, columns, used) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_put_back(one, columns, used) for one in value])
    if type(value) is _Place:
        used.add(value.column)
        return columns[value.column]
    return value
