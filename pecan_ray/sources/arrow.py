"""From columns of Arrow to values of elements.

Numbers keep their width (NumPy scalars), strings and bytes become Python's, lists of numbers become arrays of
their own.  A null is NaN in a column of floats and None in every other one.  Nanoseconds, which Python's times have
not, stay: NumPy's datetime64 and timedelta64, also inside of lists and structures; of a time of day since midnight.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from pecan_ray.plan.exact_arrays import exact_array
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
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return np.asarray(_since_midnight(array).to_numpy(zero_copy_only=False))
    if _is_whole(kind):
        return _whole_numbers(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        even = _lists_of_one_length(array)
        return objects([None if row is None else _list_value(row) for row in array]) if even is None else even
    if _is_text(kind):
        with contextlib.suppress(pa.ArrowException):  # the list below tells what is wrong with the text
            return np.asarray(array.to_numpy(zero_copy_only=False))
    return objects(exact_values(array))


def objects(values: Sequence[Any]) -> Array:
    """Return an array that holds values as they are."""
    return np.fromiter(values, object, len(values))


def array_or_list(values: list[Any]) -> Any:
    """Return a list as an array where it holds numbers or booleans in a regular shape, and one type holds them exactly.

    Else as it is: also where booleans stand beside numbers.
    """
    flat = values
    while flat and isinstance(flat[0], list):
        if not all(isinstance(value, list) for value in flat):
            return values
        flat = list(itertools.chain.from_iterable(flat))
    kinds = set(map(type, flat))
    if not (kinds <= {int, float} or kinds == {bool}):
        return values
    try:
        array = exact_array(values)
    except (ValueError, OverflowError):  # lists of unequal lengths; integers that would be rounded
        return values
    return array if array.dtype.kind in "biuf" else values


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


def _is_text(kind: Any) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _list_value(row: Any) -> Any:
    """Return a list's content: an array of numbers, or a list of whatever else it holds."""
    if not row.is_valid:
        return None
    inner = row.values
    kind = inner.type
    if pa.types.is_floating(kind) or (_is_whole(kind) and not inner.null_count):
        return np.array(inner.to_numpy(zero_copy_only=False))
    return array_or_list(exact_values(inner))


def _since_midnight(array: Any) -> Any:
    return array.cast(pa.int64()).cast(pa.duration("ns"))


def exact_values(array: Any) -> list[Any]:
    """Return an array's values as Python's, but those that count nanoseconds as NumPy's."""
    kind = array.type
    if not _counts_nanoseconds(kind):
        values: list[Any] = array.to_pylist()
        return values
    if isinstance(array, pa.ExtensionArray):
        return exact_values(array.storage)
    if pa.types.is_dictionary(kind):
        return exact_values(array.dictionary_decode())
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(exact_values, array.flatten()), strict=True)
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]
    if pa.types.is_map(kind):
        pairs = (exact_values(row.values) if there else () for row, there in zip(array, valid, strict=True))
        return [
            [tuple(one.values()) for one in row] if there else None for row, there in zip(pairs, valid, strict=True)
        ]
    if kind.num_fields:
        return [exact_values(row.values) if there else None for row, there in zip(array, valid, strict=True)]
    numbers = _since_midnight(array) if pa.types.is_time64(kind) else array
    return [one if there else None for one, there in zip(numbers.to_numpy(zero_copy_only=False), valid, strict=True)]


def _counts_nanoseconds(kind: Any) -> bool:
    """Tell whether values of a type are moments or times with nanoseconds, or hold some."""
    if isinstance(kind, pa.BaseExtensionType):
        return _counts_nanoseconds(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _counts_nanoseconds(kind.value_type)
    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return False
    if kind.num_fields:
        return any(_counts_nanoseconds(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns")
