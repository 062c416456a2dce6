"""Files that would lose elements without a word, or be read without end; tests/fuzz damages many more."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray import storage
from pecan_ray.errors import ColumnError, CorruptSourceError, ErrorBudgetError, PlanError, SourceError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.splits import Source
from pecan_ray.sources import Csv, ImageFolder, JsonLines, Parquet, TextLines, TFRecords, WebDataset, parquet_rows
from pecan_ray.sources.tfrecord import masked_crc
from pecan_ray.storage.backend import compile_glob
from tests.sample_files import framed, tar_of
from tests.source_contract import elements_of
from tests.unit.engines.engine_leases import run_engine

# --- archives --------------------------------------------------------------------------------------------------


def header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def test_negative_sizes_are_told(tmp_path: Path) -> None:
    negative = tar_of({"0.a": b"x"})[: 3 * 512] + header("1.a", size=-512) + bytes(1024)
    for name, data in (("a.tar", negative), ("a.tar.gz", gzip.compress(negative))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorruptSourceError, match=r"size of '1.a' is negative"):
            elements_of(WebDataset(tmp_path / name))


# --- compressed files ------------------------------------------------------------------------------------------

PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".GZ": gzip.compress,
    ".bz2": bz2.compress,
    ".zlib": zlib.compress,
    ".xz": lzma.compress,
    ".lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE),
    ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("ending", list(PACKED))
def test_compressed_files(tmp_path: Path, ending: str) -> None:
    pack = PACKED[ending]
    lines = "".join(f"line {n}\n" for n in range(5000)).encode()
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack(lines[:20_000]) + pack(lines[20_000:]))
    assert [one["text"] for one in elements_of(TextLines(path))] == [f"line {n}" for n in range(5000)]
    whole = pack(lines)
    for broken in (b"", whole[:-3], whole[: len(whole) // 2], whole + b"junk", b"junk", bytes(68)):
        path.write_bytes(broken)
        with pytest.raises(CorruptSourceError, match="broken or cut off after") as caught:
            elements_of(TextLines(path))
        assert caught.value.path == str(path)


def test_bombs_are_cut_off(tmp_path: Path) -> None:
    size, bound = 8 << 20, 1 << 18
    record = struct.pack("<Q", size)
    cases: list[tuple[Source, bytes, bytes]] = [
        (TextLines(tmp_path, max_record_bytes=bound), b"x", b""),
        (JsonLines(tmp_path, max_record_bytes=bound), b"x", b""),
        (JsonLines(tmp_path, max_record_bytes=bound), b"\n", b""),
        (Csv(tmp_path, max_record_bytes=bound), b"x", b"a,b\n1,2\n"),
        (Csv(tmp_path, newlines_in_values=True, max_record_bytes=bound), b"\n", b'a,b\n1,"'),
        (TFRecords(tmp_path, max_record_bytes=bound), b"x", record + struct.pack("<I", masked_crc(record))),
        (WebDataset(tmp_path, max_record_bytes=bound), b"x", header("0.a", size=size)),
        (WebDataset(tmp_path, max_record_bytes=bound), b"\0", tar_of({"0.a": b"x"})),
    ]
    for source, byte, begin in cases:
        (tmp_path / "a.gz").write_bytes(gzip.compress(begin + byte * size, 1))
        with pytest.raises(CorruptSourceError) as caught:
            elements_of(source)
        assert caught.value.path == f"{tmp_path}/a.gz" and caught.value.offset <= size, source


# --- tables --------------------------------------------------------------------------------------------------


def test_parquet_whose_pages_names_or_texts_are_broken_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    numbers = pa.table({"x": list(range(10_000))})
    pq.write_table(numbers, path, compression="none", use_dictionary=False, write_page_checksum=True)
    damaged = bytearray(path.read_bytes())
    damaged[5000] ^= 1
    for data, said in ((damaged, r"element 0 of .*CRC"), (damaged[:-10], "no readable Parquet footer")):
        path.write_bytes(data)
        with pytest.raises(CorruptSourceError, match=said):
            elements_of(Parquet(path))
    pq.write_table(pa.table({"x": pa.array([b"ok", b"\xff"]).view(pa.string())}), path)
    with pytest.raises(CorruptSourceError, match=r"element 1 of .*'x'.*utf-8"):
        elements_of(Parquet(path))
    pq.write_table(pa.Table.from_arrays([pa.array([n]) for n in range(3)], ["x", "y", "x"]), path)
    with pytest.raises(ColumnError, match="has 'x' twice"):
        elements_of(Parquet(path))
    assert elements_of(Parquet(path, "y")) == [{"y": 1}]


# --- few bytes of Parquet that stand for many ------------------------------------------------------------------


def parquet_bomb(path: Path, column: Any, **options: Any) -> None:
    """Write a file of few bytes whose column is as large as it is."""
    small = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False, "write_batch_size": 16}
    pq.write_table(pa.table({"s": column}), path, **{**small, **options})


def repeated(value: Any, rows: int) -> Any:
    """Return a column that holds a value once for all rows."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))


LONG = "x" * (1 << 20)
PLAIN: dict[str, Any] = {"use_dictionary": False}
BOMBS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "one value of 1 MiB in 16,384 rows": (lambda: repeated(LONG, 1 << 14), {}),
    "rows as long as those before": (lambda: [LONG] * 900, PLAIN | {"column_encoding": {"s": "DELTA_BYTE_ARRAY"}}),
    "long rows among many empty ones": (lambda: [""] * 20_000 + [LONG] * 900 + [""] * 20_000, PLAIN),
}

READ_IT = """
import itertools, resource, sys
from pecan_ray.sources import Parquet
resource.setrlimit(resource.RLIMIT_DATA, (3 << 28, 3 << 28))
source = Parquet(sys.argv[1])
(split,) = source.splits()
print(sum(len(columns["s"]) for columns in itertools.islice(source.read_columns(split), int(sys.argv[2]))))
"""


@pytest.mark.parametrize("kind", BOMBS)
def test_few_bytes_of_parquet_do_not_fill_the_memory(tmp_path: Path, kind: str) -> None:
    make, options = BOMBS[kind]
    column = make()
    parquet_bomb(tmp_path / "a.parquet", column, **options)
    some = len(column) == 1 << 14  # all of its 16 GiB take half a minute
    most, rows = (4, 4 * 64) if some else (sys.maxsize, len(column))
    del column
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    command = [sys.executable, "-c", READ_IT, str(tmp_path / "a.parquet"), str(most)]
    read_it = subprocess.run(command, capture_output=True, text=True, check=False)
    assert read_it.stdout == f"{rows}\n", read_it.stderr[-3000:]


def test_lists_of_parquet_that_unpack_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet_bomb(tmp_path / "a.parquet", pa.ListArray.from_arrays([0, 1 << 12], repeated(LONG, 1 << 12)))
    with pytest.raises(CorruptSourceError, match=r"element 0 of .*group 0, from byte 4 on.*'s.list.*unpack to 42949"):
        elements_of(Parquet(tmp_path / "a.parquet"))
    monkeypatch.setattr(parquet_rows, "LISTS_BYTES", 1 << 24)
    parquet_bomb(tmp_path / "a.parquet", pa.ListArray.from_arrays([0, 1 << 22], pa.nulls(1 << 22, pa.int64())))
    with pytest.raises(CorruptSourceError, match=r"unpack to 33554432 bytes"):
        elements_of(Parquet(tmp_path / "a.parquet"))


@pytest.mark.parametrize("rows", [None, 1, 7])
def test_rows_of_parquet_beyond_the_bound_are_refused(tmp_path: Path, rows: int | None) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": ["x" * (2000 if n == 57 else 100) for n in range(100)]}), path, row_group_size=50)
    assert len(elements_of(Parquet(path, batch_rows=rows, max_record_bytes=2500))) == 100
    source = Parquet(path, batch_rows=rows, max_record_bytes=1500)
    (split,) = source.splits()
    for start in (0, 10, 40, 57):
        came: list[Any] = []
        with pytest.raises(CorruptSourceError, match=r"more than max_record_bytes=1500") as caught:
            came.extend(source.read(split, start))
        assert (caught.value.element, caught.value.path) == (57, str(path)) and len(came) == 57 - start
        assert caught.value.offset == pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset


# --- folders ---------------------------------------------------------------------------------------------------


def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for pattern in (tmp_path, tmp_path / "*", tmp_path / "pipe.jpg"):
        with pytest.raises(SourceError, match=r"pipe.jpg is a named pipe"):
            elements_of(TextLines(pattern))
    with pytest.raises(SourceError, match="named pipe"):
        list(ImageFolder(tmp_path.parent).splits())
    with pytest.raises(SourceError, match="/dev/zero is a device"):
        elements_of(TextLines("/dev/zero"))


def test_links_that_double_with_every_step_end(tmp_path: Path) -> None:
    for step in range(12):
        (tmp_path / f"{step:02}").mkdir()
        for name in ("x", "y"):
            (tmp_path / f"{step:02}" / name).symlink_to(tmp_path / f"{(step + 1) % 12:02}")
    for pattern in (tmp_path, f"{tmp_path}/**/*.txt"):
        with pytest.raises(SourceError, match=r"Links lead to the folder .* more than 1000 ways"):
            list(storage.list_files(str(pattern)))


def test_deep_folders_are_read(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a", dir_fd=folder)
        inner = os.open("a", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(os.open("x.txt", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
    os.close(folder)
    found = [list(storage.list_files(str(pattern))) for pattern in (tmp_path, f"{tmp_path}/**/x.txt")]
    subprocess.run(["rm", "-r", tmp_path / "a"], check=True)  # pytest cannot
    assert [len(files) for files in found] == [1, 1]


WAYS = {
    "a*" * 30 + "b": "a" * 250,
    "/".join(["**", "a"] * 20) + "/b": "/".join("a" * 200),
    "?*" * 100 + "b": "a" * 250,
    "/".join(["**", "*a*"] * 20) + "/b": "/".join(["aaa"] * 200),
    "**/" * 300 + "x": "/".join("a" * 200),
}


@pytest.mark.parametrize("pattern", WAYS)
def test_globs_do_not_try_all_ways(pattern: str) -> None:
    assert not compile_glob(pattern).match(WAYS[pattern])


@pytest.mark.parametrize("paths", [None, 7, [None], "a\0b", [], ""])
def test_paths_that_are_none_are_refused(paths: Any) -> None:
    with pytest.raises(PlanError, match="path"):
        TextLines(paths)


# --- how much is lost ------------------------------------------------------------------------------------------


def left_out(source: Source) -> tuple[int, int, str]:
    """Return how many elements came, how many were told as left out, and what was told last."""
    produced = run_engine(PecanPipeline(source).batch(64), on_error="skip")
    bad = [one for batch in produced for one in batch.bad]
    return sum(batch.rows for batch in produced), sum(one.elements_left_out for one in bad), bad[-1].error


def test_what_lies_behind_a_break_in_an_archive_is_counted(tmp_path: Path) -> None:
    data = bytearray(tar_of({f"{n:03}.a": b"x" * 600 for n in range(100)}))
    at = data.index(b"060.a")
    data[at : at + 512] = bytes(512)
    for name, packed in (("a.tar", bytes(data)), ("b.tar.gz", gzip.compress(data))):
        (tmp_path / name).write_bytes(packed)
        came, lost, _ = left_out(WebDataset(tmp_path / name))
        assert came in (59, 60) and abs(came + lost - 100) <= 8


def test_a_split_that_breaks_at_once_counts_as_the_others(tmp_path: Path) -> None:
    by_bytes, by_length = "bytes, by those of other splits", "the mean length of other splits"
    for pack, least, most, by in ((bytes, 295, 305, by_bytes), (gzip.compress, 200, 200, by_length)):
        folder = tmp_path / pack.__name__
        folder.mkdir()
        for name, count, first in (("a", 200, b""), ("b", 200, b""), ("c", 300, b"\0")):
            data = b"".join(framed(b"%d" % n) for n in range(count))
            (folder / f"{name}{'' if pack is bytes else '.gz'}").write_bytes(pack(first + data[len(first) :]))
        came, lost, error = left_out(TFRecords(folder))
        assert came == 400 and least <= lost <= most and by in error


def test_a_broken_file_among_many_uses_up_the_error_budget(tmp_path: Path) -> None:
    for file in range(11):
        data = b"".join(framed(b"%d" % n) for n in range(5000))
        (tmp_path / f"{file:02}").write_bytes(data if file < 10 else b"\0" + data[1:])
    batches = PecanPipeline(TFRecords(tmp_path), name="torn").batch(100).iter_batches(on_error="skip", debug=True)
    with pytest.raises(ErrorBudgetError, match=r"About 5\d{3} elements are left out, estimated by its \d+") as over:
        list(batches)
    assert 4900 <= over.value.fields["bad"] <= 5100
