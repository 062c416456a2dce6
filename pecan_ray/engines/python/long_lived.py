"""What lives longer than a call, and the steps of Python and the functions that change it (`remembering`)."""

from __future__ import annotations

import bisect
import collections
import contextvars
import functools
import heapq
import importlib.util
import inspect
import io
import itertools
import operator
import queue
import random
import sys
import threading
import types
from collections import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pecan_ray.plan.fingerprint import is_library_class, is_library_function

MUTATOR_NAMES = (
    "acquire add append appendleft clear difference_update discard extend extendleft fill get_nowait insert "
    "intersection_update pop popitem popleft put put_nowait release remove reverse rotate send set setdefault sort "
    "subtract symmetric_difference_update update write writelines __next__ __setitem__ __setattr__ __delitem__ __iadd__"
)
MUTATORS = frozenset(MUTATOR_NAMES.split())
"""Methods that change a container, or what else has them."""
WRITERS: tuple[Any, ...] = (next, setattr, delattr, operator.setitem, operator.delitem, operator.iadd, random.shuffle)
WRITERS += (heapq.heappush, heapq.heappop, heapq.heappushpop, heapq.heapreplace, bisect.insort_left, bisect.insort)
WRITERS += (np.copyto, np.put, np.place, np.putmask, np.put_along_axis, np.fill_diagonal, np.random.shuffle)
"""Functions that change their first argument."""
PARTS = frozenset({"get", "values", "items", "setdefault", "__getitem__", "__dict__"})
PART_FUNCTIONS = (type, getattr, vars, iter, enumerate, zip, reversed)
"""What returns a part of what it is given, or all of it."""
CONTAINERS = (list, dict, set, collections.deque, bytearray, np.ndarray)
MUTABLE: tuple[Any, ...] = (
    *CONTAINERS,
    abc.MutableSequence,
    abc.MutableMapping,
    abc.MutableSet,
    queue.Queue,
    queue.SimpleQueue,
)
MUTABLE += (abc.Iterator, contextvars.ContextVar, threading.Semaphore, threading.Event, io.IOBase)
NOT_CALLED_NAMES = (
    "__init__ __new__ __post_init__ __init_subclass__ __set_name__ __getstate__ __setstate__ __reduce__ "
    "__reduce_ex__ __getnewargs__ __del__ __repr__ __str__ __enter__ __exit__ __setitem__ __delitem__"
)
NOT_CALLED = frozenset(NOT_CALLED_NAMES.split())
"""Special methods that run when an object is made, sent or shown, and not in a call."""
DEEPEST = 4
"""So far what library objects hold is searched for functions of the user's, as `Compose([mine, ...])` does."""
LONGEST = 1000
"""Entries of a container that are searched for those: pipelines of libraries have some dozens."""
IMMUTABLE = (type(None), str, bytes, int, float, complex, np.generic)
LIVES = "which lives longer than a call"


class LongLived(NamedTuple):
    """Something that lives longer than a call."""

    value: Any
    """It, or the nearest thing known that holds it."""
    known: bool = True


@dataclass
class FunctionMemory:
    """What a function remembers from call to call."""

    changed: dict[object, str] = field(default_factory=dict)
    """How it changes what lives longer than a call, by its identity."""
    used: dict[object, Any] = field(default_factory=dict)
    """What it uses of that, by its identity; the objects are kept, so that their ids stay their own."""

    def why(self) -> str:
        """Return what it changes; empty where it remembers nothing."""
        return next(iter(self.changed.values()), "")

    def shared(self, other: FunctionMemory) -> str:
        """Return what one of two functions changes and the other one uses; empty where there is nothing."""
        for one, two in ((self, other), (other, self)):
            for key, how in one.changed.items():
                if key in two.used or key in two.changed:
                    return how
        return ""


BUILTIN_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
"""What `list.append` and `dict.__setitem__` are."""


def is_function(value: Any) -> bool:
    """Tell whether it is a function or method, and no class or object."""
    kinds = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, *BUILTIN_METHODS)
    return isinstance(value, kinds)


def bound_function(value: Any, member: Any) -> Any:
    """Return the function that an attribute of an object or class is in a call; None if it is none."""
    if isinstance(member, staticmethod):
        return member.__func__
    if isinstance(member, classmethod):
        return types.MethodType(member.__func__, value if isinstance(value, type) else type(value))
    if isinstance(member, types.FunctionType):
        own = isinstance(value, type) or inspect.getattr_static(type(value), member.__name__, None) is not member
        return member if own else types.MethodType(member, value)
    if isinstance(value, np.ufunc):
        return getattr(value, member.__name__, None) if isinstance(member, types.MethodDescriptorType) else None
    return member if isinstance(value, type) and isinstance(member, BUILTIN_METHODS) else None


def functions_of(member: Any) -> list[types.FunctionType]:
    """Return the functions that an attribute of a class calls with the object; none if it is no method."""
    if isinstance(member, functools.singledispatchmethod):
        return [one for one in member.dispatcher.registry.values() if isinstance(one, types.FunctionType)]
    one = {property: "fget", functools.partialmethod: "func"}.get(type(member))
    found = member if one is None else getattr(member, one)
    return [found] if isinstance(found, types.FunctionType) else []


def imported(names: Mapping[str, Any], name: str, level: int, several: object) -> Any:
    """Return the module that an import in a function gives; None if nothing has imported it so far."""
    if level:
        name = importlib.util.resolve_name("." * level + name, str(names.get("__package__") or names.get("__name__")))
    return sys.modules.get(name if several else name.partition(".")[0])


def is_data(value: Any) -> bool:
    """Tell whether an attribute is what an object or a class holds, and no method or descriptor."""
    return value is not None and not inspect.isdatadescriptor(value) and not inspect.ismethoddescriptor(value)


def is_one_of(value: Any, several: Iterable[Any]) -> bool:
    """Tell whether it is one of several objects, which may not be compared."""
    return any(value is one for one in several)


def may_mutate(owner: LongLived, name: str) -> bool:
    """Tell whether a method of this name changes its object, of a class that is not the user's."""
    value = owner.value
    # Of PyTorch methods that write into their tensor end so.
    in_place = name.endswith("_") and not name.startswith("_") and has_tensors(value)
    if not owner.known:
        return in_place or name in MUTATORS
    found = static_attribute(value, name)
    # Methods of the user's are looked at by their code.
    if isinstance(value, types.ModuleType) or (
        isinstance(found, types.FunctionType) and not is_library_function(found)
    ):
        return False
    return in_place or (isinstance(value, MUTABLE) and name in MUTATORS)


def has_tensors(value: Any) -> bool:
    """Tell whether it is a tensor of PyTorch, or a module, which has some."""
    return any(static_attribute(value, one) is not None for one in ("data_ptr", "register_buffer"))


def changes_in_place(held: LongLived) -> bool:
    """Tell whether an operator such as `+=` changes what is held, and makes no new value."""
    return isinstance(held.value, CONTAINERS if held.known else np.ndarray) or has_tensors(held.value)


def written_by(function: Any, given: Sequence[LongLived | None]) -> LongLived | None:
    """Return which of its arguments a function of a library writes into."""
    place = 0 if is_one_of(function, WRITERS) or _is_unbound_mutator(function) else len(given)
    if isinstance(function, np.ufunc):
        place = function.nin  # what follows is where results go
    held = given[place] if place < len(given) else None
    # `iter` makes another iterator each time.
    return None if function is next and held is not None and not held.known else held


def _is_unbound_mutator(function: Any) -> bool:
    """Tell whether it is `list.append`, or `np.add.at`."""
    if isinstance(function, BUILTIN_METHODS):
        return function.__name__ in MUTATORS
    return isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, np.ufunc)


def is_iterator(held: LongLived | None) -> bool:
    """Tell whether something is held of which each call takes what comes next."""
    return held is not None and held.known and isinstance(held.value, abc.Iterator)


def parts_of(owner: LongLived) -> Iterator[Any]:
    """Yield the objects of the user's that a part of a container may be."""
    return iter(()) if owner.known else _objects_in(owner.value, 0)


def contents_of(value: Any) -> list[Any]:
    """Return what a container holds, and what makes its values; nothing of anything else."""
    if not isinstance(value, (list, tuple, set, dict)):
        return []
    several = value.values() if isinstance(value, dict) else value
    return [*itertools.islice(several, LONGEST), static_attribute(value, "default_factory")]


def _objects_in(value: Any, depth: int) -> Iterator[Any]:
    if depth <= DEEPEST and (several := contents_of(value)):
        for one in several:
            yield from _objects_in(one, depth + 1)
    elif depth and not isinstance(value, type) and not is_library_class(type(value)):
        yield value


def own_classes(value: Any) -> Iterable[type]:
    """Yield the classes of an object, or of a class, that are the user's."""
    kind = value if isinstance(value, type) else type(value)
    return (one for one in kind.__mro__ if not is_library_class(one))


def static_attribute(value: Any, name: str) -> Any:
    """Return an attribute without running anything of the object's; None where there is none."""
    if name in ("__dict__", "__class__"):
        return getattr(value, name, None)
    if isinstance(value, types.ModuleType):
        return vars(value).get(name)
    return inspect.getattr_static(value, name, None)


def held_arguments(
    fn: types.FunctionType, given: list[LongLived | None], named: Mapping[str, Any]
) -> dict[str, LongLived]:
    """Return what a function's arguments hold that lives longer than a call: what it is given, and its defaults."""
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    defaults = dict(zip(names[::-1], (fn.__defaults__ or ())[::-1], strict=False)) | (fn.__kwdefaults__ or {})
    held = {name: LongLived(value) for name, value in {**defaults, **named}.items()}
    return held | {name: one for name, one in zip(names, given, strict=False) if one is not None}
