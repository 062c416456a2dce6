"""In what elements agree that can be rows of one batch: columns, and dtype, shape and structure of each.

Where the trainer joins rows (`pecan_ray.job.joiner`), an engine cuts its blocks where that changes.  So a block holds
nothing that the user's batches might not hold together, and what the trainer joins does not depend on the cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np

from pecan_ray.engines.contract import is_columnar
from pecan_ray.engines.foreign import as_array, is_text_tensor
from pecan_ray.engines.items import Item

T = TypeVar("T")
RowKind: TypeAlias = tuple[tuple[Any, Hashable], ...]
"""Of each column, its name and what tells what its values go together with."""

TEXT = "text"
NONE = "None"
LARGE = "an integer of more than 64 bits"
_OF_TYPE: dict[type, Hashable] = {
    **{kind: np.asarray(kind()).dtype for kind in (bool, float, complex)},
    # None may stand among texts of a column, but not everywhere in lists of them.
    **dict.fromkeys((str, bytes, bytearray, np.str_, np.bytes_, type(None)), TEXT),
}
_INT = np.asarray(0).dtype
_NUMBERS = np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"
_TELLING_TYPES = frozenset({*_OF_TYPE, *(np.dtype(code).type for code in _NUMBERS)})
"""Types all of whose values are of one kind."""


def kind_of(element: Mapping[Any, Any]) -> RowKind:
    """Return the kind of an element: those of equal kinds can be rows of one batch."""
    try:
        # The order of columns counts: a batch has that of its first element.
        return tuple((name, _of_value(value)) for name, value in element.items())
    except RecursionError:  # a value that holds itself: where it would be sent, it is an error by name
        return tuple((name, type(value).__qualname__) for name, value in element.items())


def _of_value(value: Any) -> Hashable:
    """Return what tells what a value goes together with: a dtype for a number, with a shape for an array."""
    known = _OF_TYPE.get(type(value))
    if known is not None:
        return known
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_array(value)
    if isinstance(value, int):
        return _INT if is_columnar(value) else LARGE
    if isinstance(value, (str, bytes, bytearray)):
        return TEXT
    if isinstance(value, (float, complex)):
        return np.asarray(value).dtype
    if isinstance(value, Mapping):
        return "dict", tuple((key, _of_value(one)) for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return _of_list(value)
    if is_text_tensor(value):
        return _of_value(value.numpy())
    array = as_array(value)
    return type(value).__qualname__ if array is None else _of_array(array)


def _of_array(value: Any) -> Hashable:
    if isinstance(value, np.ma.MaskedArray):
        return type(value).__qualname__
    if value.dtype == object:
        return _of_value(value.tolist())
    # An array without dimensions and a scalar become the same column, so both have the same kind.
    return (value.dtype, value.shape) if value.shape else value.dtype


def _of_list(values: list[Any] | tuple[Any, ...]) -> Hashable:
    kinds = [NONE if value is None else _of_value(value) for value in values]
    found = frozenset(kinds)
    # Lists of numbers become arrays whose dtype follows from those of all, in whatever places they stand.
    numbers = all(isinstance(one, np.dtype) and one.kind in "biufc" for one in found)
    if len(found) <= 1 or numbers or found <= {TEXT, NONE}:
        return "list", len(kinds), found
    return "list", tuple(kinds)


def split_by_kind(items: list[Item]) -> list[list[Item]]:
    """Divide elements where their kinds change."""
    if not items or _have_one_type(items):
        return [items] if items else []
    found, current = [[items[0]]], kind_of(items[0].value)
    for item in items[1:]:
        kind = kind_of(item.value)
        if kind == current:
            found[-1].append(item)
        else:
            found.append([item])
            current = kind
    return found


def _have_one_type(items: list[Item]) -> bool:
    """Tell whether elements are all of one kind, if that shows at once: column by column costs least."""
    names = list(items[0].value)
    if any(list(item.value) != names for item in items):
        return False
    return all(are_of_one_kind([item.value[name] for item in items]) for name in names)


def are_of_one_kind(values: list[Any]) -> bool:
    """Tell whether values of a column are all of one kind, if their types show it."""
    first = type(values[0])
    if set(map(type, values)) != {first}:
        return False
    if first is np.ndarray:
        dtype, shape = values[0].dtype, values[0].shape
        return not dtype.hasobject and all(one.dtype == dtype and one.shape == shape for one in values)
    if first is int:
        return all(map(is_columnar, values))
    return first in _TELLING_TYPES


def rows_of_one_kind(
    elements: Iterator[T | None], size: int, value: Callable[[T], Mapping[Any, Any]]
) -> Generator[list[T] | None, None, None]:
    """Yield up to `size` consecutive elements of one kind at a time; None as it comes.

    What comes before an error is yielded before it is raised.
    """
    rows: list[T] = []
    kind: RowKind = ()
    try:
        for element in elements:
            if element is None:
                yield None
                continue
            mine = kind_of(value(element))
            if rows and (len(rows) == size or mine != kind):
                full, rows = rows, []
                yield full
                del full  # else the elements would stay in memory beside their batch
            kind = mine
            rows.append(element)
    # A block ends before an element that fails (docs/decisions/order-and-rows.md#158-blocks-of-one-kind).
    except Exception:
        if rows:
            yield rows
        raise
    if rows:
        yield rows
