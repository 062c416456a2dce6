"""From columns of Arrow to values of elements.

Numbers keep their width (NumPy scalars), strings and bytes become Python's, lists of numbers become arrays of
their own.  A null is NaN in a column of floats and None in every other one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pecan_ray.plan.splits import Element


def rows_of(batch: Any) -> Iterator[Element]:
    """Yield the rows of a RecordBatch or Table as elements."""
    names = batch.schema.names
    columns = [values_of(_contiguous(batch.column(place))) for place in range(len(names))]
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def values_of(array: Any) -> list[Any]:
    """Return one value for each place of an Arrow array."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if isinstance(array, pa.FixedShapeTensorArray) and not array.null_count:
        return [row.copy() for row in array.to_numpy_ndarray()]
    if isinstance(array, pa.ExtensionArray):
        return values_of(array.storage)
    if (
        pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_duration(kind)
    ):
        return list(array.to_numpy(zero_copy_only=False))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _whole_numbers(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [None if row is None else _list_value(row) for row in array]
    plain: list[Any] = array.to_pylist()
    return plain


def array_or_list(values: list[Any]) -> Any:
    """Return a list as an array where it holds numbers or booleans in a regular shape, else as it is."""
    flat = values
    while flat and isinstance(flat[0], list):
        flat = flat[0]
    if not all(isinstance(value, (bool, int, float)) for value in flat):
        return values
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return values
    return array if array.dtype.kind in "bif" else values


def _contiguous(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _whole_numbers(array: Any) -> list[Any]:
    if not array.null_count:
        return list(array.to_numpy(zero_copy_only=False))
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
    return [value if valid else None for value, valid in zip(filled, array.is_valid().to_pylist(), strict=True)]


def _list_value(row: Any) -> Any:
    """Return a list's content: an array of numbers, or a list of whatever else it holds."""
    if not row.is_valid:
        return None
    inner = row.values
    kind = inner.type
    if pa.types.is_floating(kind) or (
        (pa.types.is_integer(kind) or pa.types.is_boolean(kind)) and not inner.null_count
    ):
        return np.array(inner.to_numpy(zero_copy_only=False))
    return array_or_list(row.as_py())
