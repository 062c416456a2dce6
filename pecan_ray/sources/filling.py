"""Nulls of columns: values in their place, and columns that tell where they were."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from pecan_ray.errors import ColumnError, PlanError
from pecan_ray.plan.splits import Columns

SINGLE = (bool, int, float, str, bytes, np.generic, datetime.date, datetime.time, datetime.timedelta)


def check_fill(fill: Any, mask: Any = None) -> None:
    """Raise PlanError unless `fill` is single values by column, and `mask` names of new columns by column."""
    if fill is not None:
        _check_values(fill)
    if mask is not None:
        _check_mask(mask)


def _check_values(fill: Any) -> None:
    if not isinstance(fill, Mapping):
        raise PlanError(f'fill must give values by column ({{"age": 0}}), but got {fill!r}.')
    for name, value in fill.items():
        if not isinstance(value, SINGLE):
            raise PlanError(f"fill[{name!r}] must be a number, a text, bytes or a date, but got {value!r}.")


def _check_mask(mask: Any) -> None:
    if not isinstance(mask, Mapping) or not all(isinstance(name, str) and name for name in mask.values()):
        raise PlanError(f'mask must give names of new columns by column ({{"age": "age_is_null"}}), but got {mask!r}.')
    if len(set(mask.values())) < len(mask) or set(mask.values()) & set(mask):
        raise PlanError(f"mask must name new columns, each once, but got {mask!r}.")


def without_nulls(batch: Any, fill: Mapping[str, Any] | None, path: str) -> Any:
    """Return a batch or table whose nulls in some columns have become values.

    Raises ColumnError for a column that is not there, PlanError for a value that is none of its column's type.
    """
    for name, value in (fill or {}).items():
        place = _place(batch, name, "fill", path)
        column = batch.column(place)
        if pa.types.is_dictionary(column.type):
            # The dictionary may lack the value that stands in for a null.
            column = column.cast(column.type.value_type)
        batch = batch.set_column(place, name, pc.fill_null(column, _scalar(name, value, column.type, path)))
    return batch


def null_mask_columns(batch: Any, mask: Mapping[str, str] | None, path: str) -> Columns:
    """Return a boolean column for each name in `mask`: whether a row of its column is null.

    Raises ColumnError for a column that is not there, and for a new name that the batch has already.
    """
    columns = {}
    for name, new in (mask or {}).items():
        place = _place(batch, name, "mask", path)
        if batch.schema.get_field_index(new) >= 0:
            raise _taken(new, path)
        # A column and no `numpy.ma`, whose mask most functions drop:
        # docs/decisions/sources.md#147-names-links-and-nulls.
        columns[new] = batch.column(place).is_null().to_numpy(zero_copy_only=False)
    return columns


def add_null_mask(element: dict[str, Any], read: Mapping[str, Any], mask: Mapping[str, str], path: str) -> None:
    """Add to an element whether the values of some columns were null, as far as these were read."""
    for name, new in mask.items():
        if new in read:
            raise _taken(new, path)
        if name in read:
            element[new] = read[name] is None


def _taken(new: str, path: str) -> ColumnError:
    return ColumnError(f"{path} has a column {new!r}, and mask= gives that name to a new one.", path=path, column=new)


def _place(batch: Any, name: str, option: str, path: str) -> int:
    place: int = batch.schema.get_field_index(name)
    if place < 0:
        raise ColumnError(
            f"{path} has no column {name!r} among those that are read, and {option}= names it.", path=path, column=name
        )
    return place


def _scalar(name: str, value: Any, kind: Any, path: str) -> Any:
    try:
        scalar = pa.scalar(value, type=kind)
        # Arrow makes 1 of 1.5 where the type holds whole numbers.
        held = not kind.num_fields and (pa.types.is_floating(kind) or scalar == pa.scalar(value).cast(kind))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        held = False
    if not held:
        raise PlanError(
            f"fill[{name!r}] = {value!r} is no value of column {name!r} of {path}, whose type is {kind}.",
            path=path,
            column=name,
        )
    return scalar
