"""Columns of lists, dicts and other values, put together by type when a batch is finished, as loaders of frameworks do.

Before that, functions on batches get them in an array of objects; a list that such a function returns stays a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pecan_ray.engines.collate import is_empty_list
from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.foreign import as_array, is_text_tensor
from pecan_ray.engines.items import Item
from pecan_ray.errors import BatchShapeError, join_names, to_str
from pecan_ray.plan.exact_arrays import exact_array
from pecan_ray.plan.splits import Array

TEXTS = frozenset({str, bytes, bytearray, np.str_, np.bytes_, type(None)})
"""Types of values that stay as they are, in an array of objects: texts, bytes, and what is missing among them."""
STAY = TEXTS - {type(None)}
"""Those that stay so whatever else is in the column."""
NUMBERS = (bool, int, float, complex, np.bool_, np.number)
LIST_REMEDY = (
    "Pad it by padded_batch, cut it by a map before, or put elements together by a function of your own, "
    "batch(n, collate=fn), in whose result lists stay lists"
)


@dataclass(frozen=True)
class BatchRows:
    """Which element each row of a batch is, for messages."""

    op: str
    first: Item
    items: Sequence[Item | None] | None
    """None, or no item of a row: it is not known, or another number of rows."""

    def where(self, row: int) -> str:
        """Say in words which element a row is."""
        item = self._item(row)
        return item.where() if item is not None else f"row {row} of the batch that begins with {self.first.where()}"

    def shape_error(self, row: int, column: str, path: str, message: str) -> BatchShapeError:
        """Return the error that names operator, element and column; `path`: of the value in that column."""
        item = self._item(row) or self.first
        return BatchShapeError(
            f"{self.op}: column {to_str(column)}{path} of {self.where(row)} {message}.",
            op=self.op,
            **item.place,
            column=column,
        )

    def _item(self, row: int) -> Item | None:
        return self.items[row] if self.items is not None and row < len(self.items) else None


def finished(columns: dict[str, Any], rows: BatchRows) -> dict[str, Any]:
    """Return the columns of a batch, of which none is an array of lists, dicts or other objects any more.

    Dicts become dicts of columns; lists of numbers or texts, of equal lengths, arrays with one more dimension in front;
    other lists and tuples a tuple of columns.  Raises `BatchShapeError` for what cannot be put together so.
    """
    nested = [name for name, column in columns.items() if _holds_others(column)]
    if not nested:
        return columns
    return {
        name: _NestedColumn(name, rows).together(list(column), "") if name in nested else column
        for name, column in columns.items()
    }


def arrays_within(value: Any) -> Any:
    """Return a value in which tensors and images are arrays, also in dicts, lists and tuples."""
    if type(value) is dict:
        return {name: arrays_within(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(arrays_within, value))
    array = as_array(value)
    return value if array is None else array


def _holds_others(column: Any) -> bool:
    if type(column) is not np.ndarray or column.dtype != object or column.ndim != 1:
        return False
    # Texts stay in arrays of objects: NumPy's fixed widths waste memory and cut zeros
    # (docs/decisions/batches-and-groups.md#70-nested-values).
    return not TEXTS.issuperset(map(type, column))


@dataclass(frozen=True)
class _NestedColumn:
    """One column of a batch that is put together."""

    name: str
    rows: BatchRows

    def together(self, values: list[Any], path: str) -> Any:
        """Return what stands for values at one path in this column."""
        if TEXTS.issuperset(map(type, values)):
            return np.fromiter(values, object, len(values))
        values = _with_empty_lists([_plain(value) for value in values])
        first = next(row for row, value in enumerate(values) if value is not None)
        kind = _kind(values[first])
        for row, value in enumerate(values):
            # Refused and not kept as objects: a training loop would meet the odd one out hours later, without
            # its file.
            if kind == "" or _kind(value) != kind:
                self._reject_type(row, values, first, path)
        if kind == "dict":
            return self._dicts(values, path)
        if kind == "list":
            return self._lists(values, path)
        if kind == "text":
            return np.fromiter(values, object, len(values))
        return self._arrays([np.asarray(value) for value in values], path)

    def _dicts(self, values: Sequence[Mapping[Any, Any]], path: str) -> dict[Any, Any]:
        for row, value in enumerate(values):
            if value.keys() != values[0].keys():
                message = (
                    f"has the keys {join_names(value, values[0])}, but that of {self.rows.where(0)} has "
                    f"{join_names(values[0], value)}. Give all the same, or take out what is needed, by a map before"
                )
                raise self.rows.shape_error(row, self.name, path, message)
        return {key: self.together([value[key] for value in values], f"{path}[{to_str(key)}]") for key in values[0]}

    def _lists(self, values: Sequence[Sequence[Any]], path: str) -> Any:
        # Lists of numbers become one array, TensorFlow's way; other lists a tuple of columns, PyTorch's way.
        arrays = [_array_of_list(value) for value in values]
        if all(array is not None for array in arrays):
            return self._arrays([array for array in arrays if array is not None], path)
        for row, value in enumerate(values):
            if len(value) != len(values[0]):
                message = (
                    f"has {len(value)} values, but that of {self.rows.where(0)} has {len(values[0])}. {LIST_REMEDY}"
                )
                raise self.rows.shape_error(row, self.name, path, message)
        places = range(len(values[0]))
        return tuple(self.together([value[place] for value in values], f"{path}[{place}]") for place in places)

    def _arrays(self, arrays: Sequence[Array], path: str) -> Array:
        shape, dtype = arrays[0].shape, arrays[0].dtype
        for row, array in enumerate(arrays):
            # The width of NumPy's texts is part of their dtype, and `np.stack` takes the widest.
            if array.shape != shape or (array.dtype != dtype and array.dtype.kind not in "SU"):
                lengths = array.dtype == dtype or not array.size or not arrays[0].size  # [] has no type of its own
                remedy = LIST_REMEDY if lengths else "Convert elements to one dtype before"
                message = (
                    f"is {_describe_array(array)}, but that of {self.rows.where(0)} is {_describe_array(arrays[0])}. "
                    f"{remedy}"
                )
                raise self.rows.shape_error(row, self.name, path, message)
        return np.stack(arrays)

    def _reject_type(self, row: int, values: Sequence[Any], first: int, path: str) -> None:
        value, other = values[row], f"but that of {self.rows.where(first)} is {_describe_type(values[first])}"
        if value is None:
            message = f"is None, {other}. Fill in what is missing, or leave such elements out by a filter, before"
        elif _kind(value):
            message = f"is {_describe_type(value)}, {other}. Convert one of them by a map before"
        else:
            message = (
                f"is {_describe_type(value)}, of which no array can be made. Convert it, or drop it, by a map "
                "before; a function on batches behind may return a list of such values"
            )
        raise self.rows.shape_error(row, self.name, path, message)


def _with_empty_lists(values: list[Any]) -> list[Any]:
    """Return values in which empty lists are lists, if others are: of JSON they come as empty arrays."""
    if not any(isinstance(value, (list, tuple)) for value in values):
        return values
    return [[] if is_empty_list(value) else value for value in values]


def _plain(value: Any) -> Any:
    """Return tensors and images as arrays, and arrays of objects as lists."""
    if is_columnar(value):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object and not isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if is_text_tensor(value):
        texts = value.numpy()
        return texts.tolist() if isinstance(texts, np.ndarray) else texts
    array = as_array(value)
    return value if array is None else array


def _kind(value: Any) -> str:
    """Return what kind of thing a value is put together with; empty for one that cannot be."""
    if isinstance(value, Mapping):
        return "dict"
    if isinstance(value, (list, tuple)):
        return "list"
    if isinstance(value, (str, bytes, bytearray)):
        return "text"
    is_array = isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.ma.MaskedArray)
    return "array" if is_columnar(value) or is_array else ""


def _array_of_list(value: Sequence[Any]) -> Array | None:
    """Return a list of numbers, or one of texts, as an array; None where it holds something else, or is no table."""
    leaves = list(_leaves(value))
    numbers = all(isinstance(one, NUMBERS) for one in leaves)
    if not numbers and not all(type(one) in TEXTS and one is not None for one in leaves):
        return None
    try:
        array = exact_array(value) if numbers else np.array(value, object)
    except (ValueError, OverflowError):  # lists of unequal lengths; numbers beyond those of NumPy
        return None
    return array if not numbers or is_columnar(array) else None


def _leaves(value: Any) -> Any:
    for one in value:
        if isinstance(one, (list, tuple)):
            yield from _leaves(one)
        else:
            yield one


def _describe_array(array: Array) -> str:
    return f"{'text' if array.dtype == object else array.dtype}{list(array.shape)}"


def _describe_type(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.ma.MaskedArray):
        return _describe_array(np.asarray(value))
    name = type(value).__name__
    if isinstance(value, int):
        return f"an {name} of more than 64 bits" if not is_columnar(value) else f"an {name}"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
