"""Compressed files of every kind, and what Python's own modules and the tools of GNU make of them."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import random
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tests.fuzz.damage import Damage
from tests.fuzz.formats import Reading, Reference

Pack = Callable[[bytes], bytes]

ENDINGS = {"gzip": "gz", "bzip2": "bz2", "xz": "xz", "zstd": "zst"}
PACKS: dict[str, Pack] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def packed(
    kind: str, make: Callable[[random.Random], bytes], inside: tuple[Damage, ...]
) -> Callable[[random.Random], bytes]:
    """Return what makes compressed files, of one or two streams; every other one is damaged before it is compressed.

    Between streams of gzip zeros may stand.
    """

    def compressed(rng: random.Random) -> bytes:
        data = make(rng)
        if data and rng.random() < 0.5:
            data = rng.choice(inside)(rng, data)
        middle = len(data) // 2
        parts = [data[:middle], data[middle:]] if rng.random() < 0.3 else [data]
        between = rng.choice((b"", b"\0" * 9)) if kind == "gzip" else b""
        return between.join(PACKS[kind](part) for part in parts)

    return compressed


def from_packed(kind: str, reference: Reference) -> Reference:
    """Return the reference for compressed files: the tool unpacks as far as it can and judges, another one reads."""

    def read(path: Path) -> Reading:
        told = subprocess.run([kind, "-dc"], stdin=path.open("rb"), capture_output=True, check=False)
        problem = told.stderr.decode(errors="replace").strip()
        if told.returncode or not path.stat().st_size:
            problem = problem or f"{kind} ends with {told.returncode}"
        plain = path.with_name("unpacked")
        plain.write_bytes(told.stdout)
        if kind == "gzip" and "trailing garbage ignored" in problem:
            # Of streams with bytes of zero between them the tool gives up those behind; Python's module does not.
            with contextlib.suppress(OSError, EOFError, zlib.error):
                plain.write_bytes(gzip.decompress(path.read_bytes()))
                problem = ""
        reading = reference(plain)
        # Where the tool gives up the last element may lack its end.
        return Reading(reading.elements[:-1] if problem else reading.elements, problem or reading.problem)

    return read
