"""What is said about the bytes of a Flight message: JSON and plain values, so that reading it runs nobody's code.

What is not plain (objects of a user's own classes) travels as a pickle that is signed with a key.  Worker and trainer
have it from Ray and never send it: a pickle of anybody else's is not opened.
"""

from __future__ import annotations

import hmac
import json
import math
import pickle
import struct
from dataclasses import asdict, dataclass
from typing import Any

from pecan_ray.by_value import dumps
from pecan_ray.engines.contract import BadElement, SpansByKey
from pecan_ray.engines.layout import ColumnPlace
from pecan_ray.engines.plain import NotPlainError, Written, decode, dtype_name, encode, named_dtype, shape_of, whole
from pecan_ray.job.blocks import POSITION_BYTES, RowRange
from pecan_ray.plan.splits import LeaseKey, Origin
from pecan_ray.sampling.spans import Span
from pecan_ray.transport.compression import CODECS, Codec
from pecan_ray.transport.messages import Message

FRAME = struct.Struct("<4sQ")
MAGIC = b"pcn1"
MOST_RATIO = 1 << 16
"""Compressed bytes stand for at most so many times as many: lz4 reaches 255, zstd 30,000 for zeros."""


@dataclass(frozen=True)
class Label:
    """What the bytes of a lot are."""

    number: int
    """Lots of a stream are numbered from 0."""
    messages: tuple[tuple[int, int, Message], ...]
    """Of each batch: where its bytes begin, how many they are, and its columns, which lie in these bytes."""
    size: int
    """Bytes of the lot, before compression."""
    codec: Codec = "none"
    note: str = ""
    """Something to tell the user, once."""


class _Blobs:
    """Bytes that lie behind the JSON of a label, one behind the other."""

    def __init__(self, key: bytes) -> None:
        self.parts: list[bytes] = []
        self._key, self._end = key, 0

    def put(self, *parts: bytes) -> Written:
        start = self._end
        self.parts += parts
        self._end += sum(map(len, parts))
        return [start, self._end - start]

    def value(self, value: Any) -> Written:
        """Keep any value; raises what pickling raises."""
        kept, end = len(self.parts), self._end
        try:
            return {"plain": encode(value, self.put)}
        except (NotPlainError, RecursionError):
            # `encode` may have put some bytes before it met what is not plain.
            del self.parts[kept:]
            self._end = end
        pickled = _pickled(value)
        return {"pickle": self.put(pickled), "signature": _signature(self._key, pickled)}


class _Found:
    """The bytes behind the JSON of a label that has arrived."""

    def __init__(self, data: memoryview, key: bytes) -> None:
        self._data, self._key = data, key

    def get(self, place: Written) -> memoryview:
        start, length = place
        if whole(start) + whole(length) > len(self._data):
            raise ValueError("it names bytes behind its end")
        return self._data[start : start + length]

    def value(self, written: Written) -> Any:
        """Return a value; raises ValueError, also for a pickle without its signature."""
        if "plain" in written:
            return decode(written["plain"], self.get)
        pickled = self.get(written["pickle"])
        # In constant time: how long `==` takes tells how much of a guess is right.
        if not hmac.compare_digest(_signature(self._key, pickled).encode(), str(written["signature"]).encode()):
            raise ValueError("a pickle is not signed by the worker")
        return pickle.loads(pickled)


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Values of classes that came with the pipeline: they travel with their classes, as Ray sends them.
        return dumps(value)


def _signature(key: bytes, pickled: bytes | memoryview) -> str:
    return hmac.new(key, pickled, "sha256").hexdigest()


def write_label(label: Label, key: bytes) -> bytes:
    """Return a label as bytes; raises what pickling raises where a value is not plain."""
    blobs = _Blobs(key)
    messages = [[start, size, _message(message, blobs)] for start, size, message in label.messages]
    written = [label.number, label.size, label.codec, label.note, messages]
    # `default=int`: counts may be NumPy's.
    head = json.dumps(written, separators=(",", ":"), check_circular=False, default=int).encode()
    return b"".join((FRAME.pack(MAGIC, len(head)), head, *blobs.parts))


def _message(message: Message, blobs: _Blobs) -> Written:
    columns = [[name, _column(column, blobs)] for name, column in message.columns.items()]
    bad = [_bad(one, blobs) for one in message.bad]
    spans, without_data = _spans(message.spans), _spans(message.without_data)
    # In the order in which `_read_message` takes it apart.
    return [columns, spans, message.rows, message.epoch, bad, without_data, _write_row_range(message.row_range, blobs)]


def _column(column: Any, blobs: _Blobs) -> Written:
    if type(column) is ColumnPlace:
        try:
            return [column.offset, dtype_name(column.dtype), column.shape]
        except NotPlainError:
            return blobs.value(column)
    return blobs.value(column)


def _spans(spans: SpansByKey) -> Written:
    return [[*key, list(intervals)] for key, intervals in spans.items()]


def _bad(bad: BadElement, blobs: _Blobs) -> Written:
    source_refs = [None if origin is None else asdict(origin) for origin in (bad.origin, bad.first)]
    return [
        bad.op,
        bad.where,
        bad.error,
        blobs.value(bad.element),
        *source_refs,
        bad.elements_left_out,
        bad.estimated,
        bad.open_end,
    ]


def read_label(data: Any, key: bytes) -> Label:
    """Return the label in a buffer, behind which there may be more; raises ConnectionError if it is none."""
    view = memoryview(data)
    try:
        magic, length = FRAME.unpack_from(view)
        if magic != MAGIC or FRAME.size + length > len(view):
            raise ValueError("it does not begin as one")
        found = _Found(view[FRAME.size + length :], key)
        number, size, codec, note, messages = json.loads(bytes(view[FRAME.size : FRAME.size + length]))
        if codec not in ("none", *CODECS) or not isinstance(note, str):
            raise ValueError(f"{codec!r} is no codec")
        size = whole(size)
        read = tuple(_read_message(one, size, found) for one in messages)
        return Label(whole(number), read, size, codec, note)
    # Decision 30: whatever else answers at the worker's port breaks the stream, and not the job.
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConnectionError(f"what came is no label of a worker: {error}") from error


def _read_message(written: Written, body: int, found: _Found) -> tuple[int, int, Message]:
    start, size, (columns, spans, rows, epoch, bad, without_data, places) = written
    if whole(start) + whole(size) > body:
        raise ValueError("a batch goes on behind the end of its lot")
    read = {_text(name): _read_column(column, size, found) for name, column in columns}
    message = Message(
        read,
        _read_spans(spans),
        whole(rows),
        whole(epoch),
        bad=[_read_bad(one, found) for one in bad],
        without_data=_read_spans(without_data),
        row_range=_read_row_range(places, found),
    )
    return start, size, message


def _read_column(written: Written, size: int, found: _Found) -> Any:
    if isinstance(written, list):
        offset, name, shape = written
        place = ColumnPlace(whole(offset), named_dtype(name), shape_of(shape))
        if place.offset + math.prod(place.shape) * place.dtype.itemsize <= size:
            return place
        raise ValueError("a column goes on behind the end of its batch")
    return found.value(written)


def _read_spans(written: Written) -> SpansByKey:
    spans: dict[LeaseKey, list[Span]] = {}
    for branch, pass_index, split, intervals in written:
        key = whole(branch), whole(pass_index), whole(split)
        spans[key] = [(whole(start), whole(end)) for start, end in intervals]
    return spans


def _write_row_range(places: RowRange | None, blobs: _Blobs) -> Written:
    if places is None:
        return None
    return [places.begin, places.end, places.first, places.counts, blobs.put(places.ends)]


def _read_row_range(written: Written, found: _Found) -> RowRange | None:
    if written is None:
        return None
    begin, end, first, counts, ends = written
    rows, packed = tuple(map(whole, counts)), bytes(found.get(ends))
    if len(packed) != sum(rows) * POSITION_BYTES:
        raise ValueError(f"{len(packed)} bytes tell of {sum(rows)} rows")
    return RowRange(whole(begin), whole(end), whole(first), rows, packed)


def _read_bad(written: Written, found: _Found) -> BadElement:
    op, where, error, element, origin, first, left_out, *known = written
    read = (_read_origin(origin), _read_origin(first))
    return BadElement(
        _text(op),
        _text(where),
        _text(error),
        found.value(element),
        *read,
        whole(left_out),
        *(one is True for one in known),
    )


def _read_origin(written: Written) -> Origin | None:
    return None if written is None else Origin(**{name: whole(value) for name, value in written.items()})


def _text(written: Written) -> str:
    if not isinstance(written, str):
        raise ValueError(f"{written!r} is no text")
    return written
