"""What is said about the bytes of a Flight message: a pickle that is signed with a key.

Worker and trainer have the key from Ray and never send it: what anybody else sends is not opened.
"""

from __future__ import annotations

import hmac
import pickle
import struct
from dataclasses import dataclass
from typing import Any

from pecan_ray.transport.messages import Message, pickled

FRAME = struct.Struct("<4s32sQ")
"""How a label begins: what it is, its signature, and the bytes of the pickle that follows."""
MAGIC = b"pcn2"


@dataclass(frozen=True)
class Label:
    """What the bytes of a lot are."""

    number: int
    """Lots of a stream are numbered from 0."""
    messages: tuple[tuple[int, int, Message], ...]
    """Of each batch: where its bytes begin, how many they are, and its columns, which lie in these bytes."""
    size: int
    """Bytes of the lot."""


def write_label(label: Label, key: bytes) -> bytes:
    """Return a label as bytes; raises what pickling raises."""
    content = pickled(label)
    return FRAME.pack(MAGIC, _signature(key, content), len(content)) + content


def read_label(data: Any, key: bytes) -> Label:
    """Return the label in a buffer, behind which there may be more; raises ConnectionError if it is none."""
    view = memoryview(data)
    if len(view) < FRAME.size:
        raise ConnectionError("what came is no label of a worker")
    magic, signature, length = FRAME.unpack_from(view)
    content = view[FRAME.size : FRAME.size + length]
    # In constant time: how long `==` takes tells how much of a guess is right.
    if magic != MAGIC or not hmac.compare_digest(_signature(key, content), signature):
        raise ConnectionError("what came is no label that the worker has signed")
    label: Label = pickle.loads(content)
    return label


def _signature(key: bytes, content: bytes | memoryview) -> bytes:
    return hmac.digest(key, content, "sha256")
