"""From elements of unequal shapes to a batch: padding them at the end of each dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pecan_ray.engines.collate import (
    batch_columns,
    checked_array,
    collate_column,
    holds_lists,
    is_empty_list,
    mismatch,
    with_arrays,
)
from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.fill_value import fill_value
from pecan_ray.engines.items import Item
from pecan_ray.errors import ColumnError, PlanError, join_names, to_str
from pecan_ray.plan.exact_arrays import exact_array
from pecan_ray.plan.grouping import BucketByLength
from pecan_ray.plan.operators import PaddedBatch
from pecan_ray.plan.splits import Array


def collate_padded(items: Sequence[Item], op: PaddedBatch | BucketByLength) -> dict[str, Any]:
    """Return the columns of a batch whose elements are padded at the end of each dimension to a common shape."""
    items = with_arrays(items)
    names = batch_columns(items, op.name)
    padding: Mapping[str, Any] = op.padding if isinstance(op.padding, Mapping) else {}
    shapes = (op.shapes if isinstance(op, PaddedBatch) else None) or {}
    _check_known(shapes, "shapes", names, op.name)
    _check_known(padding, "padding", names, op.name)
    _check_known(op.same_shape, "same_shape", names, op.name)
    items = _with_lists_as_arrays(items, padding, op.name)
    together: tuple[int, ...] = ()
    if op.same_shape:
        items = _with_one_rank(items, op)
        together = _largest_shape([item.value[name].shape for item in items for name in op.same_shape])
    columns: dict[str, Any] = {}
    for name in names:
        if not is_columnar(items[0].value[name]):
            for item in items:
                _check_needs_no_padding(name, item, op.name)
            columns[name] = collate_column(items, name, op.name)
            continue
        filled_with = padding.get(name, 0) if isinstance(op.padding, Mapping) else op.padding
        at_least = together if name in op.same_shape else ()
        columns[name] = _pad(items, name, shapes.get(name), filled_with, op.name, at_least)
    return columns


def _largest_shape(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(lengths) for lengths in zip(*shapes, strict=True))


def _with_one_rank(items: Sequence[Item], op: PaddedBatch | BucketByLength) -> list[Item]:
    """Return elements whose columns under `same_shape` have equally many dimensions."""
    values = [(item, name, item.value[name]) for item in items for name in op.same_shape]
    rank = max(np.ndim(value) for _, _, value in values)
    for item, name, value in values:
        # An empty list has no dimensions of its own, and a single number becomes a list where the others are lists.
        if not is_columnar(value) or (np.ndim(value) < rank and np.shape(value) not in ((), (0,))):
            raise mismatch(
                f"{op.name}(same_shape=...): column {to_str(name)} of {item.where()} is no array of {rank} dimensions, "
                "as another of these columns is.",
                name,
                item,
                op.name,
            )
    return [
        replace(item, value={**item.value, **{name: _of_rank(item.value[name], rank) for name in op.same_shape}})
        for item in items
    ]


def _of_rank(value: Any, rank: int) -> Array:
    array = np.asarray(value)
    return array if array.ndim == rank else array.reshape((array.size,) + (int(array.size > 0),) * (rank - 1))


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
    raise mismatch(
        f"{op}: column {to_str(name)} of {item.where()} is {kind}, which cannot be padded. {remedy}.", name, item, op
    )


def _with_lists_as_arrays(items: list[Item], padding: Mapping[str, Any], op: str) -> list[Item]:
    """Return elements whose lists of numbers are arrays, as padding needs them.

    Empty ones take the dtype of others; if all of a batch are empty, that of the column's own padding.
    """
    for name in [name for name in items[0].value if holds_lists([item.value[name] for item in items])]:
        arrays = [_array_of(name, item, items[0], op) for item in items]
        if not all(is_columnar(array) for array in arrays if array.size):
            continue  # texts, or objects of some kind
        # If nothing tells the type, that of the padding does; 0.0 is what NumPy makes of an empty list.
        typed = _of_one_type(arrays, np.asarray(padding.get(name, 0.0)).dtype)
        items = [replace(item, value={**item.value, name: one}) for item, one in zip(items, typed, strict=True)]
    return items


def _of_one_type(arrays: list[Array], if_all_empty: np.dtype[Any]) -> list[Array]:
    """Return arrays of lists, the empty ones with the dtype of the first that is not."""
    full = [array for array in arrays if array.size]
    dtype = full[0].dtype if full else if_all_empty
    return [array if array.size else array.astype(dtype) for array in arrays]


def _array_of(name: str, item: Item, first: Item, op: str) -> Array:
    """Return a list as an array; raises `BatchShapeError` for what is none, and for lists that are no table."""
    value = item.value.get(name)
    error: Exception | None
    try:
        if is_empty_list(value):
            return np.asarray(value)
        if type(value) not in (list, tuple):
            message, error = f"is a {type(value).__name__}, but that of {first.where()} is a list", None
        elif any(one is None for one in value):
            message, error = "is a list that holds None", None
        else:
            return exact_array(value)
    except OverflowError as rounded:
        message, error = f"is a list: {rounded}", rounded
    except ValueError as uneven:
        message, error = "is a list of unequal lists, which cannot be padded", uneven
    remedy = "Make an array of it, or fill in what is missing, by a map before."
    raise mismatch(f"{op}: column {to_str(name)} of {item.where()} {message}. {remedy}", name, item, op) from error


def _check_known(asked: Iterable[str], argument: str, names: list[str], op: str) -> None:
    for name in asked:
        if name not in names:
            raise ColumnError(
                f"{op}: {argument} names the column {to_str(name)}, but the elements have {join_names(names)}.",
                op=op,
                column=name,
            )


def _pad(
    items: Sequence[Item],
    name: str,
    fixed: tuple[int | None, ...] | None,
    padding: Any,
    op: str,
    at_least: tuple[int, ...],
) -> Array:
    """Return a column whose values are padded to the longest, or to what is `fixed`, and `at_least` so far."""
    items = _with_same_types(items, name, fixed)
    first = np.asarray(items[0].value[name])
    arrays = [_same_rank(name, item, first, items[0].where(), op) for item in items]
    if fixed is not None and len(fixed) != first.ndim:
        raise PlanError(
            f"{op}: shapes gives {len(fixed)} dimensions for column {to_str(name)},"
            f" but {items[0].where()} has {first.ndim}."
        )
    longest = [
        max(lengths) for lengths in zip(*(array.shape for array in arrays), at_least or first.shape, strict=True)
    ]
    wanted = tuple(w if w is not None else longest[axis] for axis, w in enumerate(fixed or (None,) * first.ndim))
    # One array of padding, written over: to pad each element and stack them would copy all of it twice.
    out = np.full((len(arrays), *wanted), fill_value(padding, first.dtype, name, op), first.dtype)
    for row, (item, array) in enumerate(zip(items, arrays, strict=True)):
        _check_fits(array.shape, wanted, name, item, op)
        place: Any = (row, *(slice(0, have) for have in array.shape))
        out[place] = array
    return out


def _check_fits(shape: tuple[int, ...], wanted: tuple[int, ...], name: str, item: Item, op: str) -> None:
    """Raise `BatchShapeError` for a value that is longer than it may be."""
    if any(have > want for have, want in zip(shape, wanted, strict=True)):
        raise mismatch(
            f"{op}: column {to_str(name)} of {item.where()} "
            f"has shape {list(shape)}, longer than the padded shape "
            f"{list(wanted)}. Enlarge shapes={{...}} or cut the element.",
            name,
            item,
            op,
        )


def _with_same_types(items: Sequence[Item], name: str, fixed: tuple[int | None, ...] | None) -> Sequence[Item]:
    """Return elements whose empty lists are of the others' dtype and dimensions, and whose single numbers are lists.

    What holds nothing has no type of its own in JSON, and a feature of an Example with one value is a single number.
    """
    arrays = [np.asarray(item.value[name]) for item in items if is_columnar(item.value[name])]
    rank, dtype = _common_type(arrays, fixed)
    if all(array.ndim == rank and array.dtype == arrays[0].dtype for array in arrays):
        return items
    return [replace(item, value={**item.value, name: _as_type(item.value[name], rank, dtype)}) for item in items]


def _common_type(arrays: Sequence[Array], fixed: tuple[int | None, ...] | None) -> tuple[int, np.dtype[Any]]:
    """Return how many dimensions, and which dtype, the arrays of a column have that hold something."""
    full = [array for array in arrays if array.size or array.ndim != 1] or arrays
    rank = max(array.ndim for array in full)
    # An empty list has one dimension, and so has what is to be padded to one.
    if len(full) < len(arrays) or (fixed is not None and len(fixed) == 1):
        rank = max(rank, 1)
    return rank, full[0].dtype


def _as_type(value: Any, rank: int, dtype: np.dtype[Any]) -> Any:
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
        raise mismatch(
            f"{op}: column {to_str(name)} of {item.where()} has {array.ndim} dimensions, but that of {other} has "
            f"{first.ndim}. Padding cannot add dimensions.",
            name,
            item,
            op,
        )
    return array
