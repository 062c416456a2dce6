"""A stable hash of what a plan computes: equal fingerprints mean equal data.

Functions count by their bytecode, constants, defaults, closure values and the globals that they use, not by their
place in a file; classes by their methods; functions and classes of installed packages by name and version.  Not seen
is what a function imports in its body, reads from files or the environment, or keeps in native code.
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np

from pecan_ray.by_value import SharedArray
from pecan_ray.errors import PlanError
from pecan_ray.library_versions import library_version
from pecan_ray.plan.operators import Join, Op, Plan
from pecan_ray.plan.own_attributes import own_attribute
from pecan_ray.plan.splits import Source


def fingerprint(plan: Plan, upto: str | None = None) -> str:
    """Return 32 hexadecimal digits that stand for the plan's data, up to and including the operator `upto`."""
    if upto is not None and upto not in {op.name for op in plan.all_ops()}:
        raise PlanError(f"fingerprint: no operator is named {upto!r}; there are {[op.name for op in plan.all_ops()]}.")
    return _digest("\0".join(_parts(plan, upto)))


def describe_plan(plan: Plan, *, strict: bool = False) -> tuple[tuple[str, str], ...]:
    """Return what a plan consists of, part by part: (what it is, a short hash of all that it computes).

    A source counts by its kind and settings, not by what lies in its files: that costs a listing.  With `strict` a
    value of which nothing but its type can be told raises PlanError: two different ones would look alike.
    """
    first = next(iter(plan.sources()))
    return (_describe_source(first, strict), *describe_operators(plan, strict=strict))


def describe_operators(plan: Plan, *, strict: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the same without the first source, whose data in memory is not hashed then."""
    head, parts = plan.head, list[tuple[str, str]]()
    if isinstance(head, Join):
        first, *others = head.inputs
        parts += describe_operators(first, strict=strict)
        parts += [part for branch in others for part in describe_plan(branch, strict=strict)]
        parts.append((f"join {head.kind}", _digest(_settings(head))[:12]))
    for op in plan.ops:
        text = f"{type(op).__name__}{canonical_text(_fields(op), strict=strict)}"
        parts.append((f"operator {op.name}", _digest(text)[:12]))
    return tuple(parts)


def _describe_source(source: Source, strict: bool) -> tuple[str, str]:
    return f"source {type(source).__name__}", _digest(canonical_text(source, strict=strict))[:12]


def canonical_text(value: Any, *, strict: bool = False) -> str:
    """Return a text for a value, such that values which behave alike have the same, in any process.

    With `strict` it raises PlanError for one that holds something of which no more than its type is known.
    """
    return CanonicalSerializer(strict=strict).to_text(value)


def _parts(plan: Plan, upto: str | None) -> list[str]:
    head = plan.head
    if isinstance(head, Join):
        for branch in head.inputs:
            if upto is not None and upto in {op.name for op in branch.all_ops()}:
                return _parts(branch, upto)
        parts = [f"{head.kind} {_settings(head)}"]
        parts += [f"({fingerprint(branch)})" for branch in head.inputs]
    else:
        parts = [f"{type(head).__name__} {head.identity()}"]
    for op in plan.ops:
        parts.append(f"{type(op).__name__}{canonical_text(_fields(op))}")
        if op.name == upto:
            break
    return parts


def _settings(join: Join) -> str:
    changing = "" if join.schedule is None else f" {join.schedule.by} {join.schedule.steps}"
    return f"{join.weights} {join.stop}{changing}"


def _fields(op: Op) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(op))
    return {name: getattr(op, name) for name in names if name not in op.excluded_fields}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


PRIMITIVE = (str, bytes, bytearray, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented))
CONSTRUCTED = {"__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__annotations__", "_abc_impl"}
"""What Python puts into a class beside its methods."""


LOOKUPS = frozenset({"getattr", "globals", "vars", "__dict__", "attrgetter", "import_module"})
"""Names by which a function asks for something whose name is a text."""
ADDED = ("__dataclass_", "__annotat", "__firstline", "__static", "__slotnames__")
"""Beginnings of names that Python puts into classes: the last one when an instance is copied or pickled first."""


class CanonicalSerializer:
    """Spells out one value; functions and classes that occur again are not walked through again."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._under_way: list[int] = []
        self._done: dict[int, tuple[object, str]] = {}
        """Text by id; the object is kept, so that its id stays its own."""

    def to_text(self, value: Any) -> str:
        """Return the text of a value."""
        if type(value) in PRIMITIVE:
            return f"{type(value).__name__}:{value!r}"
        known = self._done.get(id(value))
        if known is not None:
            return known[1]
        if id(value) in self._under_way:
            # How far up, since an id is another one in each process.
            return f"<{len(self._under_way) - self._under_way.index(id(value))} up>"
        self._under_way.append(id(value))
        try:
            text = self._composite(value)
        finally:
            self._under_way.pop()
        if isinstance(value, (types.FunctionType, type)):
            text = f"{type(value).__name__}:{_digest(text)}"
            self._done[id(value)] = value, text
        return text

    def _composite(self, value: Any) -> str:
        if type(value) is SharedArray:
            return self._array(value.array)  # its name tells the process that has made it
        if isinstance(value, (np.ndarray, np.generic, np.dtype)) and not isinstance(value, np.ma.MaskedArray):
            return self._array(value)
        if (tensor := tensor_text(value)) is not None:
            return tensor
        if type(value) in (list, tuple):
            return f"{type(value).__name__}[{self._several(value)}]"
        if type(value) in (set, frozenset):
            # Sets of texts have another order in each process.
            return f"{type(value).__name__}[{','.join(sorted(self.to_text(item) for item in value))}]"
        if type(value) in (dict, types.MappingProxyType):
            # Not sorted: the order of a dict is a part of how it behaves.
            return f"dict[{','.join(f'{self.to_text(k)}={self.to_text(v)}' for k, v in value.items())}]"
        return self._definition_or_instance(value)

    def _definition_or_instance(self, value: Any) -> str:
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.ModuleType):
            return _library_name(value.__name__, "")
        if isinstance(value, type):
            return self._class(value)
        return self._instance(value)

    def _several(self, values: Iterable[Any]) -> str:
        return ",".join(self.to_text(value) for value in values)

    def _array(self, value: Any) -> str:
        if isinstance(value, np.dtype):
            return f"dtype:{value!r}"
        if value.dtype.hasobject:
            return f"array:{value.shape}{self.to_text(np.ravel(value).tolist())}"
        return f"array:{value.dtype!r}{value.shape}{hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()}"

    def _code(self, code: types.CodeType) -> str:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars)
        # From Python 3.11 on handlers of exceptions stand beside the code.
        handlers: bytes = getattr(code, "co_exceptiontable", b"")
        return f"code:{shape}{code.co_code.hex()}{handlers.hex()}{names}{self.to_text(code.co_consts)}"

    def _function(self, fn: types.FunctionType) -> str:
        names = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        held = ({name: content_of(cell) for name, cell in names}, fn.__defaults__, fn.__kwdefaults__)
        if is_library_function(fn):
            return f"{_library_name(_module_of(fn), fn.__qualname__)}{self.to_text(held)}"
        # Of which module it takes a name is not known, so all names of attributes count for each of them.
        by_text = _texts_of_lookups(fn.__code__)
        attributes = by_text.union(*(code.co_names for code in nested_code(fn.__code__)))
        # Others are built in, or are not there until it runs.
        used = sorted(name for name in _global_names(fn.__code__) | by_text if name in fn.__globals__)
        text = ",".join(f"{name}={self._global(fn.__globals__[name], attributes)}" for name in used)
        return f"{self.to_text(fn.__code__)}{self.to_text(held)}[{text}]"

    def _global(self, value: Any, attributes: set[str]) -> str:
        """Spell out a global; of a module of the user's what the function may take from it."""
        if not isinstance(value, types.ModuleType) or is_library(value.__name__) or id(value) in self._under_way:
            return self.to_text(value)
        self._under_way.append(id(value))
        try:
            taken = sorted(name for name in attributes if name in vars(value))
            text = ",".join(f"{name}={self._global(vars(value)[name], attributes)}" for name in taken)
        finally:
            self._under_way.pop()
        return f"module:{value.__name__}[{text}]"

    def _class(self, kind: type) -> str:
        name = _library_name(kind.__module__, kind.__qualname__)
        if is_library_class(kind):
            return name
        members = {
            name: member
            for name, member in sorted(vars(kind).items())
            if name not in CONSTRUCTED and not name.startswith(ADDED)
        }
        return f"{kind.__qualname__}({self._several(kind.__bases__)}){self.to_text(members)}"

    def _instance(self, value: Any) -> str:
        kind = self.to_text(type(value))
        if isinstance(value, (staticmethod, classmethod)):
            return f"{kind}{self.to_text(value.__func__)}"
        if isinstance(value, property):
            return f"{kind}{self._several((value.fget, value.fset))}"
        if isinstance(value, types.MethodType):
            return f"{kind}{self.to_text(value.__func__)}{self.to_text(value.__self__)}"
        if isinstance(value, functools.partial):
            return f"{kind}{self._several((value.func, value.args, value.keywords))}"
        if isinstance(value, types.BuiltinFunctionType):
            # A method of an object, such as `table.get`, depends on the object.
            owner = value.__self__
            of = "" if owner is None or isinstance(owner, types.ModuleType) else self.to_text(owner)
            return f"{_library_name(value.__module__ or '', value.__qualname__)}{of}"
        if isinstance(value, np.ufunc):
            return f"{kind}{value.__name__}"
        wrapped = own_attribute(value, "__wrapped__")
        # An object of the user's that wraps a function has its own settings beside it.
        if wrapped is not None and is_library_class(type(value)):
            return f"{kind}{self.to_text(wrapped)}"
        return f"{kind}{self._state(value)}"

    def _state(self, value: Any) -> str:
        """Spell out what pickle would keep of an object, and of one that it refuses its attributes."""
        try:
            # As pickle does: what is registered for the type comes first.
            registered = copyreg.dispatch_table.get(type(value))
            reduced = registered(value) if registered else value.__reduce_ex__(4)
        except Exception as error:
            if self._strict:
                raise PlanError(
                    f"nothing stands for a {type(value).__qualname__} that the pipeline uses: {error}"
                ) from error
            return self.to_text(own_attribute(value, "__dict__", {}))
        # The name of the one object of its kind.
        if isinstance(reduced, str):
            return reduced
        # Pickle gives what lists and dicts hold as iterators, of which nothing but their type could be told.
        return self._several(list(part) if isinstance(part, Iterator) else part for part in reduced)


def tensor_text(value: Any) -> str | None:
    """Return a text for the numbers of a tensor of PyTorch, whose pickle is another each time; None: it is none."""
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    if torch is None or kind is None or type(value) is not kind or value.device.type == "meta":
        return None
    if value.layout != torch.strided or value.is_quantized:
        return None
    held = (
        value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    )
    return f"tensor:{value.dtype}{tuple(value.shape)}{hashlib.blake2b(held, digest_size=16).hexdigest()}"


def content_of(cell: types.CellType) -> Any:
    """Return what a variable of an enclosing function holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return NotImplemented  # a variable that is assigned later


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and that of the functions in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested_code(const)


def _texts_of_lookups(code: types.CodeType) -> set[str]:
    """Return the texts in a function that looks something up by its name: `getattr(settings, "REDACT")`."""
    codes = list(nested_code(code))
    if not any(LOOKUPS.intersection(one.co_names) for one in codes):
        return set()
    return {text for one in codes for text in one.co_consts if isinstance(text, str)}


def _global_names(code: types.CodeType) -> set[str]:
    return {
        str(step.argval)
        for inner in nested_code(code)
        for step in dis.get_instructions(inner)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def is_library(module: str | None) -> bool:
    """Tell whether a module belongs to Python, to pecan_ray or to an installed package."""
    top = (module or "").partition(".")[0]
    # The user's program, also in a process whose own program is a library's, as in Ray's workers.
    if top in ("__main__", "__mp_main__"):
        return False
    if top == "pecan_ray" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(PurePath(file).parts)


def is_library_function(fn: types.FunctionType) -> bool:
    """Tell whether a function's code belongs to a library; `functools.wraps` gives a wrapper another one's module."""
    return is_library(_module_of(fn))


def is_library_class(kind: type) -> bool:
    """Tell whether a class belongs to a library; `dataclasses.make_dataclass` makes ones that only seem to."""
    own = (member for member in vars(kind).values() if isinstance(member, types.FunctionType))
    return is_library(kind.__module__) and all(map(is_library_function, own))


def _module_of(fn: types.FunctionType) -> str:
    """Return the module that a function's code is of."""
    name = fn.__globals__.get("__name__")
    # Python runs what it writes itself in names of its own, or in none.
    written = not isinstance(name, str) or name.startswith("namedtuple_")
    return str(fn.__module__ or "") if written else str(name)


def _library_name(module: str, name: str) -> str:
    return f"{module}.{name}@{library_version(module)}"
