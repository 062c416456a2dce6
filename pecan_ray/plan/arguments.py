"""Arguments of operators, refused early where they make no sense."""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from pecan_ray.errors import PlanError, to_str
from pecan_ray.plan.option_types import of_kind
from pecan_ray.plan.own_attributes import own_attribute


def a_function(what: str, fn: Callable[..., Any], *, many: bool = False) -> Callable[..., Any]:
    """Return a function that returns a value (`many`: any iterable of them); raises `PlanError` for anything else.

    `what` names the argument.
    """
    if not callable(fn):
        raise PlanError(f"{what} needs a function, but got {type(fn).__name__}.")
    plain = _behind(fn)
    name = own_attribute(plain, "__qualname__", type(fn).__name__)
    if inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise PlanError(
            f"{what}: {name} is an `async def`, whose call returns a coroutine and not its result. Make it a plain "
            "function, which may wait: several threads of a worker call it at a time. Or wrap what must be awaited: "
            f"lambda element: asyncio.run({name}(element))."
        )
    if not many and inspect.isgeneratorfunction(plain):
        raise PlanError(
            f"{what}: {name} is a generator function, whose call returns a generator and not an element. Let it return "
            "its result, or use flat_map for one element that becomes several."
        )
    return fn


def a_value_of(what: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns a column's value; raises `PlanError` as `a_function`, and without any `return`.

    A lambda whose result is None was written so.
    """
    plain = _behind(a_function(what, fn))
    plain = getattr(plain, "__func__", plain)  # of a method
    if inspect.isfunction(plain) and plain.__name__ != "<lambda>" and _returns_nothing(plain.__code__):
        raise PlanError(
            f"{what}: {plain.__qualname__} has no `return` with a value, so each value of the column would be None. "
            "Let it return the new value, also where it changes the given one in place; to take a column out, map the "
            "whole element."
        )
    return fn


def _returns_nothing(code: types.CodeType) -> bool:
    """Tell whether a function can do nothing but return None: all of its returns are of that constant."""
    before: dis.Instruction | None = None
    found = False
    for step in dis.get_instructions(code):
        if step.opname == "RETURN_CONST":
            found = True
            if step.argval is not None:
                return False
        elif step.opname == "RETURN_VALUE":
            found = True
            # Where several ways lead to one return, others may bring a value.
            if before is None or before.opname != "LOAD_CONST" or before.argval is not None or step.is_jump_target:
                return False
        # Instructions without an effect may stand between the constant and the return.
        if step.opname not in ("NOP", "CACHE"):
            before = step
    return found


def _behind(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a partial or an object with `__call__` calls."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    # Statically, so that no code of the user runs before anything has begun.
    called = inspect.getattr_static(type(fn), "__call__", None)
    return called if inspect.isfunction(called) else fn


def positive(what: str, value: int) -> int:
    """Return a whole number from 1 on; raises `PlanError` for anything else.  `what` names the argument."""
    return _whole_number(what, value, 1)


def natural(what: str, value: int) -> int:
    """Return a whole number from 0 on; raises `PlanError` for anything else.  `what` names the argument."""
    return _whole_number(what, value, 0)


def buckets(boundaries: Sequence[int], sizes: int | Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the boundaries of buckets by length, and a batch size for each bucket; raises `PlanError` for nonsense."""
    bounds: tuple[int, ...] = of_kind("bucket_by_length(boundaries=...)", boundaries, Sequence[int])
    if not bounds or list(bounds) != sorted(set(bounds)):
        raise PlanError(f"bucket_by_length: boundaries must rise, but got {list(boundaries)}.")
    given = of_kind("bucket_by_length(sizes=...)", sizes, int | Sequence[int])
    per_bucket: tuple[int, ...] = given if isinstance(given, tuple) else (given,) * (len(bounds) + 1)
    if len(per_bucket) != len(bounds) + 1:
        raise PlanError(
            f"bucket_by_length: {len(bounds)} boundaries make {len(bounds) + 1} buckets, but sizes has "
            f"{len(per_bucket)}."
        )
    for size in per_bucket:
        positive("bucket_by_length", size)
    return bounds, per_bucket


def _whole_number(what: str, value: int, least: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    # True would count as 1.
    if isinstance(value, bool) or number < least:
        raise PlanError(f"{what} needs a whole number >= {least}, but got {to_str(value)}.")
    return number
