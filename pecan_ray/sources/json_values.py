"""Values of JSON: lists of numbers as arrays, and columns of types that the user names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from pecan_ray.errors import PlanError
from pecan_ray.plan.exact_arrays import exact_array
from pecan_ray.sources.arrow import column_of
from pecan_ray.sources.lines import cut_text


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


def json_types(types: Mapping[str, str]) -> dict[str, Any]:
    """Return the types of Arrow of columns that a user has named; raises PlanError for one that JSON has not."""
    if not isinstance(types, Mapping):
        raise PlanError(f'types must give types by column ({{"ids": "list<int64>"}}), but got {types!r}.')
    return {name: _arrow_type(name, text) for name, text in types.items()}


def check_filled_types(types: Mapping[str, Any], fill: Mapping[str, Any]) -> None:
    """Raise PlanError for a value in the place of nulls that is none of its column's type."""
    for name in types.keys() & fill.keys():
        try:
            _check(fill[name], types[name])
        except ValueError as error:
            raise PlanError(f"fill[{name!r}]: {error}, which types= says that the column is.") from None


def with_types(value: dict[str, Any], types: Mapping[str, Any], fill: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with its nulls filled, and with columns of the types that they are to have.

    These have the values that Parquet gives for such columns.  Raises ValueError for a value that is none of its type.
    """
    filled = {name: fill[name] for name in fill if name in value and value[name] is None}
    made = {**value, **filled}
    for name, kind in types.items():
        if name in made:
            made[name] = _typed(name, made[name], kind)
    return made


def _typed(name: str, value: Any, kind: Any) -> Any:
    try:
        _check(value, kind)
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}") from None
    return column_of(pa.array([value], kind))[0]


def _arrow_type(name: str, text: str) -> Any:
    leaf, depth = text, 0
    while isinstance(leaf, str) and leaf.startswith("list<") and leaf.endswith(">"):
        leaf, depth = leaf.removeprefix("list<").removesuffix(">"), depth + 1
    try:
        kind = pa.type_for_alias(leaf)
    except (AttributeError, TypeError, ValueError):  # no text, or no name of a type
        kind = pa.null()
    if not (pa.types.is_integer(kind) or kind in (pa.float32(), pa.float64(), pa.bool_(), pa.string())):
        raise PlanError(
            f"types[{name!r}] = {text!r} is no type for JSON: name a type of numbers (int64, uint8, float32, ...), "
            'bool or string, or a list of one: "list<float32>", "list<list<string>>".'
        )
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def _check(value: Any, kind: Any) -> None:
    """Raise ValueError unless a type holds a value; fractions may be rounded to it, whole numbers may not."""
    if pa.types.is_list(kind) and type(value) is list:
        for one in value:
            _check(one, kind.value_type)
    elif value is not None and not _holds(value, kind):
        message = cut_text(str(value)) if isinstance(value, (int, float)) else f"a {type(value).__name__}"
        raise ValueError(f"{message} is no {_named(kind)}")


@lru_cache(maxsize=16)
def _dtype(kind: Any) -> np.dtype[Any]:
    return np.asarray(pa.array([], kind).to_numpy(zero_copy_only=False)).dtype


def _named(kind: Any) -> str:
    """Return a type as a user writes it."""
    if pa.types.is_list(kind):
        return f"list<{_named(kind.value_type)}>"
    return str(_dtype(kind)) if pa.types.is_floating(kind) else str(kind)


def _holds(value: Any, kind: Any) -> bool:
    if kind in (pa.bool_(), pa.string()):
        return type(value) is (str if kind == pa.string() else bool)
    if pa.types.is_list(kind):
        return False
    dtype = _dtype(kind)
    if dtype.kind in "iu":
        return type(value) is int and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    most = float(np.finfo(dtype).max)
    if type(value) is int:
        return abs(value) <= most and int(dtype.type(value)) == value
    return type(value) is float and (abs(value) <= most or not math.isfinite(value))
