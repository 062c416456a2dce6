"""How whole files are made and damaged, and how the reference readers read them."""

from __future__ import annotations

import csv
import io
import random
import re
import struct
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from pecan_ray.errors import PecanError
from pecan_ray.plan.splits import Source
from pecan_ray.sources import Csv
from pecan_ray.sources.tfrecord import masked_crc
from tests.fuzz import damage
from tests.fuzz.damage import Damage
from tests.sample_files import framed


@dataclass
class Reading:
    elements: list[Any] = field(default_factory=list)
    problem: str | None = None
    """What it told; None if it took the file for whole."""


Reference = Callable[[Path], Reading]


@dataclass(frozen=True)
class Format:
    ending: str
    make: Callable[[random.Random], bytes]
    source: Callable[[str], Source]
    plain: Callable[[dict[str, Any]], Any]
    """An element of ours as the reference gives it."""
    reference: Reference
    damages: tuple[Damage, ...] = damage.ANY
    in_order: bool = True
    """Ours are the reference's in their order; False: the reference reads on behind damage, and ours are among them."""

    def damaged(self, rng: random.Random) -> bytes:
        data = self.make(rng)
        for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 1, 1, 2, 3))):
            if data:
                data = rng.choice(self.damages)(rng, data)
        return data

    def ours(self, path: Path) -> Reading:
        reading = Reading()
        try:
            source = self.source(str(path))
            for split in source.splits():
                for element in source.read(split):
                    reading.elements.append(self.plain(element))
        except PecanError as error:
            reading.problem = str(error)
        return reading


# --- lines -----------------------------------------------------------------------------------------------------


def text_file(rng: random.Random) -> bytes:
    words = ("", "a", "é€", "\ufeff", "\t ", "x" * 300, "tail\r", "日本")
    end = rng.choice(("", "\n", "\r\n"))
    lines = ["".join(rng.choices(words, k=rng.randrange(4))) for _ in range(rng.randrange(40))]
    return (rng.choice(("\n", "\r\n")).join(lines) + end).encode()


def lines_in(data: bytes) -> Iterator[bytes]:
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        yield line.removesuffix(b"\r")


def text_reference(path: Path) -> Reading:
    return each_line(path.read_bytes(), lambda line: line.decode("utf-8"))


def each_line(data: bytes, take: Callable[[bytes], Any]) -> Reading:
    reading = Reading()
    for line in lines_in(data):
        try:
            reading.elements.append(take(line))
        except (ValueError, RecursionError) as error:
            reading.problem = str(error)
            break
    return reading


def deep(rng: random.Random, data: bytes) -> bytes:
    opening = rng.choice((b"[", b'{"a":', b'{"a":['))
    return data + b'{"x": ' + opening * rng.choice((100, 2000, 200_000)) + b"\n"


# --- CSV -------------------------------------------------------------------------------------------------------

COLUMNS = ("a", "b", "c")


def csv_file(rng: random.Random) -> bytes:
    cells = ("", "1", "x", "é", 'say "so"', "a,b", "NA", "x" * 200, " y ", "two\nlines", "r\r")
    plain = cells[:9]
    several = rng.random() < 0.3
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=rng.choice(("\n", "\r\n")))
    writer.writerow(COLUMNS)
    for _ in range(rng.randrange(30)):
        writer.writerow(rng.choices(cells if several else plain, k=3))
    return text.getvalue().encode()


def csv_tokens(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    token = rng.choice((b'"', b",", b"\n", b"\r", b'""', b"\r\n", b",,,", b'",', b'\n"', b"\0"))
    return data[:at] + token + data[at:]


def csv_reference(path: Path) -> Reading:
    """Read with Python's csv; what is no row of three cells, or open at the end, is a problem."""
    reading = Reading()
    try:
        text = path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8")
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (csv.Error, ValueError) as error:
        return Reading(problem=str(error))
    if not rows or len(set(rows[0])) < len(rows[0]):
        return Reading(problem="no header, or one that names a column twice")
    for row in rows[1:]:
        if len(row) != len(rows[0]):
            reading.problem = "a row of another length"
            break
        reading.elements.append(tuple(row))
    return reading


class TextCsv(Csv):
    """A Csv of which all columns are text, whatever they are called in a damaged file."""

    def _infer(self, path: str, version: str) -> tuple[Any, bool]:
        schema, has_rows = super()._infer(path, version)
        return pa.schema([(name, pa.string()) for name in schema.names]), has_rows


# --- TFRecord --------------------------------------------------------------------------------------------------


def tfrecord_file(rng: random.Random) -> bytes:
    return b"".join(framed(rng.randbytes(rng.choice((0, 1, 30, 700)))) for _ in range(rng.randrange(1, 20)))


def lying_length(rng: random.Random, data: bytes) -> bytes:
    length = struct.pack("<Q", rng.choice((0, 1, 100, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)))
    header = length + struct.pack("<I", masked_crc(length))
    at = rng.choice([0, *[at for at in range(len(data) - 12) if data[at + 4 : at + 8] == bytes(4)]])
    return data[:at] + header + data[at + 12 :]


def tfrecord_reference(path: Path) -> Reading:
    import tensorflow as tf

    data, at, reading = path.read_bytes(), 0, Reading()
    while at + 12 <= len(data):
        end = at + 16 + int(struct.unpack_from("<Q", data, at)[0])
        if end > len(data):  # TensorFlow would ask for the memory first
            reading.problem = "a record is longer than the file"
            path = path.with_suffix(".begin")
            path.write_bytes(data[:at])
            break
        at = end
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            reading.elements.append(record)
    except tf.errors.OpError as error:
        reading.problem = str(error)
    return reading


# --- tar -------------------------------------------------------------------------------------------------------


def tar_file(rng: random.Random) -> bytes:
    """Return an archive of samples, now and then two of them one behind the other."""
    out = io.BytesIO()
    number = 0
    for _ in range(rng.choice((1, 1, 1, 2))):
        kind = rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
        with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
            for _ in range(rng.randrange(1, 8)):
                number += 1
                stem = (
                    f"{number:03}" if kind == tarfile.USTAR_FORMAT or rng.random() < 0.8 else f"é{number}" + "k" * 120
                )
                for extension in rng.sample(("a", "b", "c.d"), rng.randrange(1, 4)):
                    data = rng.randbytes(rng.choice((0, 3, 512, 900)))
                    info = tarfile.TarInfo(f"{stem}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        if rng.random() < 0.2:
            out.write(bytes(512 * rng.randrange(5)))
    return out.getvalue()


def header_field(rng: random.Random, data: bytes) -> bytes:
    places = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    if not places:
        return data
    at = rng.choice(places)
    header = bytearray(data[at : at + 512])
    start, width = rng.choice(((124, 12), (124, 12), (156, 1), (0, 5), (345, 10), (100, 8)))
    sizes = (b"-0000000010\0", b"\xff" * 11 + b"\0", b"\x80" + bytes(10) + b"\x05", b"77777777777\0", b"00000000000\0")
    if width == 12:
        value = rng.choice((*sizes, b"\xff" * 12, b"\x80" + b"\xff" * 11, b"%011o\0" % rng.randrange(4000)))
    elif width == 1:
        value = bytes((rng.choice(b"\x000123456789xgLKSVDMXN7Az"),))
    else:
        value = rng.randbytes(width)
    header[start : start + width] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:at] + bytes(header) + data[at + 512 :]


def pax_record(rng: random.Random, data: bytes) -> bytes:
    records = rng.choice(
        (b"0 path=x\n", b"9 size=5\n", b"99 path=x\n", b"x\n", b"10 size=-1\n", b"18 GNU.sparse.x=1\n\n")
    )
    at = rng.randrange(len(data) // 512 + 1) * 512
    info = tarfile.TarInfo("pax")
    info.type, info.size = rng.choice((tarfile.XHDTYPE, tarfile.XHDTYPE, tarfile.XGLTYPE)), len(records)
    return data[:at] + info.tobuf() + records.ljust(512, b"\0") + data[at:]


def tar_reference(path: Path) -> Reading:
    """Read with Python's tarfile, which is told to read on, and let GNU tar judge."""
    reading = Reading()
    try:
        with tarfile.open(path, ignore_zeros=True, mode="r:") as tar:
            for member in tar:
                file = tar.extractfile(member) if member.isreg() else None
                stem, dot, _ = Path(member.name).name.partition(".")
                if file is not None and stem and dot and not member.issparse():
                    reading.elements.append((re.sub("/+", "/", member.name), file.read()))
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        reading.problem = repr(error)
    told = subprocess.run(["tar", "-i", "-tf", path], capture_output=True, check=False)
    words = [line for line in told.stderr.decode(errors="replace").splitlines() if not _is_harmless(line)]
    return Reading(reading.elements, "\n".join(words) or reading.problem)


def _is_harmless(line: str) -> bool:
    return not line or "Substituting" in line or "Removing leading" in line


def plain_sample(element: dict[str, Any]) -> list[tuple[str, bytes]]:
    return [(f"{element['__key__']}.{name}", data) for name, data in element.items() if name != "__key__"]
