"""Local files, globs, retries: what needs no server."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.errors import (
    MissingExtraError,
    SourceError,
    SourceNotFoundError,
    SourcePermissionError,
    SourceReplacedError,
)
from pecan_ray.plan.splits import Split
from pecan_ray.storage.backend import compile_glob

FILES = [
    "a.txt",
    "b.txt",
    "b/1.txt",
    "b/2.bin",
    "b/c/3.txt",
    "b/_done",
    "b/.x.txt",
    "b/.git/4.txt",
    "d[1]/5.txt",
]


def lines(path: Path, rows: int, line: str, header: str = "") -> None:
    path.write_text(header + "".join(line.format(n) for n in range(rows)))


def records(path: Path, rows: int) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(rows):
            writer.write(b"x" * 1000)


def archive(path: Path, rows: int) -> None:
    with tarfile.open(path, "w") as tar:
        for row in range(rows):
            member = tarfile.TarInfo(f"{row:06}.txt")
            member.size = 1000
            tar.addfile(member, io.BytesIO(b"x" * 1000))


def table(path: Path, rows: int) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 60, (rows, 128)).tolist()
    pq.write_table(pa.table({"a": pa.array(values)}), path, row_group_size=500)


CHANGING: dict[str, Callable[[Path, int], None]] = {
    "TextLines": lambda path, rows: lines(path, rows, "{}" + "x" * 1000 + "\n"),
    "JsonLines": lambda path, rows: lines(path, rows, '{{"a": {}, "b": "' + "x" * 1000 + '"}}\n'),
    "Csv": lambda path, rows: lines(path, rows, "1," + "x" * 1000 + "\n", "a,b\n"),
    "TFRecords": records,
    "WebDataset": archive,
    "Parquet": table,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.txt", ["a.txt"]),
        ("b", ["b/1.txt", "b/2.bin", "b/c/3.txt"]),
        ("b/", ["b/1.txt", "b/2.bin", "b/c/3.txt"]),
        ("*.txt", ["a.txt", "b.txt"]),
        ("?/*", ["b/1.txt", "b/2.bin", "b/_done"]),
        ("b/[!2]*.txt", ["b/1.txt"]),
        ("b/.*.txt", ["b/.x.txt"]),
        ("b/**", ["b/1.txt", "b/2.bin", "b/_done", "b/c/3.txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "b/1.txt", "b/c/3.txt", "d[1]/5.txt"]),
        ("**/.git/*", ["b/.git/4.txt"]),
        ("*/c/*.txt", ["b/c/3.txt"]),
        ("d[[]1]/*", ["d[1]/5.txt"]),
    ],
)
def test_patterns(tree: Path, pattern: str, names: list[str]) -> None:
    found = [file.path for file in storage.list_files(f"{tree}/{pattern}")]
    assert found == [f"{tree}/{name}" for name in names]


@pytest.mark.parametrize("pattern", ["missing", "*.png", "b/c/*.bin", "nowhere/*"])
def test_what_names_nothing_is_told(tree: Path, pattern: str) -> None:
    with pytest.raises(SourceNotFoundError, match="Check the") as caught:
        list(storage.list_files([f"{tree}/a.txt", f"{tree}/{pattern}"]))
    assert caught.value.path == f"{tree}/{pattern}"


def test_folders_that_link_in_a_circle_end(tree: Path) -> None:
    (tree / "b" / "c" / "up").symlink_to(tree / "b")
    (tree / "link").symlink_to(tree / "b" / "c")
    assert len(list(storage.list_files(f"{tree}/b"))) == 3
    assert [file.path for file in storage.list_files(f"{tree}/link/*.txt")] == [f"{tree}/link/3.txt"]


def test_reading(tree: Path) -> None:
    path = f"{tree}/a.txt"
    assert storage.read_all(path) == b"a.txt"
    assert storage.read_range(path, 1, 3) == b".t"
    assert storage.read_range(path, 3, 100) == b"xt"
    assert storage.read_range(path, 9) == b""
    assert list(storage.read_many([path, f"{tree}/b/2.bin"])) == [b"a.txt", b"b/2.bin"]
    with storage.open_stream(path, 2) as stream:
        assert stream.read() == b"txt"
    info = storage.file_info(path)
    assert (info.path, info.size) == (path, 5)
    for read in (storage.read_all, storage.open_stream, storage.open_random, storage.file_info):
        with pytest.raises(SourceNotFoundError, match="none"):
            read(f"{tree}/none")


def test_other_schemes_are_refused() -> None:
    with pytest.raises(SourceNotFoundError, match="no storage for nowhere://"):
        list(storage.list_files("nowhere://host/file"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's, which was not made whole
def test_a_scheme_whose_storage_asks_for_more_is_named() -> None:
    with pytest.raises(SourceError, match=r"ftp:// cannot be opened: .*'host'.* FSSPEC_FTP_HOST"):
        list(storage.list_files("ftp://host/file"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tree: Path) -> None:
    (tree / "a.txt").chmod(0)
    with pytest.raises(SourcePermissionError, match="Not allowed to read"):
        storage.read_all(f"{tree}/a.txt")


@pytest.mark.parametrize(("scheme", "module", "extra"), [("s3", "boto3", "s3"), ("gs", "gcsfs", "gcs")])
def test_missing_libraries_are_named(scheme: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage.reset_clients()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'pecan_ray\[{extra}\]'"):
        list(storage.list_files(f"{scheme}://bucket/*"))
    storage.reset_clients()


def test_a_file_that_is_written_to_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1" * (3 << 20))
    info = storage.file_info(str(path))
    with storage.open_stream(str(path), version=info.version) as stream:
        assert stream.read(10) == b"1" * 10
        path.write_bytes(b"2" * (4 << 20))
        with pytest.raises(SourceReplacedError, match=f"{path} was replaced since it was listed"):
            stream.read()
    for read in (storage.open_stream, storage.open_random, storage.read_all):
        with pytest.raises(SourceReplacedError, match=f"{path} was replaced since it was listed"):
            read(str(path), version=info.version)
    assert storage.read_all(str(path)) == b"2" * (4 << 20)


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/cpuinfo"])
def test_a_file_that_says_to_be_empty_and_is_not_is_refused(path: str) -> None:
    assert os.stat(path).st_size == 0
    for read in (storage.file_info, storage.read_all, lambda path: list(pecan.sources.TextLines(path).splits())):
        with pytest.raises(SourceError, match=f"{path} says to have 0 bytes, and has more"):
            read(path)


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert storage.file_info(str(tmp_path / "a")).size == 0 and storage.read_all(str(tmp_path / "a")) == b""
    assert list(pecan.sources.TextLines(str(tmp_path / "a")).read(Split(0, str(tmp_path / "a")))) == []


@pytest.mark.skipif(not os.path.exists("/sys/kernel/uevent_seqnum"), reason="no /sys")
def test_a_file_that_says_to_be_longer_than_it_is_is_refused() -> None:
    path = "/sys/kernel/uevent_seqnum"
    version = storage.file_info(path).version
    with storage.open_stream(path, version=version) as stream, pytest.raises(SourceError, match=f"{path} ends at byte"):
        stream.read()
    for read in (lambda: storage.read_all(path), lambda: list(pecan.sources.TextLines(path).read(Split(0, path)))):
        with pytest.raises(SourceError, match=r"ends at byte \d, and says to have 4096"):
            read()


@pytest.mark.parametrize("change", ["grows", "shrinks", "is emptied", "is written over"])
@pytest.mark.parametrize("kind", ["TextLines", "JsonLines", "Csv", "TFRecords", "WebDataset", "Parquet"])
def test_a_file_that_changes_while_it_is_read_is_refused_or_read_as_it_was(
    tmp_path: Path, kind: str, change: str
) -> None:
    path = tmp_path / f"data.{kind.lower()}"
    write = CHANGING[kind]
    write(path, 4000)
    source = getattr(pecan.sources, kind)(str(path))
    splits = list(source.splits())
    whole = sum(1 for split in splits for _ in source.read(split))
    assert whole == 4000 and path.stat().st_size > 3 << 20
    elements = (element for split in splits for element in source.read(split))
    next(elements)
    changed = path.read_bytes()
    size = {"grows": len(changed) + 9, "shrinks": len(changed) // 2, "is emptied": 0}.get(change, len(changed))
    path.write_bytes((changed + changed[-9:])[:size])
    read: int | str
    try:
        read = 1 + sum(1 for _ in elements)
    except SourceReplacedError as error:
        read = str(error)
    assert read == whole or str(read).startswith(f"{path} was replaced since it was listed")


def test_stars_stay_within_a_folder() -> None:
    assert compile_glob("a/*.x").match("a/b.x")
    assert not compile_glob("a/*.x").match("a/b/c.x")
    assert compile_glob("a/**/*.x").match("a/b/c.x")
    assert not compile_glob("a?b").match("a/b")
    assert compile_glob("a[b-d]").match("ac")
    assert not compile_glob("a[!b-d]").match("ac")
    assert compile_glob("a[x").match("a[x")
    assert not compile_glob("a.x").match("abx")
    assert not compile_glob("a").match("a\n")
