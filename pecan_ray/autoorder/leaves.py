"""Elements taken apart into what can be compared: arrays, numbers and texts, however they are nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pecan_ray.engines.foreign import as_array, notes_of

DEEPEST = 4
"""Levels of nesting that are looked into."""
MOST_ITEMS = 32
"""Items of a list that are looked into one by one."""


def leaves(element: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an element by their paths: arrays as NumPy's, whatever else there is as it is."""
    return {f"{name}{path}": leaf for name, value in element.items() for path, leaf in _leaves(value, "", 0)}


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a value as an array, if it is one."""
    return value if isinstance(value, np.ndarray) else as_array(value)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    array = array_of(value)
    if array is not None:
        yield path, array
        for name, one in notes_of(value).items():
            yield from _leaves(one, f"{path}.{name}", depth + 1)
    elif isinstance(value, (bool, int, float, complex, np.generic)):
        yield path, np.asarray(value)
    elif depth < DEEPEST and isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{path}.{name}", depth + 1)
    elif depth < DEEPEST and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}", depth + 1)
    elif isinstance(value, (list, tuple)):
        yield from _items(value, path, depth)
    else:
        yield path, value


def _items(value: list[Any] | tuple[Any, ...], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if value and all(isinstance(one, (bool, int, float, np.number)) for one in value):
        yield path, np.asarray(value)
    elif depth >= DEEPEST or len(value) > MOST_ITEMS or all(isinstance(one, (str, bytes)) for one in value):
        yield path, tuple(value)
    else:
        yield f"{path}[]", len(value)
        for number, one in enumerate(value):
            yield from _leaves(one, f"{path}[{number}]", depth + 1)
