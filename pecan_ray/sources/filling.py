"""Values in the place of nulls, by column."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from pecan_ray.errors import ColumnError, PlanError

SINGLE = (bool, int, float, str, bytes, np.generic, datetime.date, datetime.time, datetime.timedelta)


def check_fill(fill: Any) -> None:
    """Raise PlanError for what is not single values by the names of columns."""
    if fill is None:
        return
    if not isinstance(fill, Mapping):
        raise PlanError(f'fill must give values by column ({{"age": 0}}), but got {fill!r}.')
    wrong = next((name for name, value in fill.items() if not isinstance(value, SINGLE)), None)
    if wrong is not None:
        raise PlanError(f"fill[{wrong!r}] must be a number, a text, bytes or a date, but got {fill[wrong]!r}.")


def without_nulls(batch: Any, fill: Mapping[str, Any], path: str) -> Any:
    """Return a batch or table whose nulls in some columns have become values.

    Raises ColumnError for a column that is not there, PlanError for a value that is none of its column's type.
    """
    for name, value in fill.items():
        place = batch.schema.get_field_index(name)
        if place < 0:
            raise ColumnError(
                f"{path} has no column {name!r} among those that are read, and fill= names it.", path=path, column=name
            )
        column = batch.column(place)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        batch = batch.set_column(place, name, pc.fill_null(column, _scalar(name, value, column.type, path)))
    return batch


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
