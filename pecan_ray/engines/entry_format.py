"""The elements of a split behind some operators, as the bytes of a cached entry: one Arrow IPC stream of one batch.

Each element keeps where it comes from, so that positions and random numbers behind the cache are what they would be
without it.  Arrays lie as they are in memory, one behind the other; reading runs nobody's code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from pecan_ray.engines.contract import is_plain
from pecan_ray.engines.plain import NotPlainError, Written, decode, dtype_name, encode, named_dtype, shape_of, whole
from pecan_ray.plan.splits import Element

FORMAT_VERSION = 1
ABOUT, BLOBS = b"pecan_ray.entry", b"pecan_ray.blobs"
KeptAs: TypeAlias = Literal["array", "scalar", "text", "bytes", "int", "float", "bool", "plain"]
"""How the values of a column are kept; values of another type than the first one are plain."""
ARROW: dict[KeptAs, pa.DataType] = {
    "text": pa.large_string(),
    "bytes": pa.large_binary(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
PYTHON: dict[type, KeptAs] = {str: "text", bytes: "bytes", float: "float", bool: "bool"}


@dataclass(frozen=True)
class CachedElement:
    """An element as it was kept."""

    element: int
    """Number in its split,"""
    output: int
    """which of its outputs,"""
    width: int
    """and how many positions it stands for."""
    value: Element


@dataclass
class _Column:
    """The values of a column so far."""

    kind: KeptAs
    dtype: str = ""
    data: bytearray = field(default_factory=bytearray)
    ends: list[int] = field(default_factory=lambda: [0])
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    plain: dict[int, Written] = field(default_factory=dict)
    """By row: those of another type."""


class EntryWriter:
    """Puts an entry together, element by element, in any order: values are copied, whoever changes them later."""

    def __init__(self) -> None:
        self._origins: list[tuple[int, int, int]] = []
        self._columns: dict[str, _Column] = {}
        self._blobs = bytearray()
        self.nbytes = 0

    def add(self, element: int, output: int, width: int, value: Element) -> None:
        """Add an element; raises NotPlainError, which names the column, for a value that cannot be kept."""
        row = len(self._origins)
        if row == 0:
            self._columns = {name: _column_of(one) for name, one in value.items()}
        if value.keys() != self._columns.keys():
            raise NotPlainError(f"elements with the columns {sorted(value)} and {sorted(self._columns)}")
        for name, one in value.items():
            try:
                self._add(self._columns[name], row, one)
            except NotPlainError as error:
                raise NotPlainError(f"column {name!r}, which holds a {error}") from None
        self._origins.append((element, output, width))
        self.nbytes = len(self._blobs) + sum(len(column.data) for column in self._columns.values()) + 24 * row

    def _add(self, column: _Column, row: int, value: Any) -> None:
        kind, dtype = _kind_of(value)
        if kind in ("array", "scalar"):
            fits = kind == column.kind and dtype == column.dtype
            if fits:
                column.data += _bytes_of(value)
            column.ends.append(len(column.data))
            column.shapes.append(value.shape if fits else ())
        else:
            fits = kind == column.kind != "plain"
            column.ends.append(len(column.data))
            column.shapes.append(())
        column.values.append(value if fits and kind in ARROW else None)
        if not fits:
            column.plain[row] = encode(value, self._put)

    def _put(self, *parts: bytes) -> Written:
        start = len(self._blobs)
        for part in parts:
            self._blobs += part
        return [start, len(self._blobs) - start]

    def finish(self, length: int) -> list[memoryview]:
        """Return the entry of a split that holds `length` elements, in parts; nothing can be added any more.

        The parts are the memory in which the elements were put together: a copy of it would take as long as writing it.
        """
        origins = np.array(self._origins, np.int64).reshape(-1, 3)
        arrays: list[pa.Array] = [_numbers(origins[:, place]) for place in range(3)]
        names, about = ["element", "output", "width"], []
        for number, (name, column) in enumerate(self._columns.items()):
            told: dict[str, Written] = {"name": name, "kind": column.kind, "dtype": column.dtype}
            if column.kind in ARROW:
                arrays.append(_single_values(column))
                names.append(str(number))
            elif column.kind != "plain":
                arrays.append(_blobs(pa.large_binary(), column.ends, column.data))
                names.append(str(number))
                same = len(set(column.shapes)) == 1
                told["shape"] = list(column.shapes[0]) if same else None
                if not same:
                    arrays.append(_shapes(column.shapes))
                    names.append(f"{number}.shape")
            told["plain"] = [[row, written] for row, written in column.plain.items()]
            about.append(told)
        facts = {"format": FORMAT_VERSION, "length": length, "columns": about}
        schema = pa.schema([pa.field(name, array.type) for name, array in zip(names, arrays, strict=True)])
        schema = schema.with_metadata({ABOUT: json.dumps(facts).encode(), BLOBS: bytes(self._blobs)})
        sink = _Parts()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return sink.parts


class _Parts(io.RawIOBase):
    """A file whose parts are the buffers that were written."""

    def __init__(self) -> None:
        self.parts: list[memoryview] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = memoryview(data)
        self.parts.append(part)
        return part.nbytes


def _bytes_of(value: Any) -> bytes | memoryview:
    """Return the bytes of an array, where they lie if they lie in a row."""
    if type(value) is np.ndarray and value.flags.c_contiguous and value.size:
        return value.reshape(-1).view(np.uint8).data
    return bytes(value.tobytes())


def _column_of(value: Any) -> _Column:
    kind, dtype = _kind_of(value)
    return _Column(kind, dtype)


def _kind_of(value: Any) -> tuple[KeptAs, str]:
    """Return how a value is kept best, and of what type its items are."""
    kind = type(value)
    if kind is int:
        return ("int", "") if -(1 << 63) <= value < 1 << 63 else ("plain", "")
    if kind is str and not value.isascii() and not _is_unicode(value):
        return "plain", ""
    if kind in PYTHON:
        return PYTHON[kind], ""
    if (kind is np.ndarray or isinstance(value, np.generic)) and is_plain(value.dtype):
        try:
            return ("array" if kind is np.ndarray else "scalar"), dtype_name(value.dtype)
        except NotPlainError:
            return "plain", ""
    return "plain", ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False  # half of a pair of surrogates
    return True


# Arrays of Arrow are made of buffers, since `pa.array` imports Pandas where there is one: that takes a third of a
# second, in the middle of the first epoch.


def _numbers(values: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))]
    )


def _blobs(kind: pa.DataType, ends: Sequence[int], data: bytes | bytearray) -> pa.Array:
    buffers = [None, pa.py_buffer(np.array(ends, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(ends) - 1, buffers)


def _single_values(column: _Column) -> pa.Array:
    """Return values of one type; something stands where one of another type is kept as plain."""
    values, kind = column.values, ARROW[column.kind]
    if column.kind == "int":
        return _numbers(np.array([value or 0 for value in values], np.int64))
    if column.kind == "float":
        return _numbers(np.array([0.0 if value is None else value for value in values], np.float64))
    if column.kind == "bool":
        bits = np.packbits(np.array([bool(value) for value in values], np.bool_), bitorder="little")
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(bits)])
    parts = [value.encode() if isinstance(value, str) else value or b"" for value in values]
    return _blobs(kind, [0, *accumulate(map(len, parts))], b"".join(parts))


def _shapes(shapes: Sequence[tuple[int, ...]]) -> pa.Array:
    lengths = [0, *accumulate(map(len, shapes))]
    sizes = _numbers(np.array([size for shape in shapes for size in shape], np.int64))
    offsets = pa.py_buffer(np.array(lengths, np.int32))
    return pa.Array.from_buffers(pa.list_(pa.int64()), len(shapes), [None, offsets], children=[sizes])


class EntryReader:
    """The elements of an entry; raises ValueError where its bytes are not what `EntryWriter` writes."""

    def __init__(self, data: bytes | memoryview) -> None:
        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
                self._metadata = stream.schema.metadata or {}
                self._batch = stream.read_next_batch()
            facts = json.loads(self._metadata[ABOUT])
        except (pa.ArrowInvalid, KeyError, OSError, StopIteration) as error:
            raise ValueError(f"it is no entry: {error}") from error
        if facts.get("format") != FORMAT_VERSION:
            raise ValueError(f"it has format {facts.get('format')!r}, and {FORMAT_VERSION} is read")
        self.length = whole(facts["length"])
        self._columns = facts["columns"]
        self._blobs = memoryview(self._metadata.get(BLOBS, b""))

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __iter__(self) -> Iterator[CachedElement]:
        """Yield the elements in the order of the split; their arrays are their own, and may be written into."""
        origins = [self._batch.column(place).to_pylist() for place in range(3)]
        columns = [(told["name"], self._values(number, told)) for number, told in enumerate(self._columns)]
        for row in sorted(range(len(self)), key=lambda row: (origins[0][row], origins[1][row])):
            element, output, width = (origin[row] for origin in origins)
            yield CachedElement(element, output, width, {name: value(row) for name, value in columns})

    def _values(self, number: int, told: dict[str, Written]) -> Callable[[int], Any]:
        """Return what gives a column's value of a row."""
        plain: dict[int, Written] = {whole(row): written for row, written in told["plain"]}
        kind: KeptAs = told["kind"]
        if kind == "plain":
            return lambda row: decode(plain[row], self._get)
        if kind in ARROW:
            usual: Callable[[int], Any] = self._batch.column(str(number)).to_pylist().__getitem__
        else:
            usual = self._arrays(number, told)
        if not plain:
            return usual
        return lambda row: decode(plain[row], self._get) if row in plain else usual(row)

    def _arrays(self, number: int, told: dict[str, Written]) -> Callable[[int], Any]:
        array = self._batch.column(str(number))
        ends = np.frombuffer(array.buffers()[1], np.int64)[: len(array) + 1]
        data = array.buffers()[2]
        memory = np.frombuffer(data if data is not None else b"", np.uint8)
        dtype = named_dtype(told["dtype"])
        shapes = None if told["shape"] is not None else self._batch.column(f"{number}.shape").to_pylist()
        shape = () if shapes is not None else shape_of(told["shape"])
        scalar = told["kind"] == "scalar"

        def value(row: int) -> Any:
            one = memory[ends[row] : ends[row + 1]].copy().view(dtype)
            made = one.reshape(shape if shapes is None else shapes[row])
            return made[()] if scalar else made

        return value

    def _get(self, written: Written) -> memoryview:
        start, size = written
        if whole(start) + whole(size) > len(self._blobs):
            raise ValueError("bytes of a value are missing")
        return self._blobs[start : start + size]
