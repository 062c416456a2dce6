"""From elements to a batch: checking that they agree, stacking them, padding them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.python.items import Item
from pecan_ray.errors import BatchShapeError, ColumnError


def stack(items: Sequence[Item], op: str) -> dict[str, Any]:
    """Return the columns of a batch; raises `BatchShapeError` where elements differ in columns, shape or dtype."""
    return {name: _stack_column(items, name, op) for name in _columns(items, op)}


def _columns(items: Sequence[Item], op: str) -> list[str]:
    names = list(items[0].value)
    for item in items:
        if item.value.keys() != items[0].value.keys():
            raise BatchShapeError(
                f"{op}: {item.where()} has the columns {sorted(item.value)}, but {items[0].where()} has "
                f"{sorted(items[0].value)}. Every element of a batch needs the same columns.",
                op=op,
                file=item.lease.split.path,
                element=item.element,
            )
    return names


def _stack_column(items: Sequence[Item], name: str, op: str) -> Any:
    values = [item.value[name] for item in items]
    if not all(is_columnar(value) for value in values):
        column = np.empty(len(values), object)
        column[:] = values
        return column
    arrays = [np.asarray(value) for value in values]
    for item, array in zip(items, arrays, strict=True):
        check_agrees(name, array, arrays[0].shape, arrays[0].dtype, item, items[0].where(), op)
    return np.stack(arrays)


def check_agrees(
    name: str,
    array: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    item: Item,
    other: str,
    op: str,
) -> None:
    """Raise `BatchShapeError` unless an array has the shape and dtype of its batch."""
    if array.shape == shape and array.dtype == dtype:
        return
    raise BatchShapeError(
        f"{op}: column {name!r} of {item.where()} is {array.dtype}{list(array.shape)}, but that of {other} is "
        f"{dtype}{list(shape)}. Bring elements to one shape before batch (resize, crop), or use padded_batch.",
        op=op,
        file=item.lease.split.path,
        element=item.element,
        column=name,
    )


def pad_stack(items: Sequence[Item], op: str, padding: Any, shapes: dict[str, tuple[int | None, ...]] | None) -> Any:
    """Return the columns of a batch whose elements are padded at the end of each dimension to a common shape."""
    columns: dict[str, Any] = {}
    for name in _columns(items, op):
        values = [item.value[name] for item in items]
        if not all(is_columnar(value) for value in values):
            columns[name] = _stack_column(items, name, op)
            continue
        arrays = [np.asarray(value) for value in values]
        columns[name] = _pad(items, name, arrays, (shapes or {}).get(name), _padding(padding, name), op)
    return columns


def _padding(padding: Any, name: str) -> Any:
    return padding.get(name, 0) if isinstance(padding, dict) else padding


def _pad(
    items: Sequence[Item],
    name: str,
    arrays: Sequence[np.ndarray[Any, Any]],
    fixed: tuple[int | None, ...] | None,
    padding: Any,
    op: str,
) -> np.ndarray[Any, Any]:
    rank = arrays[0].ndim
    for item, array in zip(items, arrays, strict=True):
        if array.ndim != rank:
            raise BatchShapeError(
                f"{op}: column {name!r} of {item.where()} has {array.ndim} dimensions, but that of "
                f"{items[0].where()} has {rank}. Padding cannot add dimensions.",
                op=op,
                file=item.lease.split.path,
                element=item.element,
                column=name,
            )
    longest = [max(array.shape[axis] for array in arrays) for axis in range(rank)]
    wanted = tuple(w if w is not None else longest[axis] for axis, w in enumerate(fixed or (None,) * rank))
    out = np.full((len(arrays), *wanted), padding, np.result_type(*arrays))
    for row, (item, array) in enumerate(zip(items, arrays, strict=True)):
        if any(have > want for have, want in zip(array.shape, wanted, strict=True)):
            raise BatchShapeError(
                f"{op}: column {name!r} of {item.where()} has shape {list(array.shape)}, longer than the padded shape "
                f"{list(wanted)}. Enlarge shapes={{...}} or cut the element.",
                op=op,
                file=item.lease.split.path,
                element=item.element,
                column=name,
            )
        out[row][tuple(slice(0, have) for have in array.shape)] = array
    return out


def length_of(item: Item, length: Any, op: str) -> int:
    """Return an element's length for bucketing: a function of it, or the first dimension of a column."""
    if callable(length):
        return int(length(item.value))
    if length not in item.value:
        raise ColumnError(
            f"{op}: there is no column {length!r} in {item.where()}; there are {sorted(item.value)}.",
            op=op,
            column=length,
        )
    return len(item.value[length])
