"""Which columns of its element a function reads, if it does nothing else with the element."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
"""Instructions that load a local variable, and nothing else, in Python 3.10 to 3.14."""
HIDDEN = ("CACHE", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "RESUME")
"""Instructions without a meaning for what stands beside them."""
FRAME_READERS = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})
"""Functions that see their caller's variables."""
NOT_CALLED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Code of these kinds runs when the call has returned."""


def columns_read(fn: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the columns that a function reads of its first argument, which it uses as ``element["name"]`` alone.

    Then it cannot tell its element from one without the other columns.  Its code says so, because its source is not
    known where it was sent to.  None: the code may do something else, or is not Python's.
    """
    # What a partial gives by position stands before the element.
    while isinstance(fn, functools.partial) and not fn.args:
        fn = fn.func
    plain, first = (fn.__func__, 1) if isinstance(fn, types.MethodType) else (fn, 0)
    if not isinstance(plain, types.FunctionType):
        return None
    code = plain.__code__
    if code.co_argcount <= first or code.co_flags & NOT_CALLED or FRAME_READERS & set(code.co_names):
        return None
    element = code.co_varnames[first]
    if element in code.co_cellvars:  # an inner function holds it
        return None
    found = list(_uses(code, element))
    return None if None in found else tuple(dict.fromkeys(name for name in found if name is not None))


def _uses(code: types.CodeType, variable: str) -> Iterator[str | None]:
    """Yield for each use of a local variable the text by which it is subscripted; None: it is used otherwise."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in HIDDEN]
    for place, step in enumerate(steps):
        # Some instructions load or store two variables at once.
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if "FAST" not in step.opname or variable not in names:
            continue
        key, subscript = (*steps[place + 1 : place + 3], None, None)[:2]
        if step.opname in LOADS and key is not None and subscript is not None and _is_column_lookup(key, subscript):
            yield key.argval
        else:
            yield None


def _is_column_lookup(key: dis.Instruction, subscript: dis.Instruction) -> bool:
    """Tell whether two instructions subscribe what was loaded before them by a constant text."""
    is_text = key.opname == "LOAD_CONST" and type(key.argval) is str
    if key.is_jump_target or subscript.is_jump_target:
        return False
    return is_text and (
        subscript.opname == "BINARY_SUBSCR" or (subscript.opname, subscript.argrepr) == ("BINARY_OP", "[]")
    )
