"""Numbers of tables of Hugging Face that the NumPy format of `datasets` would change, as they are stored.

That format makes float32 of all floats, int64 of all whole numbers, and floats of whole numbers beside a null.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pyarrow as pa

from pecan_ray.sources.arrow import column_of, values_of


def exact_columns(table: Any) -> dict[str, list[Any]]:
    """Return the values of those columns of an Arrow table whose numbers the NumPy format would change.

    Numbers have the type that the format gives them (int64, float32) where it holds them exactly, and else their own.
    A null is NaN among floats, and None among whole numbers.
    """
    found = {}
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        # Only these: others come as the format gives them
        # (docs/decisions/values.md#110-exact-numbers-of-hugging-face).
        if _changes(column):
            found[name] = _exact(column)
    return found


def _changes(array: Any) -> bool:
    """Return whether the NumPy format changes numbers of an array, however deep they lie."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _changes(array.storage)
    if _is_list(kind):
        return _changes(array.flatten())
    if pa.types.is_struct(kind):
        return any(map(_changes, array.flatten()))
    if kind in (pa.float64(), pa.uint64()):
        return True
    # Whole numbers beside a null would become floats, which round those from 2^53 on.
    return bool(pa.types.is_integer(kind) and array.null_count)


def _exact(array: Any) -> list[Any]:
    if isinstance(array, pa.ExtensionArray):  # Array2D to Array5D
        return list(np.asarray(array.to_numpy(zero_copy_only=False)))
    if _is_list(array.type) and _is_number(kind := array.type.value_type) and not array.flatten().null_count:
        return [None if row is None else np.array(row, _width(kind)) for row in column_of(array)]
    return [_value(value, array.type) for value in values_of(column_of(array))]


def _value(value: Any, kind: Any) -> Any:
    """Return a value of Python as NumPy's format gives it, but with numbers that hold it exactly."""
    if pa.types.is_floating(kind):
        return _width(kind)(np.nan if value is None else value)
    if value is None:
        return None
    if pa.types.is_integer(kind):
        return _width(kind)(value)
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    if _is_list(kind):
        return _list(value, kind)
    return value


def _list(values: list[Any], kind: Any) -> Any:
    """Return a list as an array if it holds numbers in a regular shape, and no null among whole ones."""
    leaf = kind
    while _is_list(leaf):
        leaf = leaf.value_type
    if _is_number(leaf):
        with contextlib.suppress(TypeError, ValueError):  # a null, or lists of unequal lengths
            return np.array(values, _width(leaf))
    return [_value(value, kind.value_type) for value in values]


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _width(kind: Any) -> Any:
    """Return the NumPy type of numbers of a type of Arrow."""
    if pa.types.is_floating(kind):
        return np.float64 if kind == pa.float64() else np.float32
    return np.uint64 if kind == pa.uint64() else np.int64
