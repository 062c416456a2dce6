"""Elements taken apart into what can be compared: arrays, numbers and texts, however they are nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pecan_ray.engines.foreign import as_array, notes_of
from pecan_ray.reorder.value_guard import Summaries
from pecan_ray.reorder.value_summary import summarise

DEEPEST = 4
"""Levels of nesting that are looked into."""
MOST_ITEMS = 32
"""Items of a list that are looked into one by one."""


def summaries(element: Mapping[str, Any]) -> Summaries:
    """Return what is kept of all values of an element."""
    return {
        (str(name), path): summarise(leaf) for name, value in element.items() for path, leaf in _leaves(value, "", 0)
    }


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    array = as_array(value)
    if array is not None:
        yield path, array
        for name, one in notes_of(value).items():
            yield from _leaves(one, f"{path}.{name}", depth + 1)
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
    elif depth >= DEEPEST or all(isinstance(one, (str, bytes)) for one in value):
        yield path, tuple(value)
    else:
        yield f"{path}[]", len(value)
        for number, one in enumerate(value[:MOST_ITEMS]):
            yield from _leaves(one, f"{path}[{number}]", depth + 1)
