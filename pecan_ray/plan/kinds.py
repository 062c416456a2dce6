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

from pecan_ray.errors import PlanError, spelled

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
    for name, kind in _kinds(made).items():
        value = getattr(options, name)
        kept = of_kind(f"{within}({name}=...)" if within else name, value, kind)
        if kept is not value:
            object.__setattr__(options, name, kept)


def of_kind(what: str, value: Any, kind: Any) -> Any:
    """Return a value as the kind that an annotation says; raises `PlanError` for any other.  `what` names it."""
    try:
        return _kept(value, kind)
    except (TypeError, ValueError, OverflowError):
        raise PlanError(f"{what} must be {_words(kind)}, but got {spelled(value)}.") from None


@functools.cache
def _kinds(options: Any) -> dict[str, Any]:
    hints = get_type_hints(options)
    return {field.name: hints[field.name] for field in dataclasses.fields(options)}


def _kept(value: Any, kind: Any) -> Any:
    """Return a value as a kind; raises TypeError for another one."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return _kept_as_one_of(value, parts)
    if origin in (tuple, Sequence):
        if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)):
            return tuple(_kept(one, parts[0]) for one in value)
    elif origin in (dict, Mapping):
        if isinstance(value, Mapping):
            return {_kept(key, parts[0]): _kept(one, parts[1]) for key, one in value.items()}
    elif origin is int:
        if not isinstance(value, bool):
            return operator.index(value)
    elif origin is float:
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value:
            return value if isinstance(value, (int, float)) and not isinstance(value, np.generic) else float(value)
    elif origin is bool:
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
    elif origin is Literal:
        if isinstance(value, str) and value in parts:
            return value
    elif origin is Any or isinstance(value, origin):
        return value
    raise TypeError


def _kept_as_one_of(value: Any, kinds: Sequence[Any]) -> Any:
    for kind in kinds:
        try:
            return _kept(value, kind)
        except TypeError:
            continue
    raise TypeError


def _words(kind: Any) -> str:
    """Say in words what a kind allows."""
    origin, parts = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, parts))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin in (tuple, Sequence):
        return f"a list of which each is {_words(parts[0])}"
    if origin in (dict, Mapping):
        return f"a mapping from {_words(parts[0])} to {_words(parts[1])}"
    return WORDS.get(origin) or f"{origin.__name__}(...)"
