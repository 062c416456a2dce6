"""Attributes of users' objects, whose `__getattr__` may raise anything, or answer to every name."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

_MISSING = object()


def own_attribute(value: object, name: str, default: Any = None) -> Any:
    """Return an attribute that an object or its class has, and `default` if only `__getattr__` might know it."""
    if inspect.getattr_static(value, name, _MISSING) is _MISSING:
        return default
    return getattr(value, name, default)


def function_name(fn: Any) -> str:
    """Return what a function is called, or its class if it has no name."""
    try:
        name = getattr(fn, "__name__", None)
    except Exception:  # of the user's `__getattr__`, for which AttributeError is not enough
        name = None
    return name if isinstance(name, str) and name else type(fn).__name__


def called(fn: Any, nameless: str) -> str:
    """Name an operator by its function, a `partial` by what it calls, and a lambda `nameless`."""
    while isinstance(fn, partial):
        fn = fn.func
    name = function_name(fn)
    return nameless if name == "<lambda>" else name
