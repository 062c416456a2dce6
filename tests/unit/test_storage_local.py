"""Local files, globs, retries: what needs no server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pecan_ray import storage
from pecan_ray.errors import MissingExtraError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.backend import compile_glob
from pecan_ray.storage.retry import Backoff, retry

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


def test_retry_ends_with_success_or_the_last_error() -> None:
    pauses: list[float] = []
    outcomes: Iterator[str | Exception] = iter([TimeoutError(), TimeoutError(), "data"])

    def call() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    backoff = Backoff(attempts=3)
    assert retry(call, passes=lambda error: True, backoff=backoff, sleep=pauses.append) == "data"
    assert len(pauses) == 2
    outcomes = iter([TimeoutError(), TimeoutError(), TimeoutError("third"), "data"])
    with pytest.raises(TimeoutError, match="third"):
        retry(call, passes=lambda error: True, backoff=backoff, sleep=pauses.append)
    outcomes = iter([ValueError("lasting"), "data"])
    with pytest.raises(ValueError, match="lasting"):
        retry(call, passes=lambda error: isinstance(error, TimeoutError), sleep=pauses.append)
    assert len(pauses) == 4


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=1.0, longest_s=10.0)
    assert [backoff.pause_s(failures, 0.5) for failures in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
