"""From columns of Arrow to values of elements, by their types and never by what the values happen to be.

What is nested has the values that a flat column of its type has.  Numbers keep their width (NumPy scalars), moments and
durations are NumPy's datetime64 (of a zone: in UTC) and timedelta64, and so is a time of day in nanoseconds.
Lists of those are arrays where they are regular and nothing is null, else lists; an empty one has its type's dtype.
A null is NaN among floats, NaT among moments and durations, and None among all else.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from pecan_ray.plan.splits import Array, Columns, Element

DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
"""Number of a unit that make a day."""


def columns_of(batch: Any) -> Columns:
    """Return the columns of a RecordBatch or Table; raises ValueError, with the column, for what no value can be."""
    columns = {}
    for place, name in enumerate(batch.schema.names):
        try:
            columns[name] = column_of(_contiguous(batch.column(place)))
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError) as error:
            raise ValueError(f"column {name!r} ({batch.schema.types[place]}): {error}") from error
    return columns


def readable_columns(batch: Any) -> Iterator[tuple[Columns, int]]:
    """Yield the columns of a batch, and how many rows these are.

    Where a row cannot be held, those before it are yielded, and what `columns_of` raises is raised.
    """
    try:
        columns = columns_of(batch)
    except ValueError:
        good = _readable_prefix(batch)
        if good:
            yield columns_of(batch.slice(0, good)), good
        raise
    yield columns, batch.num_rows


def _readable_prefix(batch: Any) -> int:
    """Return how many rows can be held before the first one that cannot."""
    good, bad = 0, batch.num_rows
    while good + 1 < bad:
        # By halves: all slices together have no more rows than the batch.
        middle = (good + bad) // 2
        try:
            columns_of(batch.slice(good, middle - good))
            good = middle
        except ValueError:
            bad = middle
    return good


def rows_of(columns: Columns) -> Iterator[Element]:
    """Yield the rows of columns as elements; arrays are copies, so that functions may write into them."""
    names = list(columns)
    if len(names) == 1:  # twice as fast as the loop below
        (name,) = names
        for value in values_of(columns[name]):
            yield {name: value}
        return
    for row in zip(*map(values_of, columns.values()), strict=True):
        yield dict(zip(names, row, strict=True))


def values_of(column: Array) -> list[Any]:
    """Return the values of a column; arrays among them are copies."""
    return [row.copy() for row in column] if column.ndim > 1 else list(column)


def column_of(array: Any) -> Array:
    """Return an Arrow array's values: an array of numbers, dates or arrays of one shape, or an array of objects."""
    kind = array.type
    # By the type alone, on each level: docs/decisions/values.md#128-types-of-nested-values.
    if pa.types.is_dictionary(kind):
        return column_of(array.dictionary_decode())
    # Before other extensions, of which it is one.
    if isinstance(array, pa.FixedShapeTensorArray):
        return _tensors(array)
    if isinstance(array, pa.ExtensionArray):
        # Stored as int8, of which any number but 0 is true.
        is_bool = kind.extension_name == "arrow.bool8"
        return column_of(pc.not_equal(array.storage, 0) if is_bool else array.storage)
    if pa.types.is_run_end_encoded(kind):
        return column_of(pc.run_end_decode(array))
    if pa.types.is_struct(kind):
        return _struct_values(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_union(kind):
        return _unions(array)
    return _lists(array) if kind.num_fields else _flat(array)


def objects(values: Sequence[Any]) -> Array:
    """Return an array that holds values as they are."""
    # `np.array` would make one array of lists, or of arrays, of equal lengths.
    return np.fromiter(values, object, len(values))


def leaves_of(array: Any) -> Iterator[Any]:
    """Yield the arrays without parts of their own that lie inside of lists, structures and maps."""
    if pa.types.is_struct(array.type) or pa.types.is_map(array.type):
        for part in array.flatten() if pa.types.is_struct(array.type) else (array.keys, array.items):
            yield from leaves_of(part)
    elif array.type.num_fields and not pa.types.is_dictionary(array.type):
        yield from leaves_of(array.flatten())
    else:
        yield array


def _contiguous(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _flat(array: Any) -> Array:
    """Return the values of an array without parts."""
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return _whole_numbers(array)
    if pa.types.is_floating(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_time(kind):
        return _times_of_day(array)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        return _moments(array)
    if _is_text(kind):
        with contextlib.suppress(pa.ArrowException):  # the list below tells what is wrong with the text
            return np.asarray(array.to_numpy(zero_copy_only=False))
    return objects(array.to_pylist())


def _is_text(kind: Any) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _whole_numbers(array: Any) -> Array:
    if not array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    # Arrow would make floats of integers beside a null, which round large ones.
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
    return _with_none(list(filled), array)


def _with_none(values: Sequence[Any], array: Any) -> Array:
    """Return values as objects, None in the place of those that an array has as null."""
    if not array.null_count:
        return objects(values)
    valid = array.is_valid().to_pylist()
    return objects([value if there else None for value, there in zip(values, valid, strict=True)])


def _moments(array: Any) -> Array:
    """Return moments or durations; raises ValueError for the one number that NumPy takes for "not a time"."""
    moments = np.asarray(array.to_numpy(zero_copy_only=False))
    if np.count_nonzero(np.isnat(moments)) != array.null_count:
        raise ValueError(f"it holds {-(1 << 63)}, which {moments.dtype} has for a null")
    return moments


def _times_of_day(array: Any) -> Array:
    """Return times of day as Python's, or since midnight where these cannot hold them; ValueError for one beyond a day.

    Python would take it for one of the next day.
    """
    kind = array.type
    if kind.unit == "ns":
        return _moments(array.cast(pa.int64()).cast(pa.duration("ns")))
    counts = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
    held = pc.min_max(counts).as_py()
    if held["min"] is not None and not (held["min"] >= 0 and held["max"] < DAY[kind.unit]):
        raise ValueError(f"{held} is no time of a day in {kind.unit}")
    return objects(array.to_pylist())


def _struct_values(array: Any) -> Array:
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise ValueError("a structure has two parts of one name")
    parts = [values_of(column_of(part)) for part in array.flatten()]
    # A structure without parts has rows all the same.
    rows = zip(*parts, strict=True) if parts else [()] * len(array)
    return _with_none([dict(zip(names, row, strict=True)) for row in rows], array)


def _maps(array: Any) -> Array:
    first, *ends = array.offsets.to_pylist()
    # `keys` and `items` are those of the whole array, also where this is a slice of it.
    parts = [part.slice(first, (ends or [first])[-1] - first) for part in (array.keys, array.items)]
    pairs = list(zip(*(values_of(column_of(part)) for part in parts), strict=True))
    places = itertools.pairwise([0, *(end - first for end in ends)])
    return _with_none([pairs[start:end] for start, end in places], array)


def _unions(array: Any) -> Array:
    array = pa.concat_arrays([array])
    parts = [values_of(column_of(array.field(place))) for place in range(array.type.num_fields)]
    part_of = dict(zip(array.type.type_codes, parts, strict=True))
    codes = array.type_codes.to_pylist()
    places = array.offsets.to_pylist() if array.type.mode == "dense" else range(len(codes))
    return objects([part_of[code][place] for code, place in zip(codes, places, strict=True)])


def _tensors(array: Any) -> Array:
    if array.storage.flatten().null_count:
        raise ValueError("a tensor holds a null")
    if not array.null_count:
        return np.asarray(array.to_numpy_ndarray())
    found = iter(values_of(array.drop_null().to_numpy_ndarray()))
    return objects([next(found) if there else None for there in array.is_valid().to_pylist()])


def _lists(array: Any) -> Array:
    """Return lists of one length as the rows of one array, others as arrays or lists of their own."""
    # Without what lies behind nulls, to which `_lengths` gives 0.
    entries = array.flatten()
    inner, lengths = column_of(entries), _lengths(array)
    if inner.dtype != object and not array.null_count and (not len(lengths) or (lengths == lengths[0]).all()):
        fixed = pa.types.is_fixed_size_list(array.type)
        length = array.type.list_size if fixed else int(lengths[0]) if len(lengths) else 0
        return inner.reshape(len(array), length, *inner.shape[1:])
    # Not cut out of the values: how long empty rows are in other dimensions would depend on the rows beside them.
    empty = column_of(entries.slice(0, 0))
    rows = (_row(inner[start:end] if start < end else empty) for start, end in _list_spans(lengths))
    return _with_none(list(rows), array)


def _row(values: Array) -> Any:
    """Return one list: an array where all of it are numbers, or arrays of one shape."""
    if values.dtype != object:
        return values.copy()
    row = values.tolist()
    if row and isinstance(row[0], np.generic) and all(isinstance(one, np.generic) for one in row):
        return np.array(row)
    if row and isinstance(row[0], np.ndarray) and all(isinstance(one, np.ndarray) for one in row):
        return np.stack(row) if len({one.shape for one in row}) == 1 else row
    return row


def _lengths(array: Any) -> Array:
    """Return how many entries each list has, 0 for a null."""
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        lengths = np.full(len(array), kind.list_size)
    elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        lengths = array.sizes.to_numpy(zero_copy_only=False)
    else:
        lengths = np.diff(array.offsets.to_numpy(zero_copy_only=False))
    if not array.null_count:
        return lengths
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def _list_spans(lengths: Array) -> Iterator[tuple[int, int]]:
    """Yield where each list begins and ends, of lists that follow one another."""
    return itertools.pairwise([0, *np.cumsum(lengths, dtype=np.int64).tolist()])
