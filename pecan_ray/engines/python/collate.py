"""From elements to a batch: checking that they agree, putting them together, padding them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.foreign import as_array
from pecan_ray.engines.fork_tracker import forks
from pecan_ray.engines.items import Item
from pecan_ray.engines.python.chain import end_child, op_error
from pecan_ray.engines.serializable import MASKED
from pecan_ray.errors import (
    BatchShapeError,
    ColumnError,
    OpError,
    OutputTypeError,
    PlanError,
    is_interrupt,
    listed,
    to_str,
    told,
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
    return {name: _collate_column(items, name, op) for name in _columns(items, op)}


def is_empty_list(value: Any) -> bool:
    """Tell whether a value may be an empty list of JSON, an array of nothing: what it would hold is not said."""
    return type(value) is np.ndarray and value.shape == (0,)


def with_arrays(items: Sequence[Item]) -> list[Item]:
    """Return elements whose images and tensors are arrays: that is what a batch can hold."""
    return [item if all(map(is_columnar, item.value.values())) else _with_arrays(item) for item in items]


def _with_arrays(item: Item) -> Item:
    arrays = {name: as_array(value) for name, value in item.value.items()}
    known = {name: array for name, array in arrays.items() if array is not None}
    return replace(item, value={**item.value, **known}) if known else item


def _columns(items: Sequence[Item], op: str) -> list[str]:
    for item in items:
        check_columns(item, items[0].value.keys(), items[0].where(), op)
    return list(items[0].value)


def check_columns(item: Item, names: Any, other: str, op: str) -> None:
    """Raise `BatchShapeError` unless an element has the columns of its batch."""
    if item.value.keys() == names:
        return
    raise BatchShapeError(
        f"{op}: {item.where()} has the columns {listed(item.value, names)}, but {other} has "
        f"{listed(names, item.value)}. "
        "Every element of a batch needs the same columns.",
        op=op,
        file=item.lease.split.file_of(item.element),
        element=item.element,
        column=min(item.value.keys() ^ set(names), key=to_str),
    )


def _collate_column(items: Sequence[Item], name: str, op: str) -> Array:
    values = [item.value[name] for item in items]
    first = items[0].where()
    begins_empty = is_empty_list(values[0])
    lists = type(values[0]) in (list, tuple) or (begins_empty and any(type(one) in (list, tuple) for one in values))
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
        numbers = np.array(values)
    except OverflowError:
        return None
    return numbers if numbers.dtype == dtype and numbers.ndim == 1 else None


def checked_array(
    name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], item: Item, other: str, op: str
) -> Array:
    """Return a value as an array; raises `BatchShapeError` unless it has the shape and dtype of its batch."""
    if isinstance(value, np.ma.MaskedArray):
        raise _mismatch(
            f"{op}: column {to_str(name)} of {item.where()} cannot be put into a batch: {MASKED}.",
            name,
            item,
            op,
        )
    value = value if is_columnar(value) or (found := as_array(value)) is None else found
    try:
        array = exact_array(value)
    except Exception as error:  # objects may refuse it in any way, and lists may be uneven
        raise _mismatch(
            f"{op}: column {to_str(name)} of {item.where()} is a {type(value).__name__} that no array can be made of "
            f"({told(error)}), but that of {other} is {dtype}{list(shape)}. Convert it by a map before.",
            name,
            item,
            op,
        ) from error
    if array.shape == shape and array.dtype == dtype:
        return array
    if not is_columnar(value):
        kind, remedy = f"a {type(value).__name__}", "Convert it, or fill in what is missing, by a map before"
    elif array.dtype != dtype and array.shape != shape and not (array.size and math.prod(shape)):
        kind, remedy = f"{array.dtype}{list(array.shape)}", UNEQUAL_REMEDY  # an empty one has no type of its own
    elif array.dtype != dtype:
        kind, remedy = f"{array.dtype}{list(array.shape)}", "Convert elements to one dtype before"
    else:
        kind, remedy = f"{dtype}{list(array.shape)}", UNEQUAL_REMEDY
    raise _mismatch(
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
        raise _mismatch(
            f"{op}: column {to_str(name)} of {item.where()} "
            f"is {array.dtype}{list(array.shape)}, but that of {other} is {kind}. {remedy}.",
            name,
            item,
            op,
        )


def _mismatch(message: str, name: str, item: Item, op: str) -> BatchShapeError:
    return BatchShapeError(
        message, op=op, file=item.lease.split.file_of(item.element), element=item.element, column=name
    )


def collate_padded(
    items: Sequence[Item], op: str, padding: Any, shapes: Mapping[str, tuple[int | None, ...]] | None
) -> dict[str, Any]:
    """Return the columns of a batch whose elements are padded at the end of each dimension to a common shape."""
    items = with_arrays(items)
    names = _columns(items, op)
    items = _with_lists_as_arrays(items, op)
    _check_known(shapes or {}, "shapes", names, op)
    _check_known(padding if isinstance(padding, Mapping) else {}, "padding", names, op)
    columns: dict[str, Any] = {}
    for name in names:
        if not is_columnar(items[0].value[name]):
            for item in items:
                _check_needs_no_padding(name, item, op)
            columns[name] = _collate_column(items, name, op)
            continue
        columns[name] = _pad(items, name, (shapes or {}).get(name), _padding(padding, name), op)
    return columns


def _check_needs_no_padding(name: str, item: Item, op: str) -> None:
    """Raise `BatchShapeError` for a value that cannot be padded, but for a text or bytes, which are not."""
    value = item.value[name]
    if is_columnar(value) or isinstance(value, (str, bytes)):
        return
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    if value is None:
        kind, remedy = "None", "Fill in what is missing, or leave such elements out by a filter, before"
    elif isinstance(value, (list, tuple, np.ndarray)):
        kind, remedy = (
            f"{kind} that holds no numbers",
            "Make numbers of it (a tokenizer's), or join texts, by a map before",
        )
    else:
        remedy = "Padded are numbers, arrays and lists of numbers: give it columns of those by a map before, or drop it"
    raise _mismatch(
        f"{op}: column {to_str(name)} of {item.where()} is {kind}, which cannot be padded. {remedy}.", name, item, op
    )


def _with_lists_as_arrays(items: list[Item], op: str) -> list[Item]:
    """Return elements whose lists of numbers are arrays, as padding needs them; empty ones take the dtype of others."""
    names = [
        name
        for name, value in items[0].value.items()
        if type(value) in (list, tuple)
        or (is_empty_list(value) and any(type(item.value[name]) in (list, tuple) for item in items))
    ]
    for name in names:
        arrays = [_array_of(name, item, items[0], op) for item in items]
        full = [array for array in arrays if array.size]
        if not all(is_columnar(array) for array in full):
            continue  # texts, or objects of some kind
        dtype = full[0].dtype if full else np.dtype(float)
        typed = (array if array.size else array.astype(dtype) for array in arrays)
        items = [replace(item, value={**item.value, name: one}) for item, one in zip(items, typed, strict=True)]
    return items


def _array_of(name: str, item: Item, first: Item, op: str) -> Array:
    """Return a list as an array; raises `BatchShapeError` for what is none, and for lists that are no table."""
    value = item.value.get(name)
    error: Exception | None
    try:
        if is_empty_list(value):
            return np.asarray(value)
        if type(value) not in (list, tuple):
            said, error = f"is a {type(value).__name__}, but that of {first.where()} is a list", None
        elif any(one is None for one in value):
            said, error = "is a list that holds None", None
        else:
            return exact_array(value)
    except OverflowError as rounded:
        said, error = f"is a list: {rounded}", rounded
    except ValueError as uneven:
        said, error = "is a list of unequal lists, which cannot be padded", uneven
    remedy = "Make an array of it, or fill in what is missing, by a map before."
    raise _mismatch(f"{op}: column {to_str(name)} of {item.where()} {said}. {remedy}", name, item, op) from error


def _check_known(asked: Mapping[str, Any], argument: str, names: list[str], op: str) -> None:
    for name in asked:
        if name not in names:
            raise ColumnError(
                f"{op}: {argument} names the column {to_str(name)}, but the elements have {listed(names)}.",
                op=op,
                column=name,
            )


def _padding(padding: Any, name: str) -> Any:
    return padding.get(name, 0) if isinstance(padding, Mapping) else padding


def _pad(items: Sequence[Item], name: str, fixed: tuple[int | None, ...] | None, padding: Any, op: str) -> Array:
    items = _with_alike(items, name, fixed)
    first = np.asarray(items[0].value[name])
    arrays = [_same_rank(name, item, first, items[0].where(), op) for item in items]
    if fixed is not None and len(fixed) != first.ndim:
        raise PlanError(
            f"{op}: shapes gives {len(fixed)} dimensions for column {to_str(name)},"
            f" but {items[0].where()} has {first.ndim}."
        )
    longest = [max(array.shape[axis] for array in arrays) for axis in range(first.ndim)]
    wanted = tuple(w if w is not None else longest[axis] for axis, w in enumerate(fixed or (None,) * first.ndim))
    # One array of padding, written over: to pad each element and stack them would copy all of it twice.
    out = np.full((len(arrays), *wanted), fill_value(padding, first.dtype, name, op), first.dtype)
    for row, (item, array) in enumerate(zip(items, arrays, strict=True)):
        if any(have > want for have, want in zip(array.shape, wanted, strict=True)):
            raise _mismatch(
                f"{op}: column {to_str(name)} of {item.where()} "
                f"has shape {list(array.shape)}, longer than the padded shape "
                f"{list(wanted)}. Enlarge shapes={{...}} or cut the element.",
                name,
                item,
                op,
            )
        place: Any = (row, *(slice(0, have) for have in array.shape))
        out[place] = array
    return out


def _with_alike(items: Sequence[Item], name: str, fixed: tuple[int | None, ...] | None) -> Sequence[Item]:
    """Return elements whose empty lists are of the others' dtype and dimensions, and whose single numbers are lists.

    What holds nothing has no type of its own in JSON, and a feature of an Example with one value is a single number.
    """
    values = [item.value[name] for item in items]
    arrays = [np.asarray(value) for value in values if is_columnar(value)]
    full = [array for array in arrays if array.size or array.ndim != 1]
    rank = max((array.ndim for array in full or arrays), default=0)
    if (len(full) < len(arrays) and rank == 0) or (fixed is not None and len(fixed) == 1):
        rank = max(rank, 1)
    if not any(array.ndim != rank or array.dtype != arrays[0].dtype for array in arrays):
        return items
    dtype = (full or arrays)[0].dtype
    return [replace(item, value={**item.value, name: _alike(item.value[name], rank, dtype)}) for item in items]


def _alike(value: Any, rank: int, dtype: np.dtype[Any]) -> Any:
    if not is_columnar(value):
        return value
    array = np.asarray(value)
    if array.ndim == 1 and not array.size:
        return np.empty((0,) * rank, dtype)
    return array.reshape(1) if array.ndim == 0 and rank == 1 else value


def _same_rank(name: str, item: Item, first: Array, other: str, op: str) -> Array:
    value = item.value[name]
    if not is_columnar(value) or (array := np.asarray(value)).dtype != first.dtype:
        return checked_array(name, value, first.shape, first.dtype, item, other, op)
    if array.ndim != first.ndim:
        raise _mismatch(
            f"{op}: column {to_str(name)} of {item.where()} has {array.ndim} dimensions, but that of {other} has "
            f"{first.ndim}. Padding cannot add dimensions.",
            name,
            item,
            op,
        )
    return array


def fill_value(padding: Any, dtype: np.dtype[Any], name: str, op: str) -> Any:
    """Return the padding as a value of the column's dtype; raises PlanError where it would become another value."""
    try:
        with np.errstate(invalid="ignore"):
            value = np.asarray(padding).astype(dtype)
        kept = dtype.kind not in "biu" or bool(value == padding)
    except (TypeError, ValueError, OverflowError):
        kept = False
    if not kept:
        raise PlanError(f"{op}: padding {padding!r} is no value of column {to_str(name)}, whose dtype is {dtype}.")
    return value


def length_of(item: Item, length: Any, op: str) -> int:
    """Return an element's length for bucketing: a function of it, or the first dimension of a column.

    Raises OpError if the function does, or the column has no dimension.
    """
    if callable(length):
        generation = forks.generation
        try:
            found = length(item.value)
            if forks.generation != generation:
                end_child(op, item)
            if not isinstance(found, (str, bytes, bytearray)) and found is not None:
                return int(found)
        except BaseException as error:
            if forks.generation != generation:
                end_child(op, item, error)
            if is_interrupt(error):
                raise
            raise op_error(op, item, error) from error
        raise OutputTypeError(
            f"{op}: length returned {type(found).__name__} for {item.where()}, but it must return one number.",
            op=op,
            file=item.lease.split.file_of(item.element),
            element=item.element,
        )
    if length not in item.value:
        raise ColumnError(
            f"{op}: there is no column {length!r} in {item.where()}; there are {listed(item.value)}.",
            op=op,
            column=length,
        )
    try:
        return len(item.value[length])
    except TypeError as error:
        raise OpError(
            f"{op}: column {length!r} of {item.where()} is {type(item.value[length]).__name__}, which has no length. "
            f"If it is the length, pass length=lambda element: element[{length!r}].",
            op=op,
            file=item.lease.split.file_of(item.element),
            element=item.element,
            column=length,
        ) from error
