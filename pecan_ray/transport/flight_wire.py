"""How batches lie in the messages of an Arrow Flight stream.

A *lot* is what travels in one message: one batch, whose bytes are the worker's slot itself, or several small ones,
joined by a copy.  A message is a record batch of one column of bytes; its application metadata is a `Label` that says
which columns lie where.  Larger bodies than Flight carries come in pieces, the last one with the label.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.layout import ColumnPlace
from pecan_ray.engines.slots import lay_out
from pecan_ray.transport.flight_label import Label, read_label, write_label
from pecan_ray.transport.messages import Memory, Message, describe_batch, placed, views

SCHEMA: Any = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
HELLO = "hello"
"""Action that shows whether a server can be reached and believes the token."""
END = b"end"
"""Last word of a stream: there is no more."""
GONE = b"gone"
"""Last word of a stream: there may be more, but not here."""
ANSWER = struct.Struct("<qq")
"""What a client says: how many lots it has received, and how many it has granted.

Both are sums since the beginning, so that it does not matter which of the answers on a stream that breaks arrive.
"""
ALIGNMENT = 16
"""gRPC puts a message at a multiple of it: so the body is aligned if what precedes it is padded."""
HEADER = 136
"""Bytes that Arrow's own header of our record batches takes."""
LARGEST_PIECE = 1 << 30
"""Flight carries up to 2 GiB in one message."""
SPARSE = 1.5
"""A slot that is larger than its columns by this factor is not sent as it is."""


def wrap(lot: Sequence[Produced]) -> tuple[Label, Any]:
    """Return the label (number 0) and the bytes of a lot: without a copy if it is one batch that fills its slot."""
    found = [_filled(*placed(produced)) for produced in lot]
    if len(lot) == 1:
        columns, memory = found[0]
        return Label(0, ((0, memory.size, describe_batch(lot[0], columns)),), memory.size), pa.py_buffer(memory)
    starts, total = lay_out([memory.size for _, memory in found])
    body: Memory = np.empty(total, np.uint8)
    messages = []
    for produced, (columns, memory), start in zip(lot, found, starts, strict=True):
        body[start : start + memory.size] = memory
        messages.append((start, memory.size, describe_batch(produced, columns)))
    return Label(0, tuple(messages), total), pa.py_buffer(body)


def _filled(columns: dict[str, Any], memory: Memory) -> tuple[dict[str, Any], Memory]:
    """Return columns and memory as they are if the columns fill it, else side by side in memory of their own."""
    old = {name: column for name, column in columns.items() if isinstance(column, ColumnPlace)}
    sizes = [place.nbytes for place in old.values()]
    # 4,096: slots are rounded up to pages, so a small one is never full.
    if memory.size <= SPARSE * sum(sizes) + 4096:
        return columns, memory
    offsets, size = lay_out(sizes)
    close: Memory = np.empty(size, np.uint8)
    for place, offset in zip(old.values(), offsets, strict=True):
        close[offset : offset + place.nbytes] = memory[place.offset : place.offset + place.nbytes]
    places = {name: replace(place, offset=at) for (name, place), at in zip(old.items(), offsets, strict=True)}
    return {**columns, **places}, close


def send(writer: Any, label: Label, body: Any, key: bytes) -> None:
    """Write a lot to a stream, waiting until the network has taken it; `key` signs its label."""
    text = write_label(label, key)
    if not body.size:
        writer.write_metadata(text)
        return
    *pieces, last = [body.slice(at, min(LARGEST_PIECE, body.size - at)) for at in range(0, body.size, LARGEST_PIECE)]
    for piece in pieces:
        writer.write_batch(_record(piece))
    writer.write_with_metadata(_record(last), _padded(text, last.size))


def _record(piece: Any) -> Any:
    column = pa.Array.from_buffers(pa.uint8(), piece.size, [None, piece])
    return pa.RecordBatch.from_arrays([column], schema=SCHEMA)


def _padded(text: bytes, body: int) -> bytes:
    """Lengthen a label, which ends by itself, so that the body behind it is aligned.

    A message is a protocol buffer: header, metadata and body, each behind a tag of 1, 1 and 2 bytes and its length.
    """
    for padding in range(ALIGNMENT + 1):
        length = len(text) + padding
        before = 1 + _length_bytes(HEADER) + HEADER + 1 + _length_bytes(length) + length + 2 + _length_bytes(body)
        if before % ALIGNMENT == 0:
            return text + bytes(padding)
    return text


def _length_bytes(number: int) -> int:
    """Bytes that a protocol buffer takes for a length."""
    return max(1, -(-number.bit_length() // 7))


def received_items(reader: Any, key: bytes) -> Iterator[tuple[Label, Memory]]:
    """Yield what a stream brings, to its proper end; raises ConnectionError if it ends otherwise."""
    pieces: list[Any] = []
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            raise ConnectionError("the stream ended before its last message") from None
        if chunk.data is not None:
            pieces.append(chunk.data.column(0).buffers()[1])
        text = chunk.app_metadata
        del chunk
        # A piece of a large lot: the label comes with the last one.
        if text is None:
            continue
        if text.equals(pa.py_buffer(END)):
            return
        if text.equals(pa.py_buffer(GONE)):
            raise ConnectionError("the worker has ended the stream early")
        label = read_label(text, key)
        arrived = [(label, _memory(pieces, label))]
        del label
        pieces = []
        yield arrived.pop()  # nothing here keeps what was taken


def _check_size(label: Label, came: int) -> None:
    """Raise ConnectionError where so many bytes cannot be what a label says."""
    if label.size != came:
        raise ConnectionError(f"a message of another size came than its label says ({label.size})")


def _memory(pieces: list[Any], label: Label) -> Memory:
    """Return the bytes of a lot, aligned and writable: of one piece without a copy."""
    # Decision 30: sizes are checked before memory is touched.
    _check_size(label, sum(piece.size for piece in pieces))
    if not pieces:
        return np.empty(0, np.uint8)
    if len(pieces) == 1 and pieces[0].address % ALIGNMENT == 0:
        return own(pieces[0])
    # A copy, which also aligns a single piece.
    return np.concatenate([np.frombuffer(piece, np.uint8) for piece in pieces])


class _Owned:
    """Shows NumPy the bytes of an Arrow buffer as writable, and keeps them."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            # False: it is not read-only.
            "data": (buffer.address, False),
            "shape": (buffer.size,),
            "typestr": "|u1",
            "version": 3,
        }


def own(buffer: Any) -> Memory:
    """Return a writable view of a buffer that nobody else reads: what arrived in a message belongs to its receiver.

    The buffer lives as long as any view of it.
    """
    return np.asarray(_Owned(buffer))


def unwrap(label: Label, memory: Memory) -> list[Message]:
    """Return the batches of a lot: a single one as views of the memory; of several, each with memory of its own.

    So a trainer that keeps one small batch does not keep the others.
    """
    if len(label.messages) == 1:
        return [_opened(label.messages[0][2], memory)]
    return [_opened(message, memory[start : start + size].copy()) for start, size, message in label.messages]


def _opened(message: Message, memory: Memory) -> Message:
    return replace(message, columns=views(message.columns, memory))
