"""Storages that fsspec knows: its own in memory, and a real web server."""

from __future__ import annotations

import functools
import http.server
import importlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pecan_ray import storage
from pecan_ray.errors import MissingExtraError, SourceNotFoundError, SourceReplacedError
from pecan_ray.sources import TextLines
from tests.source_contract import check_contract

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[None]:
    """Files in fsspec's memory."""
    files = fsspec.filesystem("memory")
    for name in ("a/1.txt", "a/2.txt", "a/_hidden", "a/b/3.txt", "c.txt"):
        files.pipe_file(f"/data/{name}", f"one of {name}\ntwo\n".encode())
    storage.reset_clients()
    yield
    files.rm("/data", recursive=True)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("memory://data/a", ["a/1.txt", "a/2.txt", "a/b/3.txt"]),
        ("memory://data/a/*.txt", ["a/1.txt", "a/2.txt"]),
        ("memory://data/**/*.txt", ["a/1.txt", "a/2.txt", "a/b/3.txt", "c.txt"]),
        ("memory://data/c.txt", ["c.txt"]),
    ],
)
def test_files_folders_and_globs_are_found(pattern: str, found: list[str]) -> None:
    assert [file.path for file in storage.list_files(pattern)] == [f"memory://data/{name}" for name in found]


@pytest.mark.usefixtures("memory")
def test_ranges_are_read_and_replaced_files_refused() -> None:
    (file,) = storage.list_files("memory://data/c.txt")
    assert storage.read_range(file.path, 4, 8, version=file.version) == b"of c"
    assert storage.read_range(file.path, 10) == storage.read_all(file.path)[10:]
    assert storage.read_range(file.path, 1000, 1001) == b""
    assert storage.subfolders("memory://data") == ["a"]
    with pytest.raises(SourceReplacedError, match=r"c\.txt was replaced since it was listed"):
        storage.read_range(file.path, 0, 4, version="another")
    with pytest.raises(SourceNotFoundError, match="there is no file"):
        list(storage.list_files("memory://data/none.txt"))


@pytest.mark.usefixtures("memory")
def test_a_source_reads_it() -> None:
    lines = [b"one of a/1.txt", b"two", b"one of a/2.txt", b"two"]
    check_contract(TextLines("memory://data/a/*.txt"), [{"text": line.decode()} for line in lines], splits=2)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A web server of a folder, which knows no ranges."""
    (tmp_path / "lines.txt").write_text("".join(f"line {number}\n" for number in range(1000)))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_web_server_is_read_also_one_that_knows_no_ranges(server: str) -> None:
    pytest.importorskip("aiohttp")
    storage.reset_clients()
    assert storage.read_range(f"{server}/lines.txt", 7, 14) == b"line 1\n"
    source = TextLines(f"{server}/lines.txt")
    assert sum(1 for split in source.splits() for _ in source.read(split)) == 1000
    with pytest.raises(SourceNotFoundError, match="there is no file"):
        list(storage.list_files(f"{server}/none.txt"))


def test_a_scheme_that_nothing_knows_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceNotFoundError, match=r"There is no storage for ours://"):
        storage.file_info("ours://bucket/x")
    known = fsspec.available_protocols()
    monkeypatch.setattr(fsspec, "available_protocols", lambda: [*known, "ours"])
    registered = {"class": "no_such_package.FileSystem", "err": "pip install no_such_package"}
    monkeypatch.setitem(importlib.import_module("fsspec.registry").known_implementations, "ours", registered)
    storage.reset_clients()
    with pytest.raises(MissingExtraError, match=r"Reading ours:// paths needs fsspec and its package .*no_such"):
        storage.file_info("ours://x")
