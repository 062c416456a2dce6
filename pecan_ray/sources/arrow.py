"""From columns of Arrow to values of elements.

Numbers keep their width (NumPy scalars), strings and bytes become Python's, lists of numbers become arrays of
their own.  A null is NaN in a column of floats and None in every other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from pecan_ray.plan.splits import Array, Columns, Element


def columns_of(batch: Any) -> Columns:
    """Return the columns of a RecordBatch or Table."""
    names = batch.schema.names
    return {name: column_of(_contiguous(batch.column(place))) for place, name in enumerate(names)}


def rows_of(columns: Columns) -> Iterator[Element]:
    """Yield the rows of columns as elements; arrays are copies, so that functions may write into them."""
    names = list(columns)
    values = [[row.copy() for row in column] if column.ndim > 1 else list(column) for column in columns.values()]
    for row in zip(*values, strict=True):
        yield dict(zip(names, row, strict=True))


def column_of(array: Any) -> Array:
    """Return an Arrow array's values: an array of numbers, dates or arrays of one shape, or an array of objects."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return column_of(array.dictionary_decode())
    if isinstance(array, pa.FixedShapeTensorArray) and not array.null_count:
        return np.asarray(array.to_numpy_ndarray())
    if isinstance(array, pa.ExtensionArray):
        return column_of(array.storage)
    if (
        pa.types.is_floating(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_duration(kind)
    ):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if _is_whole(kind):
        return _whole_numbers(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        even = _lists_of_one_length(array)
        return objects([None if row is None else _list_value(row) for row in array]) if even is None else even
    return objects(array.to_pylist())


def objects(values: Sequence[Any]) -> Array:
    """Return an array that holds values as they are."""
    return np.fromiter(values, object, len(values))


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


def _whole_numbers(array: Any) -> Array:
    if not array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
    valid = array.is_valid().to_pylist()
    return objects([value if there else None for value, there in zip(filled, valid, strict=True)])


def _lists_of_one_length(array: Any) -> Array | None:
    """Return lists of numbers as the rows of one array; None where they differ in length, or one has a null."""
    kind = array.type.value_type
    if array.null_count or not len(array) or not (_is_whole(kind) or pa.types.is_floating(kind)):
        return None
    if len(pc.unique(pc.list_value_length(array))) > 1:
        return None
    numbers = array.flatten()
    if numbers.null_count and not pa.types.is_floating(kind):
        return None
    return np.asarray(numbers.to_numpy(zero_copy_only=False)).reshape(len(array), len(numbers) // len(array))


def _is_whole(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _list_value(row: Any) -> Any:
    """Return a list's content: an array of numbers, or a list of whatever else it holds."""
    if not row.is_valid:
        return None
    inner = row.values
    kind = inner.type
    if pa.types.is_floating(kind) or (_is_whole(kind) and not inner.null_count):
        return np.array(inner.to_numpy(zero_copy_only=False))
    return array_or_list(row.as_py())
