"""How soon hostile files and folders end in an error, at default options.

    python -m benchmarks.hostile [--rounds 3] [--cases pax ...]

Every source is listed and read until its error; what is longer than a bound must be read as far as the bound first.
The least seconds and CPU seconds of the rounds are printed, the error, the elements that came before it, and whether
it names the file and a place in it.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import os
import struct
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from pecan_ray.errors import PecanError
from pecan_ray.plan.splits import Source
from pecan_ray.sources import Csv, ImageFolder, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from pecan_ray.sources.tfrecord import masked_crc

Maker = Callable[[Path], Source]

BOMB_BYTES = 1 << 30
LINE_BYTES = 300 << 20
PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 1),
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


def holding(source: Callable[..., Source], name: str, *pieces: bytes, **options: Any) -> Maker:
    """Return what writes a file and a source that reads it."""

    def make(folder: Path) -> Source:
        with (folder / name).open("wb") as file:
            file.writelines(pieces)
        return source(str(folder / name), **options)

    return make


def bomb(source: Callable[..., Source], ending: str, byte: bytes = b"x", begin: bytes = b"") -> Maker:
    """Return what writes a compressed file of many equal bytes behind a beginning."""

    def make(folder: Path) -> Source:
        # Several streams, one behind the other, are one file.
        piece = PACKS[ending](byte * (64 << 20))
        return holding(source, f"a.{ending}", PACKS[ending](begin or byte), *[piece] * (BOMB_BYTES >> 26))(folder)

    return make


def _header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def _pax(folder: Path) -> Source:
    records = b"0 path=x\n"
    data = _header("pax", tarfile.XHDTYPE, len(records)) + records.ljust(512, b"\0") + _header("0.a") + bytes(1024)
    return holding(WebDataset, "a.tar", data)(folder)


def _pipe(folder: Path) -> Source:
    os.mkfifo(folder / "a.txt")
    return TextLines(folder)


def _pipe_image(folder: Path) -> Source:
    (folder / "class").mkdir()
    os.mkfifo(folder / "class" / "a.jpg")
    return ImageFolder(folder)


def _links(folder: Path) -> Source:
    for step in range(30):
        (folder / f"{step:02}").mkdir()
        for name in ("x", "y"):
            (folder / f"{step:02}" / name).symlink_to(folder / f"{(step + 1) % 30:02}")
    return TextLines(f"{folder}/**/*.txt")


def _deep(folder: Path) -> Source:
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a", dir_fd=inner)
        outer, inner = inner, os.open("a", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    return TextLines(folder)


def _glob(folder: Path) -> Source:
    (folder / ("a" * 200)).write_text("a line\n")
    return TextLines(f"{folder}/{'a*' * 30}b")


def _parquet(folder: Path) -> Source:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 16_384), pa.array([b"x" * (1 << 20)]))
    pq.write_table(pa.table({"x": values}), folder / "a.parquet", store_schema=False)
    return Parquet(folder / "a.parquet", max_record_bytes=1 << 19)


_LYING = struct.pack("<Q", 1 << 40)
_NUMBERS = "".join(f"{number},2\n" for number in range(500_000)).encode()

CASES: dict[str, Maker] = {
    "PAX record of length 0": _pax,
    "named pipe in a folder": _pipe,
    "named pipe among images": _pipe_image,
    "a device": lambda folder: TextLines("/dev/zero"),
    "links that double at each of 30 steps": _links,
    "folders 1,200 deep, and no file": _deep,
    "a glob of 30 stars": _glob,
    "a member of 1 TiB in an archive": holding(WebDataset, "a.tar", _header("0.a", size=1 << 40), bytes(1024)),
    "a record of 1 TiB, checksum right": holding(
        TFRecords, "a", _LYING + struct.pack("<I", masked_crc(_LYING)), bytes(1024)
    ),
    "JSON 2,000 deep": holding(JsonLines, "a", b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}\n"),
    "JSON 10,000,000 deep": holding(JsonLines, "a", b'{"x": ' + b"[" * 10_000_000 + b"\n"),
    "CSV header of 100,000 columns, one twice": holding(Csv, "a", ",".join(map(str, range(100_000))).encode(), b",7\n"),
    "CSV header of 10,000,000 quotes": holding(Csv, "a", b'"' * 10_000_001, b"\n1,2\n"),
    "CSV number of 500,000 digits": holding(Csv, "a", b"a,b\n1,2\n", b"1" * 500_000, b",2\n"),
    "CSV: text behind 500,000 numbers": holding(Csv, "a", b"a,b\n", _NUMBERS, b"x,4\n"),
    "CSV: a quote that stays open for 100 MB": holding(
        Csv, "a", b'a,b\n1,"x\n', b"3,4\n" * 25_000_000, newlines_in_values=True
    ),
    "text without line ends, 300 MiB": holding(TextLines, "a", b"x" * LINE_BYTES),
    "JSON without line ends, 300 MiB": holding(JsonLines, "a", b"x" * LINE_BYTES),
    "CSV without line ends, 300 MiB": holding(Csv, "a", b"a,b\n1,2\n", b"x" * LINE_BYTES),
    **{f"1 GiB of one byte as text, .{ending}": bomb(TextLines, ending) for ending in PACKS},
    "1 GiB of zeros as an archive, .gz": bomb(WebDataset, "gz", b"\0"),
    "1 GiB of empty lines as JSON, .gz": bomb(JsonLines, "gz", b"\n"),
    "a member of 1 GiB in an archive, .gz": bomb(WebDataset, "gz", b"x", _header("0.a", size=BOMB_BYTES)),
    "16,384 values of 1 MiB in a small Parquet file": _parquet,
}


def read(source: Source) -> Iterator[Any]:
    """Yield what a source has."""
    for split in source.splits():
        yield from source.read(split)


def measured(make: Maker) -> tuple[float, float, str, int, bool]:
    """Return seconds and CPU seconds until the error, the error, elements before it, and whether it tells the place."""
    folder = Path(tempfile.mkdtemp(prefix="pecan-hostile-"))
    try:
        source = make(folder)
        began, used, elements, error = time.perf_counter(), time.process_time(), 0, "no error"
        located = False
        try:
            for _ in read(source):
                elements += 1
        except PecanError as told:
            error = type(told).__name__
            where = told.fields.get("path") or str(told)
            located = str(folder) in str(where) or "/dev/" in str(where)
        return time.perf_counter() - began, time.process_time() - used, error, elements, located
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)  # shutil cannot remove what is so deep


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=[""], help="beginnings of their names")
    asked = parser.parse_args()
    print("| case | seconds | of CPU | error | elements before |\n| --- | ---: | ---: | --- | ---: |")
    for name, make in CASES.items():
        if not name.lower().startswith(tuple(case.lower() for case in asked.cases)):
            continue
        rounds = [measured(make) for _ in range(asked.rounds)]
        seconds, cpu = min(each[0] for each in rounds), min(each[1] for each in rounds)
        _, _, error, elements, located = rounds[-1]
        told = error if located or error == "no error" else f"{error}, without the file"
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {told} | {elements:,} |", flush=True)


if __name__ == "__main__":
    main()
