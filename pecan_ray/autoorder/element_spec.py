"""What is told from the value of a column: its bytes, its kind, its number of dimensions, whether two are equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.foreign import REGISTERED, as_array, is_picture, is_tensor, notes_of, type_name

Kind: TypeAlias = Literal["number", "text", "picture", "other"]
Shape: TypeAlias = tuple[int | None, ...]


def kind_of(value: Any) -> Kind:
    """Return whether a value is made of numbers, of text or bytes, is an image of Pillow, or something else."""
    if isinstance(value, (bytes, bytearray, str)):
        return "text"
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return "text"
    if is_columnar(value) or is_tensor(value):
        return "number"
    if is_picture(value):
        return "picture"
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return _kind_of_items(value.ravel().tolist())
    if isinstance(value, (list, tuple)):
        return _kind_of_items(value)
    return "other"


def _kind_of_items(items: Iterable[Any]) -> Kind:
    kinds = {kind_of(item) for item in items}
    return kinds.pop() if len(kinds) == 1 else "other"


def rank_of(value: Any) -> int | None:
    """Return the number of dimensions of a value; None where it has none that are known."""
    if isinstance(value, (list, tuple)):
        return 1
    if is_tensor(value):
        return int(value.ndim)
    return None if kind_of(value) in ("other", "picture") else int(np.ndim(value))


def has_custom_type(value: Any) -> bool:
    """Tell whether a value has a number type that CPUs do not compute with, such as bfloat16."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return False
    return dtype.isbuiltin == REGISTERED or (dtype.kind == "V" and dtype.names is None)


def equal(first: Any, second: Any) -> bool:
    """Tell whether two values, or two elements, are the same in type and content; NaN equals NaN."""
    if first is second:
        return True
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(equal(value, second[name]) for name, value in first.items())
    if isinstance(first, (list, tuple)) and type(first) is type(second):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    if is_columnar(first) and is_columnar(second):
        return _equal_arrays(np.asarray(first), np.asarray(second))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first.shape == second.shape and equal(first.ravel().tolist(), second.ravel().tolist())
    if type_name(first):
        alike = type_name(first) == type_name(second) and equal(notes_of(first), notes_of(second))
        return alike and _equal_arrays(_array(first), _array(second))
    if type(first) is not type(second):
        return False
    try:
        return bool(first == second)
    except Exception:  # objects of a library's own may refuse a comparison in any way
        return False


def _array(value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(as_array(value))


def _equal_arrays(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if np.array_equal(first, second):
        return True
    if first.dtype.kind in "fcmM":
        return bool(np.array_equal(first, second, equal_nan=True))
    return first.dtype.isbuiltin == REGISTERED and first.tobytes() == second.tobytes()


@dataclass
class ColumnSpec:
    """What the values of one column had in common so far."""

    types: set[str] = field(default_factory=set)
    """Dtypes, or names of Python types."""
    shapes: dict[int, Shape] = field(default_factory=dict)
    """By number of dimensions; None for a dimension that varied."""

    def add(self, value: Any) -> None:
        """Take one more value into account."""
        if not is_columnar(value) and not type_name(value):
            self.types.add(type(value).__name__)
            return
        self.types.add(type_name(value) or str(np.asarray(value).dtype))
        shape: Shape = value.size[::-1] if is_picture(value) else tuple(np.shape(value))
        known = self.shapes.get(len(shape), shape)
        self.shapes[len(shape)] = tuple(a if a == b else None for a, b in zip(known, shape, strict=True))

    def difference(self, other: ColumnSpec) -> str:
        """Say what of another order's values is not as here; empty if nothing is."""
        if not other.types <= self.types:
            return f"its dtype is {_listed(other.types - self.types)} instead of {_listed(self.types)}"
        if not other.shapes.keys() <= self.shapes.keys():
            return f"it has {_listed(other.shapes)} dimensions instead of {_listed(self.shapes)}"
        for rank, shape in other.shapes.items():
            mine = self.shapes[rank]
            if any(a is not None and a != b for a, b in zip(mine, shape, strict=True)):
                return f"its shape is {_spelled(shape)} instead of {_spelled(mine)}"
        return ""


@dataclass
class ElementSpec:
    """What a number of elements had in common."""

    columns: dict[str, ColumnSpec] = field(default_factory=dict)
    names: set[frozenset[str]] = field(default_factory=set)
    """The sets of columns that occurred."""

    def add(self, element: Mapping[str, Any]) -> None:
        """Take one more element into account."""
        self.names.add(frozenset(element))
        for name, value in element.items():
            self.columns.setdefault(name, ColumnSpec()).add(value)

    def difference(self, other: ElementSpec) -> str:
        """Say what another order's elements have that these have not; empty if nothing."""
        for names in other.names - self.names:
            expected = min(self.names, key=sorted, default=frozenset())
            changed = [f"lacks {name!r}" for name in sorted(expected - names)]
            changed += [f"has {name!r} too" for name in sorted(names - expected)]
            return f"the result {' and '.join(changed)}"
        for name, spec in sorted(other.columns.items()):
            if found := self.columns[name].difference(spec):
                return f"the result differs in column {name!r}: {found}"
        return ""


def _listed(values: Iterable[object]) -> str:
    return " or ".join(sorted(str(value) for value in values))


def _spelled(shape: Shape) -> str:
    return f"[{', '.join('?' if side is None else str(side) for side in shape)}]"
