"""The beginning of an entry, which says where its columns lie; equal ones, as splits often have, are read once."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

# Where in the schema's metadata stands what an entry holds, and the bytes of values that are in no column.
ABOUT, BLOBS = b"pecan_ray.entry", b"pecan_ray.blobs"
# Heads of a process, of some kilobytes each: as many points and kinds of split as a job has at a time.
MOST_REMEMBERED = 64
MOST_HEAD_BYTES = 64 << 10
"""A longer one holds bytes of values, and is no other entry's."""
MESSAGE = struct.Struct("<II")
"""How Arrow begins a message: its mark, and the bytes of what it says of what follows."""
# Arrow's continuation marker, which begins every message of a stream.
MARK = 0xFFFFFFFF

BufferPlaces: TypeAlias = tuple[tuple[int, int] | None, ...]
"""Where the buffers of a column begin in the entry, and their bytes; None for one that is empty."""


@dataclass(frozen=True)
class EntryHead:
    """What the first bytes of an entry say of it."""

    metadata: Mapping[str, Any]
    blobs: memoryview
    rows: int
    buffers: Mapping[str, BufferPlaces]
    """By column."""
    end: int
    """Bytes that the entry has at least."""


_remembered: dict[bytes, EntryHead] = {}


def head_of(data: bytes | memoryview) -> EntryHead:
    """Return what the beginning of an entry says; raises ValueError where it is none."""
    try:
        first = _first_bytes(data)
        # Without a lock: at worst two threads read the same head.
        known = _remembered.get(first) if first else None
        if known is None:
            known = _read(data)
            # All at once: a kind of split that is still read comes back with its next entry.
            if len(_remembered) >= MOST_REMEMBERED:
                _remembered.clear()
            if first:
                _remembered[first] = known
    except (pa.ArrowInvalid, KeyError, OSError, StopIteration, struct.error) as error:
        raise ValueError(f"it is no entry: {error}") from error
    # Asked of remembered heads, too: this entry may have been cut off where an equal one was not.
    if len(data) < known.end:
        raise ValueError("it is no entry: bytes of its columns are missing")
    return known


def _first_bytes(data: bytes | memoryview) -> bytes:
    """Return the two messages before the columns' bytes; nothing if they are not to be remembered."""
    at = 0
    for _ in range(2):
        mark, nbytes = MESSAGE.unpack_from(data, at)
        at += MESSAGE.size + nbytes
        if mark != MARK or at > min(len(data), MOST_HEAD_BYTES):
            return b""
    return bytes(data[:at])


def _read(data: bytes | memoryview) -> EntryHead:
    whole_entry = pa.py_buffer(data)
    with pa.ipc.open_stream(whole_entry) as stream:
        metadata = stream.schema.metadata or {}
        batch = stream.read_next_batch()
    facts, begin = json.loads(metadata[ABOUT]), whole_entry.address
    places = {
        name: tuple(
            None if one is None or not one.size else (one.address - begin, one.size) for one in column.buffers()
        )
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    end = max((start + size for column in places.values() for start, size in filter(None, column)), default=0)
    return EntryHead(facts, memoryview(metadata.get(BLOBS, b"")), int(batch.num_rows), places, end)
