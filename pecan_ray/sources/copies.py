"""Copies of values that functions may write into, however deep."""

from __future__ import annotations

import copy
import sys
from typing import Any

import numpy as np

UNCHANGING = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types whose values nothing can change."""


OWN_ATTRIBUTES = ("im", "mode", "size", "readonly", "info", "palette", "pyaccess", "format")
"""Attributes that every image of Pillow has, in some version."""


def own_copy(value: Any, made: dict[int, Any] | None = None) -> Any:
    """Return a copy of a value, and of all that lists, tuples, dicts, sets and arrays of objects in it hold.

    Objects that are not known here stay as they are.  `made` holds the copies of lists and dicts that are under way, by
    the identity of the original: one may hold itself.
    """
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if isinstance(value, np.ndarray):
        return _objects(value, made) if value.dtype == object else value.copy()
    if kind in (list, tuple, dict):
        return _container(value, {} if made is None else made)
    held = isinstance(value, (list, tuple, dict, set, bytearray, np.void))
    return copy.deepcopy(value) if held else copy_value(value)


def _container(value: Any, made: dict[int, Any]) -> Any:
    kind, values = type(value), value.values() if type(value) is dict else value
    # Most lists hold nothing else, and are copied without a call for each value.
    if UNCHANGING.issuperset(map(type, values)):
        return kind(value)
    if id(value) in made:
        return made[id(value)]
    # It can hold itself only through a list or a dict, which `made` has.
    if kind is tuple:
        return tuple(own_copy(one, made) for one in value)
    own = made[id(value)] = kind()
    if kind is dict:
        own.update((name, own_copy(one, made)) for name, one in value.items())
    else:
        own.extend(own_copy(one, made) for one in value)
    return own


def _objects(array: np.ndarray[Any, Any], made: dict[int, Any] | None) -> np.ndarray[Any, Any]:
    own = array.copy()
    places = own.reshape(-1)
    for place, one in enumerate(places):
        places[place] = own_copy(one, made)
    return own


def copy_value(value: Any) -> Any:
    """Return a copy of an image of Pillow or a tensor of PyTorch that may be written into; anything else as it is."""
    if isinstance(value, _known("torch", "Tensor")):
        return value.clone()
    if isinstance(value, _known("PIL.Image", "Image")):
        made = value.copy()
        # Pillow's own copy leaves these out.
        for name, one in {"format": value.format, **attributes_of(value)}.items():
            setattr(made, name, one)
        return made
    return value


def attributes_of(picture: Any) -> dict[str, Any]:
    """Return the attributes that functions have given an image of Pillow."""
    if type(picture) is not sys.modules["PIL.Image"].Image:
        return {}
    return {name: one for name, one in vars(picture).items() if name not in OWN_ATTRIBUTES and name[0] != "_"}


def _known(module: str, name: str) -> Any:
    # What nobody has imported has no values in this process.
    return getattr(sys.modules.get(module), name, ())
