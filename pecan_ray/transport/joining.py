"""Batches of the rows of several blocks: one copy, and none where all rows lie in one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from pecan_ray.errors import BatchShapeError, listed, to_str

BlockRows: TypeAlias = tuple[Mapping[str, Any], int, int]
"""Columns of a block, and which of its rows belong to a batch: the first, and the one behind the last."""


def joined(parts: Sequence[BlockRows]) -> dict[str, Any]:
    """Return the columns of a batch of consecutive rows; raises `BatchShapeError` where blocks do not go together."""
    first = parts[0][0]
    for columns, _, _ in parts[1:]:
        if columns.keys() != first.keys():
            raise BatchShapeError(
                f"batch: some elements have the columns {listed(columns, first)}, but others of the same batch have "
                f"{listed(first, columns)}. Every element of a batch needs the same columns.",
                column=min(columns.keys() ^ first.keys(), key=to_str),
            )
    return {name: _joined([(columns[name], start, stop) for columns, start, stop in parts], name) for name in first}


def _joined(parts: Sequence[tuple[Any, int, int]], name: str) -> Any:
    first = parts[0][0]
    if type(first) is dict and all(type(one) is dict and one.keys() == first.keys() for one, _, _ in parts):
        return {key: _joined([(one[key], start, stop) for one, start, stop in parts], name) for key in first}
    if type(first) is tuple and all(type(one) is tuple and len(one) == len(first) for one, _, _ in parts):
        return tuple(_joined([(one[at], *rows) for one, *rows in parts], name) for at in range(len(first)))
    if len(parts) == 1:
        return first[parts[0][1] : parts[0][2]] if hasattr(first, "__getitem__") else first
    kinds = [_kind(one) for one, _, _ in parts]
    for kind in kinds[1:]:
        if kind != kinds[0]:
            raise BatchShapeError(
                f"batch: column {to_str(name)} of some elements is {kind}, but that of others of the same batch is "
                f"{kinds[0]}. Convert elements to one dtype and shape by a map before, or use padded_batch",
                column=name,
            )
    return np.concatenate([one[start:stop] for one, start, stop in parts])


def _kind(column: Any) -> str:
    """Say in words of which kind the elements of a column are: those of equal words go together."""
    if not isinstance(column, np.ndarray):
        return f"a {type(column).__name__}"
    dtype = "text" if column.dtype == object or column.dtype.kind in "SU" else str(column.dtype)
    return f"{dtype}{list(column.shape[1:])}"
