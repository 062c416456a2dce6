"""A stable hash of what a plan computes: equal fingerprints mean equal data.

Functions count by their bytecode, constants, defaults and closure values, not by their place in a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from typing import Any

import numpy as np

from pecan_ray.errors import PlanError
from pecan_ray.plan.operators import Join, Plan


def fingerprint(plan: Plan, upto: str | None = None) -> str:
    """Return 32 hexadecimal digits that stand for the plan's data, up to and including the operator `upto`."""
    if upto is not None and upto not in {op.name for op in plan.all_ops()}:
        raise PlanError(f"fingerprint: no operator is named {upto!r}; there are {[op.name for op in plan.all_ops()]}.")
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(plan, upto):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(plan: Plan, upto: str | None) -> list[str]:
    head = plan.head
    if isinstance(head, Join):
        for branch in head.inputs:
            if upto is not None and upto in {op.name for op in branch.all_ops()}:
                return _parts(branch, upto)
        parts = [f"{head.kind} {head.weights} {head.stop}"]
        parts += [f"({fingerprint(branch)})" for branch in head.inputs]
    else:
        parts = [f"{type(head).__name__} {head.identity()}"]
    for op in plan.ops:
        parts.append(_describe(op, set()))
        if op.name == upto:
            break
    return parts


def _describe(value: Any, seen: set[int]) -> str:
    """Spell out a value so that equal behaviour gives equal text, in any process."""
    if id(value) in seen:
        return "<cycle>"
    if isinstance(value, (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))):
        return f"{type(value).__name__}:{value!r}"
    inner = seen | {id(value)}
    if isinstance(value, np.ndarray):
        content = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
        return f"array:{value.dtype.str}{value.shape}{content}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{','.join(_describe(item, inner) for item in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"set[{','.join(sorted(_describe(item, inner) for item in value))}]"
    if isinstance(value, dict):
        return f"dict[{','.join(f'{_describe(k, inner)}={_describe(v, inner)}' for k, v in value.items())}]"
    if isinstance(value, types.CodeType):
        return f"code:{value.co_code.hex()}{value.co_names}{_describe(value.co_consts, inner)}{value.co_varnames}"
    if isinstance(value, types.FunctionType):
        return _describe_function(value, inner)
    if isinstance(value, types.ModuleType):
        return f"module:{value.__name__}"
    if isinstance(value, (type, types.BuiltinFunctionType, np.ufunc)):
        return f"name:{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(value))}"
    if isinstance(value, types.MethodType):
        return f"method:{_describe(value.__func__, inner)}{_describe(value.__self__, inner)}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return f"{kind}{_describe(fields, inner)}"
    return f"{kind}{_describe(getattr(value, '__dict__', {}), inner)}"


def _describe_function(fn: types.FunctionType, seen: set[int]) -> str:
    cells = {
        name: cell.cell_contents for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False)
    }
    used = {name: fn.__globals__[name] for name in _names(fn.__code__) if name in fn.__globals__}
    held = {"closure": cells, "globals": used, "defaults": fn.__defaults__, "keywords": fn.__kwdefaults__}
    return f"function:{_describe(fn.__code__, seen)}{_describe(held, seen)}"


def _names(code: types.CodeType) -> list[str]:
    nested = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return sorted({*code.co_names, *(name for inner in nested for name in _names(inner))})
