"""What kind of value an option takes, as its annotation says: any other is refused by name, before anything starts."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from pecan_ray.errors import PlanError, to_str

WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    NoneType: "None",
    os.PathLike: "a path",
    Callable: "a function",
}


def settle(options: object, within: str = "") -> None:
    """Check each field of a frozen dataclass that is being made; raises `PlanError` for one of another kind.

    NumPy's numbers become Python's, and lists tuples.  `within`: what the fields are arguments of.
    """
    made: Any = type(options)
    for name, kind in _type_specs(made).items():
        value = getattr(options, name)
        kept = of_kind(f"{within}({name}=...)" if within else name, value, kind)
        if kept is not value:
            object.__setattr__(options, name, kept)


def of_kind(what: str, value: Any, kind: Any) -> Any:
    """Return a value as the kind that an annotation says; raises `PlanError` for any other.  `what` names it."""
    try:
        return _kept(value, kind)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(f"{what} must be {_describe_kind(kind)}, but got {to_str(value)}.") from None


@functools.cache
def _type_specs(options: Any) -> dict[str, Any]:
    hints = get_type_hints(options)
    return {field.name: hints[field.name] for field in dataclasses.fields(options)}


def _kept(value: Any, kind: Any) -> Any:
    """Return a value as a kind; raises TypeError for another one."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    keep = CONVERSIONS.get(origin)
    if keep is not None:
        return keep(value, parts)
    if origin is Any or isinstance(value, origin):
        return value
    raise TypeError


def _kept_sequence(value: Any, parts: Sequence[Any]) -> tuple[Any, ...]:
    # A text is a sequence of its letters, which nobody means.
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, np.ndarray)):
        raise TypeError
    return tuple(_kept(one, parts[0]) for one in value)


def _kept_mapping(value: Any, parts: Sequence[Any]) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError
    return {_kept(key, parts[0]): _kept(one, parts[1]) for key, one in value.items()}


def _kept_whole(value: Any, parts: Sequence[Any]) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _kept_number(value: Any, parts: Sequence[Any]) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or value != value:  # NaN
        raise TypeError
    # NumPy's float64 is a float of Python too, and prints otherwise.
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return value
    return float(value)


def _kept_bool(value: Any, parts: Sequence[Any]) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError
    return bool(value)


def _kept_word(value: Any, parts: Sequence[Any]) -> str:
    if not isinstance(value, str) or value not in parts:
        raise TypeError
    return value


def _kept_as_one_of(value: Any, kinds: Sequence[Any]) -> Any:
    for kind in kinds:
        try:
            return _kept(value, kind)
        except TypeError:
            continue
    raise TypeError


CONVERSIONS: dict[Any, Callable[[Any, Sequence[Any]], Any]] = {
    Union: _kept_as_one_of,
    UnionType: _kept_as_one_of,
    tuple: _kept_sequence,
    Sequence: _kept_sequence,
    dict: _kept_mapping,
    Mapping: _kept_mapping,
    int: _kept_whole,
    float: _kept_number,
    bool: _kept_bool,
    Literal: _kept_word,
}
"""How a value becomes one of a kind; of other kinds it must be an instance."""


def _describe_kind(kind: Any) -> str:
    """Say in words what a kind allows."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_describe_kind, parts))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin in (tuple, Sequence):
        return f"a list of which each is {_describe_kind(parts[0])}"
    if origin in (dict, Mapping):
        return f"a mapping from {_describe_kind(parts[0])} to {_describe_kind(parts[1])}"
    return WORDS.get(origin) or f"{origin.__name__}(...)"
