"""Columns that stand in the names of folders: ``year=2024/month=05/part-0.parquet``, as Hive, Spark and pandas write.

They count from the folder on that was named: what stands before it, or is the same for all that was named, is the
choice of who named it.  A value is the text that stands there; whoever wants a number says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from pecan_ray.errors import ColumnError, PlanError
from pecan_ray.plan.splits import Array, Columns, Element, Split
from pecan_ray.sources.arrow import column_of
from pecan_ray.storage import FileInfo

Partitions: TypeAlias = "bool | Mapping[str, str]"
"""Whether columns come from the names of folders, or the types of some of them."""

# What Hive and Spark write where a row has no value.
NULL = "__HIVE_DEFAULT_PARTITION__"
PATTERN = "*?[{"


class Partitioned(Protocol):
    """A source of files, which may lie in folders that name columns."""

    @property
    def patterns(self) -> tuple[str, ...]: ...

    @property
    def partitions(self) -> Partitions: ...


_Listed = TypeVar("_Listed", FileInfo, Split)


def check_partitions(partitions: Any) -> None:
    """Raise PlanError for what is neither a bool nor names of columns with types."""
    if isinstance(partitions, bool):
        return
    if not isinstance(partitions, Mapping):
        raise PlanError(
            f'partitions must be True, False, or types by name ({{"year": "int32"}}), but got {partitions!r}.'
        )
    for name, kind in partitions.items():
        try:
            pa.type_for_alias(kind)
        except (TypeError, ValueError) as error:
            raise PlanError(f"partitions[{name!r}] = {kind!r} is not the name of an Arrow type.") from error


def with_equal_columns(
    listed: Iterable[_Listed], patterns: tuple[str, ...], partitions: Partitions
) -> Iterator[_Listed]:
    """Yield files or splits; raise ColumnError for one whose folders name other columns than those of the first one."""
    # Found at listing, before anything is read: a column that comes and goes would end an epoch in its
    # middle.
    first: tuple[str, set[str]] | None = None
    for one in listed:
        if partitions is not False:
            names = set(partition_values(one.path, patterns, partitions))
            first = first or (one.path, names)
            _check_names(one.path, names, first, partitions)
        yield one


def _check_names(path: str, names: set[str], first: tuple[str, set[str]], partitions: Partitions) -> None:
    still_missing = set() if isinstance(partitions, bool) else set(partitions) - names
    if still_missing:
        message = f"No folder of {path} says {min(still_missing)!r}, which partitions= names"
    elif names != first[1]:
        message = f"The folders of {path} name {sorted(names)}, and those of {first[0]} {sorted(first[1])}"
    else:
        return
    raise ColumnError(f"{message}. partitions=False reads the files alone.", path=path)


def partition_values(path: str, patterns: tuple[str, ...], partitions: Partitions) -> dict[str, Array]:
    """Return what the folders of a file say: by name, a column of one value."""
    if partitions is False:
        return {}
    # Not at the first character: `=x` has no name.
    told = [folder.partition("=") for folder in _folders(path, patterns) if "=" in folder[1:]]
    names = [name for name, _, _ in told]
    if len(set(names)) < len(names):
        raise ColumnError(f"The folders of {path} name a column twice. partitions=False reads the files alone.")
    types = {} if isinstance(partitions, bool) else partitions
    # Hive quotes what cannot stand in the name of a folder.
    return {unquote(name): _value(unquote(name), value, types, path) for name, _, value in told}


def selected_values(
    path: str, source: Partitioned, columns: Sequence[str] | None, held: Collection[str]
) -> dict[str, Array]:
    """Return what the folders of a file say that is wanted (None: all), and no column that the file holds itself."""
    told = partition_values(path, source.patterns, source.partitions)
    wanted = told if columns is None else columns
    return {name: value for name, value in told.items() if name in wanted and name not in held}


def add_partitions(element: Element, told: Mapping[str, Array]) -> Element:
    """Add what the folders say to an element, behind what it says itself, and return it."""
    for name, value in told.items():
        # A column of the file itself wins: docs/decisions/sources.md#129-folders-are-columns.
        if name not in element:
            element[name] = value[0]
    return element


def check_new_columns(told: Mapping[str, Array], names: Collection[str]) -> None:
    """Raise ColumnError for a column that folders name, and that is to be a mask too."""
    if taken := told.keys() & set(names):
        raise ColumnError(f"mask= names a new column {min(taken)!r}, and a folder is called {min(taken)}=...")


def with_partitions(columns: Columns, told: Mapping[str, Array], rows: int) -> Columns:
    """Return columns of so many rows, and behind them what the folders say."""
    if not told:
        return columns
    check_new_columns(told, columns)
    return {**columns, **{name: np.repeat(value, rows) for name, value in told.items()}}


def _folders(path: str, patterns: tuple[str, ...]) -> list[str]:
    """Return the folders between what was named and a file."""
    root = _root(patterns)
    parts = path.split("/")
    return parts[len(root) : -1] if tuple(parts[: len(root)]) == root else []


# Asked for each file of a listing, with the same patterns.
@lru_cache(maxsize=64)
def _root(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of the longest path that all patterns begin with, and that holds no wildcard."""
    fixed = [pattern.rstrip("/").split("/") for pattern in patterns]
    for parts in fixed:
        wild = (place for place, part in enumerate(parts) if set(part) & set(PATTERN))
        del parts[next(wild, len(parts)) :]
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*fixed, strict=False))
    return tuple(parts[0] for parts in common)


def _value(name: str, written: str, types: Mapping[str, str], path: str) -> Array:
    text = None if written == NULL else unquote(written)
    array = pa.array([text], pa.string())
    try:
        # A guessed type would make 5 of `05`.
        return column_of(array.cast(types.get(name, "string")))
    except (pa.ArrowException, ValueError) as error:
        raise ColumnError(
            f"The folder {name}={written} of {path} is no {types[name]}, as partitions[{name!r}] says: {error}.",
            path=path,
            column=name,
        ) from error
