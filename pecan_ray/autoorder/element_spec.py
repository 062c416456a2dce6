"""What is told from the values of columns: kind, dimensions, whether two are equal, what they are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.foreign import REGISTERED, as_array, is_pil_image, is_tensor, notes_of, type_name

Kind: TypeAlias = Literal["number", "text", "picture", "other"]
Shape: TypeAlias = tuple[int, ...]
# A list or dict may hold itself, and would be looked into for ever.
DEEPEST = 4
"""Levels of nesting that are looked into."""
MOST_ITEMS = 32
"""Items of a list that are looked into one by one: a longer one is data, of which the first tells the type."""


def kind_of(value: Any) -> Kind:
    """Return whether a value is made of numbers, of text or bytes, is an image of Pillow, or something else."""
    if isinstance(value, (bytes, bytearray, str)):
        return "text"
    if isinstance(value, np.ndarray) and value.dtype.kind in "SU":
        return "text"
    if is_columnar(value) or is_tensor(value):
        return "number"
    if is_pil_image(value):
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


def shape_of(value: Any) -> Shape:
    """Return the sides of an array, or the length of what has one; empty for anything else."""
    array = array_of(value)
    if array is not None:
        return tuple(array.shape)
    return (len(value),) if isinstance(value, (str, bytes, list, tuple)) else ()


def has_custom_type(value: Any) -> bool:
    """Tell whether a value has a number type that CPUs do not compute with, such as bfloat16."""
    dtype = getattr(value, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return False
    # Types of ml_dtypes are of kind V; records, which have names, are no numbers.
    return dtype.isbuiltin == REGISTERED or (dtype.kind == "V" and dtype.names is None)


def equal(first: Any, second: Any) -> bool:
    """Tell whether two values, or two elements, are the same in type and content; NaN equals NaN."""
    if first is second:
        return True
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(equal(value, second[name]) for name, value in first.items())
    if isinstance(first, (list, tuple)) and type(first) is type(second):
        return len(first) == len(second) and all(equal(a, b) for a, b in zip(first, second, strict=True))
    found = _equal_as_arrays(first, second)
    return _equal_objects(first, second) if found is None else found


def _equal_as_arrays(first: Any, second: Any) -> bool | None:
    """Tell whether two arrays, or tensors and pictures of a library, are equal; None: they are none."""
    if is_columnar(first) and is_columnar(second):
        return _equal_arrays(np.asarray(first), np.asarray(second))
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):  # of objects
        return first.shape == second.shape and equal(first.ravel().tolist(), second.ravel().tolist())
    if not type_name(first):
        return None
    alike = type_name(first) == type_name(second) and equal(notes_of(first), notes_of(second))
    return alike and _equal_arrays(np.asarray(as_array(first)), np.asarray(as_array(second)))


def _equal_objects(first: Any, second: Any) -> bool:
    if type(first) is not type(second):
        return False
    try:
        return bool(first == second)
    except Exception:  # objects of a library's own may refuse a comparison in any way
        return False


def _equal_arrays(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    # First without looking for NaN: most results are equal, and the other comparison takes longer.
    if np.array_equal(first, second):
        return True
    if first.dtype.kind in "fcmM":
        return bool(np.array_equal(first, second, equal_nan=True))
    # By their bits: NumPy cannot compare all of these types for NaN.
    return first.dtype.isbuiltin == REGISTERED and first.tobytes() == second.tobytes()


class ElementSpec:
    """What a number of elements had in common: columns, types, dimensions, and the sides that were fixed."""

    def __init__(self) -> None:
        self._names: list[set[str]] = []
        self._sides: dict[str, dict[str, list[int | None]]] = {}
        """By column, and by type and number of dimensions; None for a side that differed."""

    def add(self, element: Mapping[str, Any]) -> None:
        """Take one more element into account."""
        if element.keys() not in self._names:
            self._names.append(set(element))
        for name, value in element.items():
            kind, shape = _form(value)
            sides = self._sides.setdefault(name, {}).setdefault(kind, list(shape))
            sides[:] = [mine if mine == other else None for mine, other in zip(sides, shape, strict=True)]

    def difference(self, other: ElementSpec) -> str:
        """Say what another order's elements have that these have not; empty if nothing."""
        for names in other._names:
            if names not in self._names:
                return f"the result has the columns {sorted(names)} instead of {sorted(self._names[0])}"
        for name, forms in sorted(other._sides.items()):
            mine = self._sides[name]
            for kind, sides in forms.items():
                if kind not in mine:
                    return f"the result differs in column {name!r}: it is {kind} instead of {' or '.join(sorted(mine))}"
                # A side that differed among the user's own results may differ in another order, too.
                if any(side not in (None, found) for side, found in zip(mine[kind], sides, strict=True)):
                    return (
                        f"the result differs in column {name!r}: its shape is {_to_str(sides)} "
                        f"instead of {_to_str(mine[kind])}"
                    )
        return ""


def _form(value: Any) -> tuple[str, Shape]:
    """Return the type of a value, with its number of dimensions if it has some, and its sides."""
    if not is_columnar(value) and not type_name(value):
        return type(value).__name__, ()
    shape: Shape = value.size[::-1] if is_pil_image(value) else tuple(np.shape(value))
    kind = type_name(value) or str(np.asarray(value).dtype)
    return f"{kind} with {len(shape)} dimensions", shape


def _to_str(shape: Sequence[int | None]) -> str:
    return f"[{', '.join('?' if side is None else str(side) for side in shape)}]"


# --- nested values -------------------------------------------------------------------------------------------


def leaves(element: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an element by their paths: arrays as NumPy's, whatever else there is as it is."""
    return {f"{name}{path}": leaf for name, value in element.items() for path, leaf in _leaves(value, "", 0)}


def array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a value as an array, if it is one."""
    return value if isinstance(value, np.ndarray) else as_array(value)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    array = array_of(value)
    if array is not None:
        yield path, array
        for name, one in notes_of(value).items():
            yield from _leaves(one, f"{path}.{name}", depth + 1)
    elif isinstance(value, (bool, int, float, complex, np.generic)):
        yield path, np.asarray(value)
    elif depth < DEEPEST and isinstance(value, Mapping):
        for name, one in value.items():
            yield from _leaves(one, f"{path}.{name}", depth + 1)
    elif depth < DEEPEST and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}", depth + 1)
    elif isinstance(value, (list, tuple)):
        yield from _items(value, path, depth)
    else:
        yield path, value


def _items(value: list[Any] | tuple[Any, ...], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    # A list of numbers is one value: a box of four must not be judged number by number.
    if value and all(isinstance(one, (bool, int, float, np.number)) for one in value):
        yield path, np.asarray(value)
    elif depth >= DEEPEST or len(value) > MOST_ITEMS or all(isinstance(one, (str, bytes)) for one in value):
        yield path, tuple(value)
    else:
        # The length is a value of its own: items that are missing would otherwise not be compared.
        yield f"{path}[]", len(value)
        for number, one in enumerate(value):
            yield from _leaves(one, f"{path}[{number}]", depth + 1)
