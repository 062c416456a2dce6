"""The elements of a split behind some operators, as the bytes of a cached entry: one Arrow IPC stream of one batch.

Each element keeps where it comes from, so that positions and random numbers behind the cache are what they would be
without it, and stands in the order of the split.  Arrays lie as they are in memory, one behind the other, so that those
of one shape are one array of many rows; reading runs nobody's code.
"""

from __future__ import annotations

import functools
import io
import json
import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, repeat
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from pecan_ray.engines.contract import is_plain
from pecan_ray.engines.entry_head import ABOUT, BLOBS, head_of
from pecan_ray.engines.plain import NotPlainError, Written, decode, dtype_name, encode, named_dtype, shape_of, whole
from pecan_ray.plan.splits import Array, Columns, Element

FORMAT_VERSION = 2
"""2: elements stand in the order of the split."""
ORIGINS = ("element", "output", "width")
"""The first columns: where each element comes from."""
KeptAs: TypeAlias = Literal["array", "scalar", "text", "bytes", "int", "float", "bool", "plain"]
"""How the values of a column are kept; values of another type than the first one are plain."""
# Large types: `_blobs` writes 64-bit offsets, and `_blob` reads them where they lie.
ARROW: dict[KeptAs, pa.DataType] = {
    "text": pa.large_string(),
    "bytes": pa.large_binary(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
}
PYTHON: dict[type, KeptAs] = {str: "text", bytes: "bytes", float: "float", bool: "bool"}


# Below this a write of its own costs more than the copy that it spares.
LEAST_APART = 32 << 10
"""Bytes of an array, in the mean, for which it is written from where it lies."""
# A row that a shuffle buffer keeps holds its whole block, so one of each entry must not hold all entries.
HELD_TOGETHER = 64 << 10
"""Bytes of small arrays that are copied out of an entry at once: one of them holds no more than the others of these."""


class CachedElement(NamedTuple):
    """An element as it was kept."""

    element: int
    """Number in its split."""
    output: int
    """Which of the element's outputs it is."""
    width: int
    """Positions that it stands for."""
    value: Element


@dataclass
class _Column:
    """The values of a column so far."""

    kind: KeptAs
    dtype: str = ""
    data: list[bytes] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    plain: dict[int, Written] = field(default_factory=dict)
    """By row: those of another type."""

    def in_order(self, rows: Sequence[int]) -> _Column:
        """Return the column with its rows in another order."""
        place = {row: number for number, row in enumerate(rows)}
        return _Column(
            self.kind,
            self.dtype,
            [self.data[row] for row in rows] if self.data else [],
            [self.shapes[row] for row in rows] if self.shapes else [],
            [self.values[row] for row in rows] if self.values else [],
            {place[row]: written for row, written in self.plain.items()},
        )


class EntryWriter:
    """Puts an entry together, element by element, in any order: values are copied, whoever changes them later."""

    def __init__(self) -> None:
        self._source_refs: list[tuple[int, int, int]] = []
        self._columns: dict[str, _Column] = {}
        self._blobs = bytearray()
        self._data_bytes = 0

    @property
    def nbytes(self) -> int:
        """About how large the entry is so far."""
        # 24: three integers of 8 bytes, which say where an element comes from.
        return len(self._blobs) + self._data_bytes + 24 * len(self._source_refs)

    def add(self, element: int, output: int, width: int, value: Element) -> None:
        """Add an element; raises NotPlainError, which names the column, for a value that cannot be kept."""
        row = len(self._source_refs)
        if row == 0:
            self._columns = {name: _column_of(one) for name, one in value.items()}
        if value.keys() != self._columns.keys():
            raise NotPlainError(f"elements with the columns {sorted(value)} and {sorted(self._columns)}")
        for name, one in value.items():
            try:
                self._add(self._columns[name], row, one)
            except NotPlainError as error:
                raise NotPlainError(f"column {name!r}, which holds a {error}") from None
        self._source_refs.append((element, output, width))

    def _add(self, column: _Column, row: int, value: Any) -> None:
        kind, dtype = _kind_of(value)
        fits = kind == column.kind and dtype == column.dtype
        if column.kind in ("array", "scalar"):
            # A copy at once: functions may go on to write into the array that they have returned.
            data = value.tobytes() if fits else b""
            self._data_bytes += len(data)
            column.data.append(data)
            column.shapes.append(value.shape if fits else ())
        elif column.kind != "plain":
            column.values.append(value if fits else None)
        if not fits or kind == "plain":
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
        # Threads add elements in any order. Decision 55: in the order of the split, a run of rows is one interval.
        rows = sorted(range(len(self._source_refs)), key=self._source_refs.__getitem__)
        source_refs = np.array([self._source_refs[row] for row in rows], np.int64).reshape(-1, 3)
        arrays: list[pa.Array] = [_numbers(source_refs[:, place]) for place in range(3)]
        names, about, sink = list(ORIGINS), [], _Parts()
        for number, (name, unordered) in enumerate(self._columns.items()):
            column = unordered.in_order(rows)
            told: dict[str, Written] = {"name": name, "kind": column.kind, "dtype": column.dtype}
            if column.kind in ARROW:
                arrays.append(_single_values(column))
                names.append(str(number))
            elif column.kind != "plain":
                arrays.append(
                    _blobs(pa.large_binary(), [0, *accumulate(map(len, column.data))], sink.stand_in(column.data))
                )
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
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return sink.parts


class _Parts(io.RawIOBase):
    """A file whose parts are the buffers that were written.

    What Arrow takes for the bytes of large arrays is memory that nobody has touched, and that takes none therefore: the
    arrays themselves stand in its place among the parts, and need not be copied behind each other.
    """

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        self._underlying: dict[tuple[int, int], list[bytes]] = {}
        """By address and size: the pieces that stand for memory."""

    def stand_in(self, pieces: list[bytes]) -> bytes | mmap.mmap:
        """Return what Arrow may be given for pieces in a row."""
        nbytes = sum(map(len, pieces))
        if nbytes < LEAST_APART * len(pieces) or not nbytes:
            return b"".join(pieces)
        # Anonymous pages that nobody touches take addresses and no memory. Arrow asks only for address and
        # size.
        memory = mmap.mmap(-1, nbytes)
        self._underlying[pa.py_buffer(memory).address, nbytes] = pieces
        return memory

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = memoryview(data)
        pieces = self._underlying.get((pa.py_buffer(part).address, part.nbytes)) if part.nbytes else None
        # Empty arrays are left out: a memoryview of no bytes would be a part of its own to write.
        self.parts += [part] if pieces is None else map(memoryview, filter(None, pieces))
        return part.nbytes


def _column_of(value: Any) -> _Column:
    kind, dtype = _kind_of(value)
    return _Column(kind, dtype)


def _kind_of(value: Any) -> tuple[KeptAs, str]:
    """Return how a value is kept best, and of what type its items are."""
    # By exact types: a bool is an int for `isinstance`, and has to come out as a bool.
    kind = type(value)
    if kind is int:
        return ("int", "") if -(1 << 63) <= value < 1 << 63 else ("plain", "")
    if kind is str and not value.isascii() and not _is_unicode(value):
        return "plain", ""
    if kind in PYTHON:
        return PYTHON[kind], ""
    if (kind is np.ndarray or isinstance(value, np.generic)) and (dtype := _kept_dtype(value.dtype)):
        return ("array" if kind is np.ndarray else "scalar"), dtype
    return "plain", ""


@functools.lru_cache(maxsize=256)
def _kept_dtype(dtype: np.dtype[Any]) -> str:
    """Return the name of a type whose items are kept in a row; nothing for another one."""
    try:
        return dtype_name(dtype) if is_plain(dtype) else ""
    except NotPlainError:
        return ""


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


def _blobs(kind: pa.DataType, ends: Sequence[int], data: bytes | mmap.mmap) -> pa.Array:
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
        self._data, self._memory = data, np.frombuffer(data, np.uint8)
        self._head = head_of(data)
        facts = self._head.metadata
        if facts.get("format") != FORMAT_VERSION:
            raise ValueError(f"it has format {facts.get('format')!r}, and {FORMAT_VERSION} is read")
        self.length = whole(facts["length"])
        self._columns = facts["columns"]
        self._source_refs: tuple[Array, Array, Array] | None = None
        self._blobs = self._head.blobs

    def __len__(self) -> int:
        return self._head.rows

    def __iter__(self) -> Iterator[CachedElement]:
        """Yield the elements in the order of the split; their arrays are their own, and may be written into."""
        return self.elements()

    def elements(self, *, apart: bool = True) -> Iterator[CachedElement]:
        """Yield the elements in the order of the split, whose arrays may be written into.

        `apart`: they may be held for long, and are copied; else one of them may hold all of the entry.
        """
        names = [told["name"] for told in self._columns]
        columns = [self._values(number, told, apart) for number, told in enumerate(self._columns)]
        rows = zip(*columns, strict=True) if columns else repeat((), len(self))
        values = map(dict, map(zip, repeat(names), rows))  # no step of it is Python's, of which there would be millions
        return map(CachedElement, *(one.tolist() for one in self.source_refs()), values)

    def source_refs(self) -> tuple[Array, Array, Array]:
        """Return the numbers of the elements in their split, of their outputs, and the positions they stand for."""
        if self._source_refs is None:
            element, output, width = (self._numbers(name, np.int64) for name in ORIGINS)
            self._source_refs = element, output, width
        return self._source_refs

    def origin_bytes(self) -> bytes:
        """Return the same as it is written: what is equal comes from the same places of another split."""
        return b"".join(self._buffer(name, 1).tobytes() for name in ORIGINS)

    def columns(self) -> Columns | None:
        """Return all elements as columns, whose arrays lie in the entry and may only be read.

        None where they are not of one shape and type, or hold what no array can.
        """
        # One value of another kind is enough: rows are copied into batches as they lie, and none is looked at.
        if any(told["plain"] or told["kind"] == "plain" or told.get("shape", ()) is None for told in self._columns):
            return None
        return {told["name"]: self._column(number, told) for number, told in enumerate(self._columns)}

    def _column(self, number: int, told: dict[str, Written]) -> Array:
        kind: KeptAs = told["kind"]
        if kind == "int":
            return self._numbers(str(number), np.int64)
        if kind == "float":
            return self._numbers(str(number), np.float64)
        if kind not in ARROW:
            return self._rows(number, told)
        column = np.empty(len(self), np.bool_ if kind == "bool" else object)
        column[:] = self._single_elements(number, kind)
        return column

    def _values(self, number: int, told: dict[str, Written], apart: bool) -> Iterator[Any]:
        """Yield a column's values, row by row."""
        plain: dict[int, Written] = {whole(row): written for row, written in told["plain"]}
        kind: KeptAs = told["kind"]
        if kind == "plain":
            return (decode(plain[row], self._get) for row in range(len(self)))
        if kind in ARROW:
            usual = iter(self._single_elements(number, kind))
        elif told["shape"] is not None and not plain:
            usual = _single_rows(self._rows(number, told), told["kind"] == "scalar", apart)
        else:
            usual = self._arrays(number, told)
        if not plain:
            return usual
        return (decode(plain[row], self._get) if row in plain else one for row, one in enumerate(usual))

    def _single_elements(self, number: int, kind: KeptAs) -> list[Any]:
        """Return values of Python's own types."""
        values: list[Any]
        if kind == "int":
            values = self._numbers(str(number), np.int64).tolist()
        elif kind == "float":
            values = self._numbers(str(number), np.float64).tolist()
        else:
            values = self._in_arrow().column(str(number)).to_pylist()
        return values

    def _in_arrow(self) -> pa.RecordBatch:
        with pa.ipc.open_stream(pa.py_buffer(self._data)) as stream:
            return stream.read_next_batch()

    def _buffer(self, name: str, number: int) -> Array:
        """Return the bytes of a buffer of a column."""
        place = self._head.buffers[name][number]
        if place is None:
            return self._memory[:0]
        start, nbytes = place
        return self._memory[start : start + nbytes]

    def _numbers(self, name: str, dtype: type[np.generic], count: int | None = None) -> Array:
        """Return the numbers of a buffer: so many as there are rows, if no other count is given."""
        items = len(self) if count is None else count
        return self._buffer(name, 1)[: items * np.dtype(dtype).itemsize].view(dtype)

    def _blob(self, number: int) -> tuple[Array, Array]:
        """Return where the rows of a column end, and their bytes."""
        return self._numbers(str(number), np.int64, len(self) + 1), self._buffer(str(number), 2)

    def _rows(self, number: int, told: dict[str, Written]) -> Array:
        """Return a column of arrays of one shape, or of numbers, as one array that lies in the entry."""
        dtype, shape = named_dtype(told["dtype"]), shape_of(told["shape"])
        data, nbytes = self._buffer(str(number), 2), dtype.itemsize * math.prod(shape)
        told_ends, ends = self._buffer(str(number), 1), _even_ends(len(self), nbytes)
        # One shape says that all rows are equally long; an entry that contradicts itself must not be read as
        # shifted pixels.
        if told_ends[: len(ends)].tobytes() != ends or len(data) < len(self) * nbytes:
            raise ValueError("arrays of one shape are not of one size")
        if not nbytes or not len(self):
            # Without bytes there is nothing that `view` could give a shape to.
            return np.empty((len(self), *shape), dtype)
        return data[: len(self) * nbytes].view(dtype).reshape(len(self), *shape)

    def _arrays(self, number: int, told: dict[str, Written]) -> Iterator[Any]:
        """Yield arrays of several shapes, or among which there are other values."""
        ends, memory = self._blob(number)
        dtype, scalar = named_dtype(told["dtype"]), told["kind"] == "scalar"
        if told["shape"] is None:
            shapes = self._in_arrow().column(f"{number}.shape").to_pylist()
        else:
            shapes = [shape_of(told["shape"])] * len(self)
        for row, shape in enumerate(shapes):
            data = memory[ends[row] : ends[row + 1]]
            if not len(data) and math.prod(shape):
                yield None  # there is another value instead
                continue
            made = data.copy().view(dtype).reshape(shape)
            yield made[()] if scalar else made

    def _get(self, written: Written) -> memoryview:
        start, size = written
        if whole(start) + whole(size) > len(self._blobs):
            raise ValueError("bytes of a value are missing")
        return self._blobs[start : start + size]


@functools.lru_cache(maxsize=64)
def _even_ends(rows: int, nbytes: int) -> bytes:
    """Return how it is written where rows of so many bytes each begin and end."""
    return (np.arange(rows + 1) * nbytes).tobytes()


def _single_rows(rows: Array, scalar: bool, apart: bool) -> Iterator[Any]:
    """Return the rows of an array, so that they may be written into; copied if they must be, small ones many at a time.

    `apart`: none may hold more of the array than a few others.
    """
    # Functions may write into elements, and unaligned arrays are slow or refused in C libraries.
    copied = apart or not (rows.flags.writeable and rows.flags.aligned)
    at_once = max(1, HELD_TOGETHER // max(1, rows[:1].nbytes)) if copied else max(1, len(rows))
    pieces = (rows[start : start + at_once] for start in range(0, len(rows), at_once))
    blocks = (piece.copy() for piece in pieces) if copied else pieces
    if rows.ndim > 1 or scalar:
        return chain.from_iterable(blocks)
    # Iterating an array of one dimension gives scalars; these were arrays without dimensions, and have to be
    # again.
    return (block[row : row + 1].reshape(()) for block in blocks for row in range(len(block)))
