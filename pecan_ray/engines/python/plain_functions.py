"""Which functions cannot remember anything: all that they name are NumPy and numbers, and they write nowhere.

Such a function may be called once for many elements, or once more for one, and nothing else changes.  Whether what it
does to its argument is arithmetic alone is watched while it runs (`pecan_ray.engines.python.rows`); that it counts its
calls, say, could not be seen so.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pecan_ray.engines.python.rows import NUMBERS
from pecan_ray.plan.fingerprint import content_of

MODULES = (np, math)
"""What is in them and depends on earlier calls, `np.random`, is found by whether the function draws."""
WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "IMPORT_FROM"})
"""Steps of Python that change what lives longer than a call, or name what is not known here."""
GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
PURE = frozenset({abs, bool, dict, float, int, isinstance, list, max, min, range, round, tuple, zip})
"""Of the functions of Python those that arithmetic needs."""


def why_not_plain(fn: Any) -> str:
    """Return what a function names or writes that may differ from call to call; empty where there is nothing."""
    return _why_not_plain(fn, [])


def _why_not_plain(fn: Any, asked: list[Any]) -> str:
    """Look at a function, at those that it calls, and at what an object with `__call__` holds."""
    if any(fn is one for one in asked):
        return ""
    asked.append(fn)
    if isinstance(fn, functools.partial):
        held = {str(place): value for place, value in enumerate(fn.args)} | fn.keywords
        return _why_not_plain(fn.func, asked) or _first_of(held, asked, "its argument")
    if isinstance(fn, types.MethodType):
        return _why_not_plain(fn.__func__, asked) or _why_not_plain_object(fn.__self__, asked)
    if isinstance(fn, types.FunctionType):
        return _why_not_plain_code(fn, asked)
    call = inspect.getattr_static(type(fn), "__call__", None)
    if isinstance(call, types.FunctionType):
        return _why_not_plain(call, asked) or _why_not_plain_object(fn, asked)
    return "" if _is_plain(fn) else f"it is a {type(fn).__qualname__}"


def _why_not_plain_object(value: Any, asked: list[Any]) -> str:
    # Methods that it calls, and what its class holds for all objects, are attributes of it too.
    shared = [vars(kind) for kind in reversed(type(value).__mro__[:-1])]
    held = {name: one for part in shared for name, one in part.items() if not name.startswith("__")}
    return _first_of({**held, **getattr(value, "__dict__", {})}, asked, "its attribute")


def _why_not_plain_code(fn: types.FunctionType, asked: list[Any]) -> str:
    code = fn.__code__
    if code.co_flags & GENERATORS:
        return "it is a generator, or asynchronous"
    for step in dis.get_instructions(code):
        if step.opname in WRITES or (step.opname == "STORE_DEREF" and step.argval in code.co_freevars):
            return f"it sets {step.argval!r}, which lives longer than a call"
    named = dict(named_values(fn))
    writes = any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in dis.get_instructions(code))
    # Its element is a dict of its own, which it may write into.
    if writes and (table := next((name for name, one in named.items() if isinstance(one, np.ndarray)), None)):
        return f"it may write into {table!r}, which lives longer than a call"
    return _first_of(named, asked, "it names")


def named_values(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function names, and what is written in it; attributes and methods are those of its argument."""
    for step in dis.get_instructions(fn):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval, fn.__globals__.get(step.argval, vars(builtins).get(step.argval))
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        yield name, content_of(cell)
    names = inspect.getfullargspec(fn).args
    yield from zip(names[len(names) - len(fn.__defaults__ or ()) :], fn.__defaults__ or (), strict=True)
    yield from (fn.__kwdefaults__ or {}).items()
    # A nested function is a code object here, which is not plain.
    yield from ((repr(one), one) for one in fn.__code__.co_consts)


def _first_of(named: Mapping[str, Any], asked: list[Any], what: str) -> str:
    for name, value in named.items():
        if _is_plain(value):
            continue
        if not isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            return f"{what} {name!r}, a {type(value).__qualname__} that may differ from call to call"
        if why := _why_not_plain(value, asked):
            return f"{what} {name!r}: {why}"
    return ""


def _is_plain(value: Any) -> bool:
    if any(value is one for one in MODULES) or isinstance(
        value, (str, bool, int, float, np.generic, np.dtype, np.ufunc)
    ):
        return True
    if isinstance(value, type):
        return value in PURE or issubclass(value, np.generic) or value is np.ndarray
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in NUMBERS
    return value is None or (isinstance(value, types.BuiltinFunctionType) and value in PURE) or _is_numpys(value)


def _is_numpys(value: Any) -> bool:
    """Tell whether it is one of NumPy's functions on arrays, as `from numpy import clip` names them."""
    return callable(value) and getattr(np, getattr(value, "__name__", ""), None) is value
