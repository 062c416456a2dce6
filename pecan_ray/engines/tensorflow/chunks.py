"""What the graph is fed with: several elements at a time, as arrays of the dtypes that the first element had."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from pecan_ray.engines.positions import Part, join
from pecan_ray.engines.reading import Run
from pecan_ray.engines.serializable import MASKED
from pecan_ray.errors import OutputTypeError, describe_error
from pecan_ray.plan.exact_arrays import exact_array, same_integers
from pecan_ray.plan.splits import Columns, Element, Lease

# Bounds of docs/decisions/tensorflow-engine.md#8-graphs-are-fed-in-chunks.
CHUNK_BYTES = 1 << 20
"""A chunk of so many bytes is handed over: Python then costs little per byte."""
CHUNK_ELEMENTS = 256
"""A chunk of so many elements is handed over, whatever their size."""
CHUNK_S = 0.01
"""A chunk is handed over after this time, whatever is in it: the graph waits little."""
CHUNK_ROWS = 1024
"""Most elements of a chunk where they come as columns."""

Signature = dict[str, tf.TensorSpec]


@dataclass(frozen=True)
class Read:
    """An element as the source gave it."""

    lease: Lease
    number: int
    value: Element
    parts: list[Part]


def elements_of(run: Run) -> Iterator[Read]:
    """Yield the elements of a run one by one."""
    for row in range(run.rows):
        yield Read(run.lease, run.first + row, run.item(row).value, run.parts(row, row + 1))


class Chunk:
    """Elements that are handed to the graph together: of one shape per column."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._columns: dict[str, list[Any]] = {name: [] for name in signature}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.rows: list[list[int]] = []
        self.parts: list[Part] = []
        """Positions of the elements; those of neighbours in the source are one interval."""
        self._bytes = 0
        self._started = 0.0

    def takes(self, columns: Mapping[str, Any]) -> bool:
        """Tell whether an element still fits in."""
        return (
            len(self.rows) < CHUNK_ELEMENTS
            and self._bytes < CHUNK_BYTES
            # Elements of a slow source do not wait in a chunk until it is full.
            and time.monotonic() - self._started < CHUNK_S
            # A chunk is one array for each column, so elements of other shapes begin the next one.
            and _shapes(columns) == self._shapes
        )

    def add(self, columns: Mapping[str, Any], rows: list[list[int]], parts: list[Part]) -> None:
        """Add an element, once for each of its rows."""
        if not self.rows:
            self._started, self._shapes = time.monotonic(), _shapes(columns)
        join(self.parts, parts)
        for row in rows:
            self.rows.append(row)
            for name, value in columns.items():
                self._columns[name].append(value)
                self._bytes += len(value) if isinstance(value, bytes) else value.nbytes

    def flush(self) -> tuple[dict[str, Any], Any]:
        """Return the chunk and begin an empty one."""
        columns = {
            # As objects, because arrays of NumPy's texts lose zero bytes at their ends.
            name: np.array(values, object if self._signature[name].dtype == tf.string else None)
            for name, values in self._columns.items()
        }
        rows = np.array(self.rows, np.int64)
        self._columns = {name: [] for name in self._signature}
        self.rows, self.parts, self._bytes = [], [], 0
        return columns, rows


def _shapes(columns: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of converted values: arrays, and bytes, which have none."""
    return {name: () if isinstance(value, bytes) else value.shape for name, value in columns.items()}


def columns_of(run: Run, signature: Signature) -> dict[str, Any] | None:
    """Return a run's columns with the signature's dtypes; None where each element has to be looked at.

    That is so where one lacks a value or has another type, where they differ in shape, and where only some outputs of
    an element are to be delivered.
    """
    if not run.whole or run.columns.keys() != signature.keys():
        return None
    columns: dict[str, Any] = {}
    for name, spec in signature.items():
        column = _strings(run.columns, name) if spec.dtype == tf.string else run.columns[name]
        wanted = spec.dtype.as_numpy_dtype
        if column is None or column.ndim != 1 + len(spec.shape) or not np.can_cast(column.dtype, wanted, "safe"):
            return None
        columns[name] = column.astype(wanted, copy=False)
        # NumPy calls a cast from int64 to float64 safe, though it rounds integers beyond 2**53.
        if not same_integers(column, columns[name]):
            return None
    return columns


def _strings(columns: Columns, name: str) -> Any:
    values = [_encoded(value) for value in columns[name]]
    return np.array(values, object) if all(isinstance(value, bytes) for value in values) else None


def chunk_bounds(columns: Mapping[str, Any], rows: int) -> Iterator[tuple[int, int]]:
    """Yield where to cut columns into chunks: [start, stop)."""
    nbytes = sum(sum(map(len, c)) if c.dtype.hasobject else c.nbytes for c in columns.values())
    step = min(max(CHUNK_BYTES * rows // max(nbytes, 1), 1), CHUNK_ROWS)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def signature_of(read: Read, fixed: bool) -> Signature:
    """Return dtype and rank of each column of an element; the lengths too, where all elements have the same."""
    specs = {}
    for name, value in read.value.items():
        if isinstance(value, (bytes, str)):
            specs[name] = tf.TensorSpec((), tf.string)
            continue
        if isinstance(value, np.ma.MaskedArray):
            raise _output_error(read, f"column {name!r}: {MASKED}")
        array = _array(read, name, value)
        if array.dtype.hasobject and not all(isinstance(item, (bytes, str)) for item in array.ravel()):
            raise _output_error(read, f"column {name!r} holds {type(value).__name__}, which is no tensor")
        dtype = tf.string if array.dtype.kind in "OSU" else _tensor_dtype(read, name, array)
        # Ranks are kept and lengths are not: the first element says nothing about the sizes of others.
        specs[name] = tf.TensorSpec(array.shape if fixed else (None,) * array.ndim, dtype)
    return specs


def convert(read: Read, signature: Signature) -> dict[str, Any]:
    """Return an element's values as bytes and arrays of the signature's dtypes."""
    if read.value.keys() != signature.keys():
        raise _output_error(read, f"it has the columns {sorted(read.value)}, the first element had {sorted(signature)}")
    columns: dict[str, Any] = {}
    for name, spec in signature.items():
        value = read.value[name]
        if spec.dtype == tf.string:
            columns[name] = _as_bytes(value, len(spec.shape))
            if columns[name] is None:
                found = "text that is no Unicode" if isinstance(value, str) else type(value).__name__
                raise _output_error(read, f"column {name!r} is {found}, that of the first element was text")
            continue
        if isinstance(value, np.ma.MaskedArray):
            raise _output_error(read, f"column {name!r}: {MASKED}")
        array = _array(read, name, value)
        wanted = spec.dtype.as_numpy_dtype
        # "safe": the first element decides the dtype, and no later one may lose digits to it.
        if array.ndim != len(spec.shape) or not np.can_cast(array.dtype, wanted, "safe"):
            given = f"{array.dtype}{list(array.shape)}"
            raise _output_error(read, f"column {name!r} is {given}, that of the first element was {spec.dtype.name}")
        columns[name] = array.astype(wanted, copy=False)
        if not same_integers(array, columns[name]):
            raise _output_error(
                read, f"column {name!r} has integers that {spec.dtype.name}, that of the first, would round"
            )
    return columns


def _encoded(value: Any) -> Any:
    """Return text as bytes; text with half a surrogate pair, which JSON may spell, and what is no text as it is."""
    try:
        return value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        return value


def _array(read: Read, name: str, value: Any) -> Any:
    try:
        return exact_array(value)
    except Exception as error:  # lists may be uneven, and objects may refuse it in any way
        kind = type(value).__name__
        raise _output_error(
            read, f"column {name!r} is a {kind} of which no tensor can be made ({describe_error(error)})"
        ) from error


def _tensor_dtype(read: Read, name: str, array: Any) -> tf.DType:
    try:
        return tf.as_dtype(array.dtype)
    except TypeError as error:
        raise _output_error(
            read, f"column {name!r} is an array of {array.dtype}, of which no tensor can be made"
        ) from error


def _as_bytes(value: Any, rank: int) -> Any:
    """Return text as bytes, or as an array of them; None if it is neither."""
    if rank == 0:
        value = _encoded(value)
        return value if isinstance(value, bytes) else None
    try:
        array = np.asarray(value, object)
    except ValueError:  # arrays of unequal shapes
        return None
    items = [_as_bytes(item, 0) for item in array.ravel()]
    if array.ndim != rank or None in items:
        return None
    found = np.empty(array.shape, object)
    # An assignment to `found` itself would broadcast, or look into, the items.
    found.ravel()[:] = items
    return found


def _output_error(read: Read, problem: str) -> OutputTypeError:
    split = read.lease.split
    return OutputTypeError(
        f"{split.where(read.number)}: {problem}. The tensorflow engine needs the same columns, dtypes and ranks in "
        'every element; make them so in the data, or use engine="python".',
        op="source",
        file=split.file_of(read.number),
        element=split.number_of(read.number),
    )
