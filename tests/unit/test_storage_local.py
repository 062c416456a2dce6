"""Local files, globs, retries: what needs no server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pecan_ray import storage
from pecan_ray.errors import MissingExtraError, SourceNotFoundError, SourcePermissionError, SourceReplacedError
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
    with pytest.raises(SourceNotFoundError, match="no storage for ftp://"):
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
