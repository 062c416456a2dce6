"""Which functions remember something from call to call, by their code: a quota, a schedule, a set of what was seen.

What such a function makes of an element depends on the elements before it, also where a sample is too short to show
that.  Followed is what lives longer than a call (what the function names, its object, its class, its defaults) through
the function's code and that of the user's other functions that it names.  Library code counts as remembering nothing,
and so does `functools.lru_cache`.
"""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pecan_ray.engines.python.held_stack import CALLS, PRECALL, HeldStack, effect_of, is_in_place
from pecan_ray.engines.python.long_lived import (
    DEEPEST,
    IMMUTABLE,
    LIVES,
    NOT_CALLED,
    PART_FUNCTIONS,
    PARTS,
    FunctionMemory,
    LongLived,
    bound_function,
    changes_in_place,
    contents_of,
    functions_of,
    held_arguments,
    imported,
    is_data,
    is_function,
    is_iterator,
    is_one_of,
    may_mutate,
    own_classes,
    parts_of,
    static_attribute,
    written_by,
)
from pecan_ray.plan.fingerprint import content_of, is_library_class, is_library_function
from pecan_ray.plan.operators import ElementOp, Filter, FlatMap


def memory_of(fn: Any) -> FunctionMemory:
    """Return what a function of the user's remembers."""
    walk = _MemoryWalk()
    walk.enter(fn)
    while walk.left:
        walk.left.pop()()
    return walk.memory


def why_apart(first: ElementOp, second: ElementOp, *, meet: bool, skips: bool) -> str:
    """Return why two operators are never exchanged for what one of them remembers; empty if they may be.

    `meet`: one of them changes columns of the other one.  `skips`: elements that fail are left out, so that any
    operator may decide which ones there are.
    """
    memories = memory_of(first.fn), memory_of(second.fn)
    if how := memories[0].shared(memories[1]):
        return f"{first.name!r} and {second.name!r} use what one of them changes from call to call: {how}"
    for one, other, memory in ((first, second, memories[0]), (second, first, memories[1])):
        decides = skips or isinstance(other, (Filter, FlatMap))
        if (how := memory.why()) and (decides or meet):
            does = "decides which elements it is given" if decides else "works on the same columns"
            return f"{one.name!r} remembers something from call to call ({how}), and {other.name!r} {does}"
    return ""


DEEPEST_CALL = 20
"""Calls within each other that are followed at once, for what they return; what is deeper is looked at later."""


class _MemoryWalk:
    """Follows what lives longer than a call."""

    def __init__(self) -> None:
        self.memory = FunctionMemory()
        self.left: list[Callable[[], None]] = []
        """What is still to be looked at."""
        self._asked: dict[object, object] = {}
        self._returned: dict[object, LongLived | None] = {}
        self._depth = 0

    def enter(self, value: Any, depth: int = 0) -> None:
        """Look at what is held, and may be called: the user's functions and objects, wherever they are."""
        if self._is_known(("enter", id(value)), value) or depth > DEEPEST:
            return
        if isinstance(value, functools.partial):
            self.function(value.func, [LongLived(one) for one in value.args], named=value.keywords)
        elif isinstance(value, (types.FunctionType, types.MethodType)):
            self.function(value, [])
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self.method_named(LongLived(value.__self__), value.__name__)
        elif (wrapped := static_attribute(value, "__wrapped__")) is not None:
            self.enter(wrapped, depth)
            self._enter_object(value, DEEPEST)
        elif not isinstance(value, (type, types.ModuleType, np.ndarray)):
            self._enter_object(value, depth)

    def _enter_object(self, value: Any, depth: int) -> None:
        for one in contents_of(value):
            self.enter(one, depth + 1)
        if not is_library_class(type(value)):
            # A module of PyTorch is called by its `forward`.
            names = {name for kind in own_classes(value) for name in vars(kind)}
            special = {name for name in names if name.startswith("__") or name == "forward"}
            for name in special - NOT_CALLED:
                self.method(value, name)
        elif isinstance(own := static_attribute(value, "__dict__"), dict):
            for one in own.values():
                self.enter(one, depth + 1)

    def method_named(self, owner: LongLived, name: str) -> None:
        """Note a method of what is held, where it changes that by its name."""
        if may_mutate(owner, name):
            self.change_held(owner, f"it calls {name!r} of a")
        for one in parts_of(owner):
            self.method(one, name)

    def method(self, value: Any, name: str) -> None:
        """Look at a method of an object of the user's, and at those of that name that it may call by `super()`."""
        for kind in own_classes(value):
            member = vars(kind).get(name)
            if isinstance(member, (staticmethod, classmethod)):
                self.function(bound_function(value, member), [])
            elif functions := functions_of(member):
                for one in functions:
                    self.function(one, [LongLived(value)])
            else:
                self.enter(member)

    def function(self, fn: Any, given: list[LongLived | None], named: Mapping[str, Any] | None = None) -> None:
        """Look at a function, later, with what it is given, of which None does not live longer than a call."""
        self.left.append(lambda: self.called(fn, given, named or {}) and None)

    def called(self, fn: Any, given: list[LongLived | None], named: Mapping[str, Any]) -> LongLived | None:
        """Look at a function with what it is given; return what it returns that lives longer than a call."""
        if isinstance(fn, types.MethodType):
            fn, given = fn.__func__, [LongLived(fn.__self__), *given]
        if not isinstance(fn, types.FunctionType):
            self.enter(fn)
            return None
        key = _call_key(fn, given, named)
        if self._is_known(key, (fn, given, named)):
            return self._returned.get(key)
        cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        if is_library_function(fn) or fn.__code__.co_flags & inspect.CO_VARARGS:
            # What wraps a function hands on what it is given.
            for cell in cells.values():
                self.function(content_of(cell), given, named)
        if is_library_function(fn):
            return None
        if self._depth == DEEPEST_CALL:
            del self._asked[key]
            self.function(fn, given, named)
            return None
        self._returned[key] = self._walk(fn, cells, held_arguments(fn, given, named))
        return self._returned[key]

    def _walk(
        self, fn: types.FunctionType, cells: Mapping[str, types.CellType], arguments: dict[str, LongLived]
    ) -> LongLived | None:
        """Go through a function's code with what its variables hold that lives longer than a call."""
        variables = {name: LongLived(content_of(cell)) for name, cell in cells.items()} | arguments
        for one in variables.values():
            self.use(one)
        self._depth += 1
        returned = _CodeWalk(self, fn.__globals__, cells, variables).run(fn.__code__)
        self._depth -= 1
        return returned

    def use(self, one: LongLived | None) -> None:
        """Note that something is used."""
        if one is not None and one.known and not isinstance(one.value, IMMUTABLE):
            self.memory.used[id(one.value)] = one.value
            self.enter(one.value)

    def change(self, key: object, kept: Any, how: str) -> None:
        """Note that something is changed."""
        self._asked[key] = kept
        self.memory.changed.setdefault(key, how)

    def change_held(self, held: LongLived, what: str) -> None:
        """Note that an object is changed."""
        value = held.value
        if isinstance(value, IMMUTABLE):
            return
        kind = value.__name__ if isinstance(value, (type, types.ModuleType)) else type(value).__name__
        self.change(id(value), value, f"{what} {kind}, {LIVES}")

    def _is_known(self, key: object, kept: object) -> bool:
        known = key in self._asked
        self._asked[key] = kept
        return known


def _call_key(fn: Any, given: Sequence[LongLived | None], named: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Return by what a call is known: the function, and what it is given that outlives the call."""
    return (id(fn), *(one and id(one.value) for one in given), *(id(one) for one in named.values()))


class _CodeWalk:
    """Runs through the steps of a function's code with what lies on its stack, as far as that outlives a call."""

    def __init__(
        self,
        walk: _MemoryWalk,
        names: dict[str, Any],
        cells: Mapping[str, types.CellType],
        variables: Mapping[str, LongLived],
    ) -> None:
        self._walk, self._globals, self._cells = walk, names, cells
        self._variables: dict[str, LongLived] = dict(variables)
        self._stack = HeldStack()
        self._at_jump: dict[int, tuple[HeldStack, dict[str, LongLived]]] = {}
        """What there was where a jump comes from, by where it goes."""
        self._constants: tuple[Any, ...] = ()
        self._last_constants: tuple[Any, ...] = ()
        self._keywords: tuple[str, ...] = ()
        self._result: LongLived | None = None

    def run(self, code: types.CodeType) -> LongLived | None:
        """Look at all of it, and at the functions in it; return what it returns that lives longer than a call."""
        self._constants = code.co_consts
        returned = None
        for step in dis.get_instructions(code):
            if step.offset in self._at_jump:
                stack, there = self._at_jump[step.offset]
                self._stack = stack.joined(self._stack)
                self._variables = there | self._variables
            before = HeldStack(self._stack)
            self._step(step)
            if (step.opcode in dis.hasjrel or step.opcode in dis.hasjabs) and step.argval > step.offset:
                # `a or b` leaves a where it jumps.
                stack = before if step.opname.endswith("_OR_POP") else HeldStack(self._stack)
                self._at_jump.setdefault(step.argval, (stack, dict(self._variables)))
            if step.opname == "RETURN_VALUE":
                returned = returned or before.top()
        for one in code.co_consts:
            if isinstance(one, types.CodeType):
                _CodeWalk(self._walk, self._globals, self._cells, self._variables).run(one)
        return returned

    def _step(self, step: dis.Instruction) -> None:
        name = step.opname
        if name.startswith(("STORE_", "DELETE_")):
            self._store(step)
        elif name.startswith(("LOAD_", "KW_NAMES")):
            self._load(step)
        elif name in ("COPY", "SWAP") or name.startswith(("DUP_TOP", "ROT_")):
            self._stack.rearrange(name, step.arg or 0)
        elif name in CALLS:
            self._call(step)
        elif name in ("GET_ITER", "FOR_ITER"):
            self._take_from(self._stack.top())
            self._stack += [self._stack.top()] * effect_of(step)
        elif name.startswith("IMPORT_"):
            self._import(step)
        else:
            self._compute(step)

    def _compute(self, step: dis.Instruction) -> None:
        """Take any other step: a container may be changed in place by an operator, or a part of it taken."""
        held, last = self._stack.top(2), self._stack.top()
        if held is not None and is_in_place(step) and changes_in_place(held):
            self._walk.change_held(held, "it changes a")
        if step.opname == "BUILD_TUPLE":
            held = next((one for one in self._stack[-(step.arg or 0) :] if one is not None), None)
            self._stack.replace(step)
            self._leave_part_of(held)
        elif step.opname in ("BEFORE_WITH", "SETUP_WITH"):
            self._stack.replace(step)
            self._enter_with(last)
        elif step.opname in ("BINARY_SUBSCR", "BINARY_SLICE"):
            self._stack.replace(step)
            self._take_part(held)
        else:
            self._stack.replace(step)

    def _leave_part_of(self, held: LongLived | None) -> None:
        """Let what is on top of the stack be something of an object, if there is one."""
        if held is not None:
            self._stack[-1:] = [held._replace(known=False)]

    def _enter_with(self, manager: LongLived | None) -> None:
        if manager is None:
            return
        for method in ("__enter__", "__exit__"):
            self._walk.method_named(manager, method)
            self._walk.method(manager.value, method)
        self._leave_part_of(manager)

    def _take_part(self, held: LongLived | None) -> None:
        # Of a class it is another class: `dict[str, int]`.
        if held is None or isinstance(held.value, type):
            return
        if held.known and isinstance(held.value, collections.defaultdict):
            self._walk.change_held(held, "it asks for what may be missing of a")
        self._leave_part_of(held)

    def _import(self, step: dis.Instruction) -> None:
        """Take an import: what it gives lives longer than a call, as if it stood outside of the function."""
        if step.opname == "IMPORT_FROM":
            module = self._stack.top()
            self._stack.append(None if module is None else self._attribute(module, str(step.argval), method=False))
            return
        module = imported(self._globals, step.argval, *self._last_constants)
        self._stack.replace(step, None if module is None else self._used(LongLived(module)))

    def _take_from(self, held: LongLived | None) -> None:
        if held is not None and is_iterator(held):
            self._walk.change_held(held, "it takes from a")

    def _store(self, step: dis.Instruction) -> None:
        name = step.opname
        if name.endswith(("_ATTR", "_SUBSCR", "_SLICE")):
            held = self._stack.top({"_ATTR": 1, "UBSCR": 2, "SLICE": 3}[name[-5:]])
            self._stack.replace(step)
            what = f"it sets {step.argval!r} of a" if name.endswith("_ATTR") else "it writes into a"
            if held is not None:
                self._walk.change_held(held, what)
        elif name.endswith("_GLOBAL"):
            self._stack.replace(step)
            key = (id(self._globals), step.argval)
            self._walk.change(key, self._globals, f"it sets {step.argval!r}, {LIVES}")
        elif name.endswith("_DEREF") and step.argval in self._cells:
            self._stack.replace(step)
            cell = self._cells[step.argval]
            self._walk.change(id(cell), cell, f"it sets {step.argval!r}, {LIVES}")
        else:
            value = self._stack.top() if name.startswith("STORE_") else None
            self._stack.replace(step)
            self._variables.pop(str(step.argval), None)
            if value is not None:
                self._variables[str(step.argval)] = value

    def _load(self, step: dis.Instruction) -> None:
        name, stack = step.opname, self._stack
        if name == "KW_NAMES":
            self._keywords = self._constants[step.arg or 0]
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = stack.pop() if stack else None
            method = effect_of(step) > 0
            part = None if owner is None else self._attribute(owner, str(step.argval), method=method)
            stack += [part, owner] if method else [part]
        elif name in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = self._globals.get(step.argval, vars(builtins).get(step.argval))
            self._walk.memory.used[id(self._globals), step.argval] = value
            # Below it is a place for the object whose method it could be.
            stack += [None] * (effect_of(step) - 1) + [self._used(LongLived(value))]
        elif name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            if step.argval in self._cells:
                self._walk.memory.used[id(self._cells[step.argval])] = self._cells[step.argval]
            stack.append(self._variables.get(str(step.argval)))
        else:
            if name == "LOAD_CONST":
                self._last_constants = (*self._last_constants[-1:], step.argval)
            stack.replace(step)

    def _used(self, held: LongLived) -> LongLived:
        self._walk.use(held)
        return held

    def _attribute(self, owner: LongLived, name: str, *, method: bool) -> LongLived | None:
        """Return what an attribute holds; of a method what it returns, if that is a part of its object."""
        value, part = owner.value, owner._replace(known=False)
        self._walk.method_named(owner, name)
        found = static_attribute(value, name) if owner.known else None
        if isinstance(value, types.ModuleType) or isinstance(found, types.BuiltinFunctionType):
            return None if found is None else self._used(LongLived(found))
        bound = bound_function(value, found)
        if bound is None and is_data(found):
            return self._used(LongLived(found))
        if owner.known:
            self._walk.method(value, name)
        if bound is not None:
            return LongLived(bound)
        return part if not method or isinstance(found, property) or name in PARTS else None

    def _call(self, step: dis.Instruction) -> None:
        if step.opname == "CALL" and PRECALL:
            self._stack.replace(step)
            self._stack[-1:] = [self._result]
            return
        count = step.arg or 0
        given, named = self._stack[len(self._stack) - count :], dict[str, LongLived | None]()
        if self._keywords:
            named = dict(zip(self._keywords, given[-len(self._keywords) :], strict=False))
            given, self._keywords = given[: -len(named)], ()
        first, second = self._stack.top(count + 2), self._stack.top(count + 1)
        callee = first if first is not None and (not first.known or is_function(first.value)) else second
        self._result = None if callee is None else self._returned(callee, given, named, is_method=callee is first)
        self._stack.replace(step)
        if step.opname != "PRECALL":
            self._stack[-1:] = [self._result]

    def _returned(
        self, callee: LongLived, given: list[LongLived | None], named: dict[str, LongLived | None], *, is_method: bool
    ) -> LongLived | None:
        """Return what a call returns that outlives it, and look at what it changes."""
        value = callee.value
        if not callee.known:
            # A part of its object; of a function that is found in a container nothing is known.
            return callee if is_method else None
        if (out := named.get("out")) is not None:
            self._walk.change_held(out, "it writes into a")
        if (written := written_by(value, given)) is not None:
            self._walk.change_held(written, f"it calls {value.__name__!r} with a")
        for one in given:
            self._take_from(one)
        if is_one_of(value, PART_FUNCTIONS):
            return self._part_of(value, given)
        if isinstance(value, (types.FunctionType, types.MethodType)):
            return self._walk.called(value, given, {name: one.value for name, one in named.items() if one is not None})
        return LongLived(self._globals) if value is globals else None

    def _part_of(self, function: Any, given: list[LongLived | None]) -> LongLived | None:
        for held in filter(None, given):
            of_type = held.known and function is type
            return self._used(LongLived(type(held.value))) if of_type else held._replace(known=False)
        return None
