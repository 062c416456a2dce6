"""From leases to tensors: the elements of one source, in chunks, with the rows that say where they come from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from pecan_ray.engines.contract import EngineOptions, Leases
from pecan_ray.engines.python.items import Key, Loose, Part, join
from pecan_ray.engines.reading import read_lease
from pecan_ray.engines.tensorflow.meta import WIDTH, rows_of
from pecan_ray.errors import OutputTypeError, PecanError, SourceError
from pecan_ray.plan.splits import Element, Lease, Source
from pecan_ray.sampling.spans import Spans
from pecan_ray.sources.memory import Arrays

CHUNK_BYTES = 1 << 20
CHUNK_ELEMENTS = 256
CHUNK_S = 0.01
"""A chunk is handed over when the first of these is reached: Python then costs little per element, and waits little."""

Tensor = Any
Signature = dict[str, tf.TensorSpec]


class Outstanding:
    """The positions that went into the graph and have not come out."""

    def __init__(self) -> None:
        self._spans: dict[Key, Spans] = {}
        self._lock = threading.Lock()

    def add(self, parts: list[Part]) -> None:
        """Note positions that went in."""
        with self._lock:
            for key, start, stop in parts:
                self._spans.setdefault(key, Spans()).add(start, stop)

    def remove(self, parts: list[Part]) -> None:
        """Note positions that came out, or that a filter dropped."""
        with self._lock:
            for key, start, stop in parts:
                self._spans.setdefault(key, Spans()).remove(start, stop)

    def parts(self) -> list[Part]:
        """Return what is still inside."""
        with self._lock:
            return [(key, start, stop) for key, spans in self._spans.items() for start, stop in spans]


@dataclass(frozen=True)
class Read:
    """An element as the source gave it."""

    lease: Lease
    number: int
    value: Element
    parts: list[Part]


class Feed:
    """Reads one source's leases for one stretch."""

    def __init__(
        self,
        branch: int,
        source: Source,
        leases: Leases,
        loose: Loose,
        options: EngineOptions,
        signature: Signature | None,
    ) -> None:
        self._branch, self._source, self._leases = branch, source, leases
        self._loose, self._options = loose, options
        self.signature = signature
        self.epoch = 0
        self.taken: dict[Key, Lease] = {}
        self.outstanding = Outstanding()
        self.error: PecanError | None = None
        self._elements = self._read_all()
        self._first: Read | None = None

    def open(self) -> Signature | None:
        """Read the first element; return the columns' dtypes and ranks, or None if there never was an element."""
        if self._first is None:
            self._first = next(self._elements, None)
            if self.error is not None:
                raise self.error
        if self.signature is None and self._first is not None:
            self.signature = _signature(self._first, fixed=isinstance(self._source, Arrays))
        return self.signature

    def dataset(self) -> Any:
        """Return the elements as a tf.data.Dataset of (columns, row)."""
        assert self.signature is not None
        chunked = {
            name: tf.TensorSpec((None, *spec.shape.as_list()), spec.dtype) for name, spec in self.signature.items()
        }
        signature = (chunked, tf.TensorSpec((None, WIDTH), tf.int64))
        return tf.data.Dataset.from_generator(self._chunks, output_signature=signature).prefetch(2).unbatch()

    def read_again(self, key: Key, number: int) -> Read:
        """Return one element anew, from its split."""
        lease = self.taken[key]
        return Read(lease, number, next(iter(self._source.read(lease.split, number))), [])

    def everything(self) -> list[Part]:
        """Take the leases that were left unread, and return the positions of all."""
        while (lease := self._leases.take(self._branch)) is not None:
            self.taken[lease.key] = lease
        return [(lease.key, start, stop) for lease in self.taken.values() for start, stop in lease.spans]

    def _read_all(self) -> Iterator[Read]:
        try:
            while (lease := self._leases.take(self._branch)) is not None:
                self.taken[lease.key] = lease
                self.epoch = lease.epoch
                read = read_lease(self._source, lease, self._leases, self._loose, self._options.on_error)
                for number, value, parts in read:
                    yield Read(lease, number, value, parts)
        except SourceError as error:
            # Kept and raised by the engine: what is raised inside a graph comes out as text.
            self.error = error

    def _chunks(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield chunks for the graph; ends at an error, which is kept."""
        chunk = Chunk(self.signature or {})
        try:
            for read in self._everything():
                columns = convert(read, self.signature or {})
                if chunk.rows and not chunk.takes(columns):
                    yield self._flushed(chunk)
                chunk.add(columns, rows_of(read.lease, read.number, read.parts, self._options.seed), read.parts)
        except PecanError as error:
            self.error = error
        if chunk.rows:
            yield self._flushed(chunk)

    def _flushed(self, chunk: Chunk) -> tuple[dict[str, Any], Any]:
        """Hand a chunk over, whose positions are then inside of the graph."""
        self.outstanding.add(chunk.parts)
        return chunk.flush()

    def _everything(self) -> Iterator[Read]:
        if self._first is not None:
            first, self._first = self._first, None
            yield first
        yield from self._elements


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
        self._began = 0.0

    def takes(self, columns: Mapping[str, Any]) -> bool:
        """Tell whether an element still fits in."""
        return (
            len(self.rows) < CHUNK_ELEMENTS
            and self._bytes < CHUNK_BYTES
            and time.monotonic() - self._began < CHUNK_S
            and _shapes(columns) == self._shapes
        )

    def add(self, columns: Mapping[str, Any], rows: list[list[int]], parts: list[Part]) -> None:
        """Add an element, once for each of its rows."""
        if not self.rows:
            self._began, self._shapes = time.monotonic(), _shapes(columns)
        join(self.parts, parts)
        for row in rows:
            self.rows.append(row)
            for name, value in columns.items():
                self._columns[name].append(value)
                self._bytes += len(value) if isinstance(value, bytes) else value.nbytes

    def flush(self) -> tuple[dict[str, Any], Any]:
        """Return the chunk and begin an empty one."""
        columns = {
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


def _signature(read: Read, fixed: bool) -> Signature:
    """Return dtype and rank of each column of an element; the lengths too, where all elements have the same."""
    specs = {}
    for name, value in read.value.items():
        if isinstance(value, (bytes, str)):
            specs[name] = tf.TensorSpec((), tf.string)
            continue
        array = np.asarray(value)
        if array.dtype.hasobject and not all(isinstance(item, (bytes, str)) for item in array.ravel()):
            raise _refused(read, f"column {name!r} holds {type(value).__name__}, which is no tensor")
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        specs[name] = tf.TensorSpec(array.shape if fixed else (None,) * array.ndim, dtype)
    return specs


def convert(read: Read, signature: Signature) -> dict[str, Any]:
    """Return an element's values as bytes and arrays of the signature's dtypes."""
    if read.value.keys() != signature.keys():
        raise _refused(read, f"it has the columns {sorted(read.value)}, the first element had {sorted(signature)}")
    columns: dict[str, Any] = {}
    for name, spec in signature.items():
        value = read.value[name]
        if spec.dtype == tf.string:
            columns[name] = _as_bytes(value, len(spec.shape))
            continue
        array = np.asarray(value)
        wanted = spec.dtype.as_numpy_dtype
        if array.ndim != len(spec.shape) or not np.can_cast(array.dtype, wanted, "safe"):
            given = f"{array.dtype}{list(array.shape)}"
            raise _refused(read, f"column {name!r} is {given}, that of the first element was {spec.dtype.name}")
        columns[name] = array.astype(wanted, copy=False)
    return columns


def _as_bytes(value: Any, rank: int) -> Any:
    if rank == 0:
        return value.encode() if isinstance(value, str) else value
    return np.array([item.encode() if isinstance(item, str) else item for item in value], object)


def _refused(read: Read, problem: str) -> OutputTypeError:
    split = read.lease.split
    return OutputTypeError(
        f"{split.where(read.number)}: {problem}. The tensorflow engine needs the same columns, dtypes and ranks in "
        'every element; make them so in the data, or use engine="python".',
        op="source",
        file=split.file_of(read.number),
        element=read.number,
    )
