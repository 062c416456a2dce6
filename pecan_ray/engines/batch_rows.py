"""The rows of a batch that a function on batches has returned: whether its columns have come apart by mistake.

Columns of other lengths are no mistake by themselves: offsets of packed sequences, edges of graphs, patches of all
images one behind the other.  Certain is only that rows are missing where a column was cut, and others were not.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

logger = logging.getLogger("pecan_ray")

_said: set[str] = set()
"""Operators of which was warned in this process."""


class RowsMissingError(ValueError):
    """Some columns of a batch were cut, and others were not."""


def check_rows(op: str, given: Mapping[str, Any], made: Mapping[str, Any], rows: int) -> None:
    """Raise `RowsMissingError` where some columns keep the rows of a batch, and one is a given one with fewer rows.

    Where one with fewer rows may be something of its own it is warned of, once for an operator.
    """
    whole = next((name for name, one in made.items() if _rows_of(one) == rows), None)
    # No column has the rows of the batch any more: the function has made something else of it on purpose.
    if whole is None:
        return
    for name, one in made.items():
        found = _rows_of(one)
        if found is None or found >= rows or found <= 1 or one is given.get(name):
            continue
        text = f"it returned column {name!r} with {found} rows, and {whole!r} with the {rows} of the batch"
        source = _cut_of(name, one, given, rows)
        if source is not None:
            raise RowsMissingError(
                f"{text}: {name!r} is a part of {source!r}. Cut all columns, or none; to leave elements out use filter "
                "before batch. Where it is meant, return a copy of the rows under a name of its own."
            )
        if op not in _said:
            _said.add(op)
            logger.warning(
                "%s: %s. If it is something of its own, put it into a dict, {'extra': {%r: ...}}, which says so",
                op,
                text,
                name,
            )


def _rows_of(column: Any) -> int | None:
    return len(column) if isinstance(column, np.ndarray) and column.ndim else None


def _cut_of(name: str, one: np.ndarray[Any, Any], given: Mapping[str, Any], rows: int) -> str | None:
    """Return the given column of which an array holds some rows: it shows its memory, or is alike and in its place."""
    for other, whole in given.items():
        if _rows_of(whole) != rows or one.dtype != whole.dtype or one.shape[1:] != whole.shape[1:]:
            continue
        # A slice shares its column's memory. A cut by a mask is a copy, which only its name and dtype give
        # away.
        if np.may_share_memory(one, whole) or (other == name and not one.dtype.hasobject):
            return other
    return None
