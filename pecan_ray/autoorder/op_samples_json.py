"""What AutoOrder has found as JSON, and back: frozen values of this package and of `pecan_ray.reorder`.

Made from the values themselves, so that a new fact needs nothing here.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import types
from collections.abc import Mapping
from typing import Any, TypeAlias

FactJson: TypeAlias = Any
"""What `json` reads and writes."""

PACKAGES = ("pecan_ray.autoorder.", "pecan_ray.reorder.")
"""Only classes of these are made again."""


def to_json(value: Any) -> FactJson:
    """Return a fact as a value that JSON has; raises TypeError for what is none."""
    if isinstance(value, (bool, str, types.NoneType)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(value)}
    if _is_serializable(type(value)):
        return {"is": f"{type(value).__module__}.{type(value).__qualname__}", **_fields(value)}
    return _container_to_json(value)


def _container_to_json(value: Any) -> FactJson:
    if isinstance(value, (tuple, list)):
        return [to_json(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return {"set": [to_json(one) for one in sorted(value)]}
    if isinstance(value, Mapping):
        return {"dict": [[to_json(name), to_json(one)] for name, one in value.items()]}
    raise TypeError(f"{type(value).__name__} is no fact that can be written")


def from_json(written: FactJson) -> Any:
    """Return the fact that was written.

    Raises KeyError, TypeError, ValueError, AttributeError, ImportError or PlanError for what another version wrote.
    """
    if isinstance(written, list):
        return tuple(from_json(one) for one in written)
    if not isinstance(written, dict):
        return written
    if "float" in written:
        return float(written["float"])
    if "set" in written:
        return frozenset(from_json(one) for one in written["set"])
    if "dict" in written:
        return {from_json(name): from_json(one) for name, one in written["dict"]}
    kind = _class(written["is"])
    return kind(**{name: from_json(one) for name, one in written.items() if name != "is"})


def _is_serializable(kind: type) -> bool:
    frozen = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    return frozen and f"{kind.__module__}.".startswith(PACKAGES)


def _fields(value: Any) -> dict[str, FactJson]:
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
    else:
        names = list(value._fields)
    return {name: to_json(getattr(value, name)) for name in names}


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    if not f"{module}.".startswith(PACKAGES):
        raise ValueError(f"{path} is no fact")
    kind = getattr(importlib.import_module(module), name)
    if not (isinstance(kind, type) and _is_serializable(kind)):
        raise ValueError(f"{path} is no fact")
    return kind
