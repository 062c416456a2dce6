"""From elements to a batch: checking that they agree, putting them together, padding them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.items import Item
from pecan_ray.engines.serializable import MASKED
from pecan_ray.errors import (
    BatchShapeError,
    describe_error,
    join_names,
    to_str,
)
from pecan_ray.plan.exact_arrays import exact_array
from pecan_ray.plan.splits import Array

UNEQUAL_REMEDY = (
    "Resize or crop elements to one shape, use padded_batch, or put them together by a function of your own: "
    "batch(n, collate=fn)"
)


def collate(items: Sequence[Item], op: str) -> dict[str, Any]:
    """Return the columns of a batch; raises `BatchShapeError` where elements differ in columns, shape or dtype."""
    items = with_arrays(items)
    return {name: collate_column(items, name, op) for name in batch_columns(items, op)}


def is_empty_list(value: Any) -> bool:
    """Tell whether a value may be an empty list of JSON, an array of nothing: what it would hold is not said."""
    return type(value) is np.ndarray and value.shape == (0,)


def holds_lists(values: Sequence[Any]) -> bool:
    """Tell whether a column is one of lists; where it begins with an empty one, its neighbours decide."""
    of_lists = (type(one) in (list, tuple) for one in values)
    return next(of_lists) or (is_empty_list(values[0]) and any(of_lists))


def with_arrays(items: Sequence[Item]) -> list[Item]:
    """Return elements whose images and tensors are arrays: that is what a batch can hold."""
    return [item if all(map(is_columnar, item.value.values())) else _with_arrays(item) for item in items]


def _with_arrays(item: Item) -> Item:
    arrays = {name: as_array(value) for name, value in item.value.items()}
    known = {name: array for name, array in arrays.items() if array is not None}
    return replace(item, value={**item.value, **known}) if known else item


def batch_columns(items: Sequence[Item], op: str) -> list[str]:
    for item in items:
        check_columns(item, items[0].value.keys(), items[0].where(), op)
    return list(items[0].value)


def check_columns(item: Item, names: Any, other: str, op: str) -> None:
    """Raise `BatchShapeError` unless an element has the columns of its batch."""
    if item.value.keys() == names:
        return
    raise BatchShapeError(
        f"{op}: {item.where()} has the columns {join_names(item.value, names)}, but {other} has "
        f"{join_names(names, item.value)}. "
        "Every element of a batch needs the same columns.",
        op=op,
        **item.place,
        column=min(item.value.keys() ^ set(names), key=to_str),
    )


def collate_column(items: Sequence[Item], name: str, op: str) -> Array:
    values = [item.value[name] for item in items]
    first = items[0].where()
    lists = holds_lists(values)
    if lists or not is_columnar(values[0]):
        column = np.empty(len(values), object)
        for row, (item, value) in enumerate(zip(items, values, strict=True)):
            if not (lists and is_empty_list(value)):
                check_is_object(name, value, values[0], item, first, op)
            column[row] = value
        return column
    shape, dtype = np.shape(values[0]), np.asarray(values[0]).dtype
    if not shape and (numbers := _single_numbers(values, dtype)) is not None:
        return numbers
    return np.stack([checked_array(name, v, shape, dtype, i, first, op) for i, v in zip(items, values, strict=True)])


def _single_numbers(values: list[Any], dtype: np.dtype[Any]) -> Array | None:
    """Return numbers of one type at once, or None where they must be looked at one by one."""
    if len(set(map(type, values))) != 1 or not isinstance(values[0], (int, float, complex, np.generic)):
        return None
    if isinstance(values[0], int) and dtype.kind not in "biu":
        return None  # NumPy makes floats of integers that are large enough
    if dtype.kind in "mM" and any(value.dtype != dtype for value in values):
        return None  # NumPy lets moments wrap around in the unit of others
    try:
        # At once instead of one by one: tables have many such columns, and their check would take most of the
        # time.
        numbers = np.array(values)
    except OverflowError:
        return None
    # NumPy promotes what does not fit; then each value is looked at, and the one that differs is named.
    return numbers if numbers.dtype == dtype and numbers.ndim == 1 else None


def checked_array(
    name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], item: Item, other: str, op: str
) -> Array:
    """Return a value as an array; raises `BatchShapeError` unless it has the shape and dtype of its batch."""
    if isinstance(value, np.ma.MaskedArray):
        raise mismatch(
            f"{op}: column {to_str(name)} of {item.where()} cannot be put into a batch: {MASKED}.",
            name,
            item,
            op,
        )
    value = value if is_columnar(value) or (found := as_array(value)) is None else found
    try:
        array = exact_array(value)
    except Exception as error:  # objects may refuse it in any way, and lists may be uneven
        raise mismatch(
            f"{op}: column {to_str(name)} of {item.where()} is a {type(value).__name__} that no array can be made of "
            f"({describe_error(error)}), but that of {other} is {dtype}{list(shape)}. Convert it by a map before.",
            name,
            item,
            op,
        ) from error
    if array.shape == shape and array.dtype == dtype:
        return array
    kind, remedy = f"{array.dtype}{list(array.shape)}", UNEQUAL_REMEDY
    if not is_columnar(value):
        kind, remedy = f"a {type(value).__name__}", "Convert it, or fill in what is missing, by a map before"
    # An empty one has no type of its own: its shape is what differs.
    elif array.dtype != dtype and (array.shape == shape or (array.size and math.prod(shape))):
        remedy = "Convert elements to one dtype before"
    raise mismatch(
        f"{op}: column {to_str(name)} of {item.where()} "
        f"is {kind}, but that of {other} is {dtype}{list(shape)}. {remedy}.",
        name,
        item,
        op,
    )


def numbers_of_one_type(items: Sequence[Item], name: str, column: Array) -> Array | None:
    """Return a column of single numbers at once, or None where elements must be looked at one by one.

    Tables have many columns of single numbers, for which `checked_array` alone would take most of the time.
    """
    if column.ndim != 1 or column.dtype == object:
        return None
    return _single_numbers([item.value[name] for item in items], column.dtype)


def numbers_of_python(values: Array, dtype: np.dtype[Any]) -> Array | None:
    """Return Python's numbers of one type in an array of objects as one of a dtype; None where they are none of it."""
    if not values.dtype.hasobject or values.ndim != 1 or dtype.hasobject:
        return None
    return _single_numbers(values.tolist(), dtype)


def check_is_object(name: str, value: Any, first: Any, item: Item, other: str, op: str) -> None:
    """Raise `BatchShapeError` for a number or array of numbers in a column of objects (bytes, str, lists, None)."""
    if is_columnar(value):
        array = np.asarray(value)
        kind, remedy = f"a {type(first).__name__}", "Convert one of them, or fill in what is missing, by a map before"
        if is_empty_list(first):
            kind, remedy = "an empty list", "Lists of different lengths go together by padded_batch"
        raise mismatch(
            f"{op}: column {to_str(name)} of {item.where()} "
            f"is {array.dtype}{list(array.shape)}, but that of {other} is {kind}. {remedy}.",
            name,
            item,
            op,
        )


def mismatch(message: str, name: str, item: Item, op: str) -> BatchShapeError:
    return BatchShapeError(message, op=op, **item.place, column=name)
