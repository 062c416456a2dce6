"""Files of every kind that a source reads, and the sources that read them wherever they lie."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from pecan_ray.plan.splits import Source
from pecan_ray.sources import Csv, ImageFolder, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from pecan_ray.sources.tfrecord import masked_crc


def framed(record: bytes) -> bytes:
    """Return a record as a file of TFRecords holds it."""
    length = struct.pack("<Q", len(record))
    return length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))


def varint(number: int) -> bytes:
    """Return a number as protocol buffers write it."""
    number &= (1 << 64) - 1
    more = varint(number >> 7) if number >> 7 else b""
    return bytes([number & 127 | 128 * bool(more)]) + more


def field(number: int, data: bytes) -> bytes:
    """Return a field of a protocol buffer that holds bytes or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Sequence[Any]) -> bytes:
    """Return a feature of an Example: a list of bytes, floats or integers."""
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return field(1, b"".join(field(1, one) for one in values))
    if isinstance(values[0], float):
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(3, field(1, b"".join(map(varint, values))))


def example(**features: Sequence[Any]) -> bytes:
    """Return an Example."""
    return field(
        1, b"".join(field(1, field(1, name.encode()) + field(2, feature(features[name]))) for name in features)
    )


def sequence(steps: dict[str, list[list[Any]]], **context: Sequence[Any]) -> bytes:
    """Return a SequenceExample."""
    lists = {name: b"".join(field(1, feature(one)) for one in values) for name, values in steps.items()}
    named = (field(1, field(1, name.encode()) + field(2, data)) for name, data in lists.items())
    return example(**context) + field(2, b"".join(named))


def tar_of(files: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive of a folder and files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        folder = tarfile.TarInfo("set")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def table(rows: int = 7, groups_of: int = 3) -> bytes:
    """Return a Parquet file of numbers."""
    file = io.BytesIO()
    pq.write_table(pa.table({"v": range(rows)}), file, row_group_size=groups_of)
    return file.getvalue()


def files_of_every_kind(rows: int) -> dict[str, bytes]:
    """Return two files of each kind by their names, with so many rows where a file has any."""
    files: dict[str, bytes] = {}
    for part in "01":
        files |= {
            f"text/{part} b#.txt": "".join(f"{row}\n" for row in range(rows)).encode(),
            f"json/{part}.jsonl": "".join(f'{{"v": {row}}}\n' for row in range(rows)).encode(),
            f"csv/{part}.csv": ("v\n" + "".join(f"{row}\n" for row in range(rows))).encode(),
            f"images/{part}/a.jpg": part.encode(),
            f"images/{part}/b.jpg": part.encode() * 2,
            f"tar/{part}.tar": tar_of({"0.txt": b"x", "1.txt": b"y" * 600}),
            f"records/{part}": b"".join(framed(b"x%d" % row) for row in range(rows)),
            f"parquet/{part}.parquet": table(rows, rows // 6),
        }
    return files


def sources_of_every_kind(root: str, split_bytes: int) -> list[Source]:
    """Return a source of each kind, with several splits where it can."""
    return [
        TextLines(f"{root}/text", split_bytes=split_bytes),
        JsonLines(f"{root}/json/*.jsonl", split_bytes=2 * split_bytes),
        Csv(f"{root}/csv/**", split_bytes=split_bytes),
        ImageFolder(f"{root}/images", split_files=2),
        WebDataset(f"{root}/tar/[01].tar"),
        TFRecords(f"{root}/records", split_bytes=5 * split_bytes),
        Parquet(f"{root}/parquet", split_bytes=2 * split_bytes),
    ]
