"""Globals for a sample alone: what the functions of a pipeline change in the user's modules is as it was afterwards.

A plan's functions are copied for a sample, and what they hold with them; but functions of imported modules are not,
and share the globals of their modules with the program.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import random
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pecan_ray.plan.fingerprint import is_library, nested_code
from pecan_ray.plan.operators import ElementOp, Plan
from pecan_ray.plan.own_attributes import own_attribute

MOST_BYTES = 32 << 20
"""A larger global is taken for a table that is only read, and stays as it is."""
MOST_PARTS = 100_000
"""So is one that consists of more objects."""
PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic, np.dtype)
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
GLOBAL_STEPS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME")
MISSING = object()


@contextlib.contextmanager
def globals_of_its_own(plan: Plan) -> Iterator[None]:
    """Replace the globals that a plan's functions can reach by copies, and put the originals back in the end.

    What cannot be copied (locks, open files, models, large tables) stays as it is.
    """
    found = Reached()
    for op in plan.all_ops():
        if isinstance(op, ElementOp):
            found.look_at(op.fn)
    try:
        found.replace()
        yield
    finally:
        found.put_back()


@dataclass
class Reached:
    """The globals of the user's modules that functions can reach, by module, and the attributes of classes."""

    names: dict[int, tuple[dict[str, Any], set[str]]] = field(default_factory=dict)
    """By the identity of a module's globals: these, and the names that functions use."""
    classes: dict[int, tuple[type, dict[str, Any]]] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _originals: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)

    def look_at(self, value: Any) -> None:
        """Follow a value to the globals behind it."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, types.MethodType):
            self.look_at(value.__func__)
            self.look_at(value.__self__)
        elif isinstance(value, types.FunctionType):
            self._look_at_function(value)
        elif isinstance(value, type):
            self._look_at_class(value)
        elif (wrapped := own_attribute(value, "__wrapped__")) is not None:
            self.look_at(wrapped)
        elif (called := own_attribute(value, "func")) is not None:  # a functools.partial
            self.look_at(called)
        elif not isinstance(value, (*PLAIN, types.ModuleType, np.ndarray)):
            self.look_at(type(value))

    def _look_at_function(self, function: types.FunctionType) -> None:
        if is_library(function.__module__):
            return
        codes = list(nested_code(function.__code__))
        steps = [step for code in codes for step in dis.get_instructions(code)]
        used = {str(step.argval) for step in steps if step.opname in GLOBAL_STEPS}
        attributes = {name for code in codes for name in code.co_names}
        self._use(function.__globals__, used, attributes)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a variable that is assigned later
                self.look_at(cell.cell_contents)

    def _use(self, held: dict[str, Any], names: set[str], attributes: set[str]) -> None:
        _, known = self.names.setdefault(id(held), (held, set()))
        known |= names
        for name in names & held.keys():
            value = held[name]
            if isinstance(value, types.ModuleType):
                if not is_library(value.__name__) and id(value) not in self._seen:
                    self._seen.add(id(value))
                    self._use(vars(value), attributes & vars(value).keys(), attributes)
            else:
                self.look_at(value)

    def _look_at_class(self, kind: type) -> None:
        if is_library(kind.__module__):
            return
        for base in kind.__bases__:
            self.look_at(base)
        attributes = dict(vars(kind))
        self.classes[id(kind)] = kind, attributes
        for member in attributes.values():
            if isinstance(member, property):
                self.look_at(member.fget)
            elif callable(member) or isinstance(member, (staticmethod, classmethod)):
                self.look_at(member)

    def replace(self) -> None:
        """Put copies in the place of what can be changed."""
        for held, names in self.names.values():
            if held.get("__name__") not in sys.modules:
                continue  # a copy that was made for the sample
            for name in names:
                original = held.get(name, MISSING)
                self._originals.append((held, name, original))
                if original is not MISSING and (own := own_copy(original)) is not original:
                    held[name] = own

    def put_back(self) -> None:
        """Put the originals back, and take away what was added."""
        for held, name, original in self._originals:
            if original is not MISSING:
                held[name] = original
            else:
                held.pop(name, None)
        for kind, attributes in self.classes.values():
            for name, value in attributes.items():
                if vars(kind).get(name) is not value:
                    with contextlib.suppress(AttributeError, TypeError):  # what cannot be set was not changed
                        setattr(kind, name, value)


def own_copy(value: Any) -> Any:
    """Return a copy of a value that functions may change; the value itself where there is nothing to be changed."""
    if isinstance(value, (*PLAIN, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)):
        return value
    if not _is_light(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # objects may refuse to be copied in any way
        return value


def _is_light(value: Any) -> bool:
    """Tell whether a value is small, and made of parts whose copies behave like them."""
    todo, size, parts = [value], 0, 0
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        parts += 1
        if isinstance(one, np.ndarray):
            size += one.nbytes
        elif isinstance(one, (bytes, bytearray, str)):
            size += len(one)
        elif isinstance(one, Mapping):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)) or type(one).__name__ == "deque":
            todo += list(one)
        elif isinstance(one, (*PLAIN, *GENERATORS, type, types.FunctionType)):
            continue
        elif is_library(type(one).__module__) and not _is_small_library_object(one):
            return False
        else:
            todo += list(own_attribute(one, "__dict__", {}).values())
        if size > MOST_BYTES or parts > MOST_PARTS:
            return False
    return True


def _is_small_library_object(value: Any) -> bool:
    """Tell whether an object of an installed package is one of Python's own data types (counters, paths, dates)."""
    return type(value).__module__.partition(".")[0] in ("collections", "datetime", "decimal", "itertools", "pathlib")
