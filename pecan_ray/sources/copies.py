"""Copies of values that functions may write into, however deep."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

UNCHANGING = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types whose values nothing can change."""


def own_copy(value: Any, copy_object: Callable[[Any], Any], made: dict[int, Any] | None = None) -> Any:
    """Return a copy of a value, and of all that lists, tuples, dicts, sets and arrays of objects in it hold.

    `copy_object` copies what is neither a plain value, an array, nor one of these, or returns it as it is; `made` holds
    the copies of lists and dicts that are under way, by the identity of the original: one may hold itself.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if isinstance(value, np.ndarray):
        return _objects(value, copy_object, made) if value.dtype == object else value.copy()
    if kind in (list, tuple, dict):
        return _container(value, copy_object, {} if made is None else made)
    held = isinstance(value, (list, tuple, dict, set, bytearray, np.void))
    return copy.deepcopy(value) if held else copy_object(value)


def _container(value: Any, copy_object: Callable[[Any], Any], made: dict[int, Any]) -> Any:
    kind, values = type(value), value.values() if type(value) is dict else value
    # Most lists hold nothing else, and are copied without a call for each value.
    if UNCHANGING.issuperset(map(type, values)):
        return kind(value)
    if id(value) in made:
        return made[id(value)]
    # It can hold itself only through a list or a dict, which `made` has.
    if kind is tuple:
        return tuple(own_copy(one, copy_object, made) for one in value)
    own = made[id(value)] = kind()
    if kind is dict:
        own.update((name, own_copy(one, copy_object, made)) for name, one in value.items())
    else:
        own.extend(own_copy(one, copy_object, made) for one in value)
    return own


def _objects(
    array: np.ndarray[Any, Any], copy_object: Callable[[Any], Any], made: dict[int, Any] | None
) -> np.ndarray[Any, Any]:
    own = array.copy()
    places = own.reshape(-1)
    for place, one in enumerate(places):
        places[place] = own_copy(one, copy_object, made)
    return own


def copy_tensor_or_image(value: Any) -> Any:
    """Return a copy of a tensor of PyTorch or an image of Pillow, told without importing either; else the object."""
    if isinstance(value, _known("torch", "Tensor")):
        return value.clone()
    if isinstance(value, _known("PIL.Image", "Image")):
        made = value.copy()
        # Pillow's own copy leaves the format out.
        made.format = value.format
        return made
    return value


def _known(module: str, name: str) -> Any:
    # What nobody has imported has no values in this process.
    return getattr(sys.modules.get(module), name, ())
