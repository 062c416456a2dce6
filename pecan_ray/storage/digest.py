"""The digest of a dataset: which bytes its objects have, so that whatever comes can be held against it.

A file of lines in JSON: first what it is, then an object a line, at last how many there are and a hash of all lines
before.  For each object it has its size, the version that was read, a hash of all of it (BLAKE2b of 256 bits, as
``b2sum -l 256`` gives) and one of each block, so that a range can be verified without the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Of digest files.
FORMAT_VERSION = 1
# Decision 52: blocks begin at multiples of it, because jobs cut their splits differently.
# Each has a hash of its own, so that a range can be verified without the rest of its object.
BLOCK_BYTES = 1 << 20
"""An object's blocks begin at its multiples; the last one may be shorter."""
# 160 bits of BLAKE2b: no two blocks meet by chance, and a terabyte has 20 MB of hashes.
BLOCK_HASH_BYTES = 20


@dataclass(frozen=True)
class ObjectDigest:
    """What is known of one object's bytes."""

    path: str
    size: int
    version: str
    """The version that was read."""
    blake2b: str
    """Of the whole object, in hexadecimal digits."""
    block_hashes: bytes
    """Of its blocks, one behind the other."""

    def block(self, number: int) -> bytes:
        """Return the hash of a block."""
        return self.block_hashes[number * BLOCK_HASH_BYTES : (number + 1) * BLOCK_HASH_BYTES]


def block_hash(data: bytes | memoryview) -> bytes:
    """Return what stands for the bytes of a block."""
    return hashlib.blake2b(data, digest_size=BLOCK_HASH_BYTES).digest()


def digest_lines(objects: Iterable[ObjectDigest]) -> Iterator[bytes]:
    """Yield the lines of a digest file."""
    messages, count, nbytes = hashlib.blake2b(digest_size=32), 0, 0
    head = _line({"pecan_digest": FORMAT_VERSION, "block_bytes": BLOCK_BYTES})
    messages.update(head)
    yield head
    for one in objects:
        line = _line(
            {
                "path": one.path,
                "size": one.size,
                "version": one.version,
                "blake2b": one.blake2b,
                "blocks": one.block_hashes.hex(),
            }
        )
        messages.update(line)
        count, nbytes = count + 1, nbytes + one.size
        yield line
    yield _line({"objects": count, "bytes": nbytes, "blake2b": messages.hexdigest()})


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def digest_objects(data: bytes) -> Iterator[ObjectDigest]:
    """Yield the objects of a digest file; raises ValueError, KeyError or TypeError where it is not whole."""
    head, _, rest = data.partition(b"\n")
    told = json.loads(head)
    if told["pecan_digest"] != FORMAT_VERSION or told["block_bytes"] != BLOCK_BYTES:
        raise ValueError(f"it has format {told['pecan_digest']!r}, and this pecan_ray reads {FORMAT_VERSION}")
    begin = rest.rstrip(b"\n").rfind(b"\n") + 1
    end = json.loads(rest[begin:])
    lines = rest[:begin]
    if hashlib.blake2b(head + b"\n" + lines, digest_size=32).hexdigest() != end["blake2b"]:
        raise ValueError("its bytes are not those that were written")
    for line in lines.splitlines():
        one = json.loads(line)
        yield ObjectDigest(one["path"], one["size"], one["version"], one["blake2b"], bytes.fromhex(one["blocks"]))
