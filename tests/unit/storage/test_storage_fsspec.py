"""Storages that fsspec knows: its own in memory, and web servers that fail for a while or tell a wrong size."""

from __future__ import annotations

import http.server
import importlib
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from pecan_ray import storage
from pecan_ray.errors import (
    MissingExtraError,
    SourceError,
    SourceNotFoundError,
    SourcePermissionError,
    SourceReplacedError,
    StorageOutageError,
)
from pecan_ray.sources import TextLines
from pecan_ray.storage.retry import Backoff, set_patience
from tests.flaky_http import FlakyProxy, flaky_proxy, serving
from tests.source_contract import elements_of

pytest.importorskip("aiohttp")
fsspec = pytest.importorskip("fsspec")

TEXTS = [f"line {number}" for number in range(20)]
BODY = "".join(f"{text}\n" for text in TEXTS).encode()


# --- memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def memory() -> Iterator[Any]:
    files = fsspec.filesystem("memory")
    for name in ("a/1.txt", "a/2.txt", "b/3.txt"):
        files.pipe_file(f"/data/{name}", f"one of {name}\ntwo\n".encode())
    storage.reset_clients()
    yield files
    files.rm("/data", recursive=True)


def test_a_folder_that_cannot_be_listed_is_not_left_out(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's own walk goes on without it."""
    plain, failures = type(memory).ls, [OSError("first"), ConnectionResetError("then")]

    def ls(self: Any, path: str, *more: Any, **named: Any) -> Any:
        if path.rstrip("/").endswith("/b") and len(failures) == 2:
            raise failures.pop()
        return plain(self, path, *more, **named)

    monkeypatch.setattr(type(memory), "find", fsspec.AbstractFileSystem.find)  # as most file systems have it
    monkeypatch.setattr(type(memory), "ls", ls)
    storage.reset_clients()
    found = [file.path for file in storage.list_files("memory://data")]
    assert found == [f"memory://data/{name}" for name in ("a/1.txt", "a/2.txt", "b/3.txt")] and len(failures) == 1
    with pytest.raises(SourceReplacedError, match=r"1\.txt was replaced since it was listed"):
        storage.read_range(found[0], 0, 4, version="another")


# --- schemes that nothing here reads ---------------------------------------------------------------------------


MISSING = {
    "s3": ("boto3", r"pip install 'pecan_ray\[s3\]'"),
    "gs": ("gcsfs", r"pip install 'pecan_ray\[gcs\]'"),
    "az": ("adlfs", r"az:// paths needs .*adlfs.*pecan_ray\[fsspec\]"),
    "abfs": ("adlfs", r"abfs:// paths needs .*adlfs.*pecan_ray\[fsspec\]"),
    "hf": ("huggingface_hub", r"hf:// paths needs .*huggingface_hub.*pecan_ray\[fsspec\]"),
    "ours": ("no_such_package", r"Reading ours:// paths needs fsspec and its package .*no_such"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fsspec's, which was not made whole
def test_a_scheme_that_nothing_knows_and_a_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceNotFoundError, match=r"There is no storage for ours://"):
        storage.file_info("ours://bucket/x")
    with pytest.raises(SourceError, match=r"ftp:// cannot be opened: .*'host'.* FSSPEC_FTP_HOST"):
        list(storage.list_files("ftp://host/file"))
    known = fsspec.available_protocols()
    monkeypatch.setattr(fsspec, "available_protocols", lambda: [*known, "ours"])
    registry = importlib.import_module("fsspec.registry")
    registered = {"class": "no_such_package.FileSystem", "err": "pip install no_such_package"}
    monkeypatch.setitem(registry.known_implementations, "ours", registered)
    monkeypatch.setattr(registry, "_registry", {})
    for scheme, (package, said) in MISSING.items():
        monkeypatch.setitem(sys.modules, package, None)
        storage.reset_clients()
        with pytest.raises(MissingExtraError, match=said):
            list(storage.list_files(f"{scheme}://bucket/x"))
    storage.reset_clients()


# --- web servers -----------------------------------------------------------------------------------------------


class Lines(http.server.BaseHTTPRequestHandler):
    """Gives one text under every path, by ranges; a test says how it answers HEAD."""

    protocol_version = "HTTP/1.1"
    head_status: ClassVar[int] = 200
    head_length: ClassVar[int] = len(BODY)
    knows_ranges: ClassVar[bool] = True

    def do_GET(self) -> None:
        wanted = self.headers.get("Range") if self.knows_ranges else None
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        data = BODY[int(first) : int(last) + 1 if last else None]
        self.response(206 if wanted else 200, len(data))
        self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.response(self.head_status, self.head_length)

    def response(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *said: Any) -> None:
        """Say nothing."""


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyProxy]:
    monkeypatch.setattr(Backoff, "pause_s", lambda self, failures, chance: 0.001)
    with serving(Lines) as address, flaky_proxy(address) as proxy:
        storage.reset_clients()
        yield proxy
    set_patience(Backoff.patience_s)


def files(web: FlakyProxy, count: int = 1) -> TextLines:
    return TextLines([f"{web.url}/{number}.txt" for number in range(count)])


@pytest.mark.parametrize("status", [503, 500, 429, "reset"])
def test_an_outage_costs_nothing_wherever_it_begins(web: FlakyProxy, status: int | str) -> None:
    for begins in (0, 3, 5):  # while files are listed, and while they are read
        web.faults.extend([None] * begins + [status] * 4)
        assert elements_of(files(web, 3)) == [{"text": text} for text in TEXTS] * 3 and not web.faults, begins
    web.outage = status
    set_patience(0.0)
    with pytest.raises(StorageOutageError, match=r"0\.txt could not be read: the storage failed"):
        list(files(web).splits())


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, SourceNotFoundError), (410, SourceNotFoundError), (403, SourcePermissionError), (400, SourceError)],
)
def test_what_does_not_pass_is_told_at_once(web: FlakyProxy, status: int, error: type[Exception]) -> None:
    web.outage = status
    with pytest.raises(error, match=r"0\.txt"):
        list(files(web).splits())
    assert web.rejected < 8
    web.outage = None
    source = files(web)
    (split,) = source.splits()
    web.outage = status
    with pytest.raises(error, match=r"0\.txt"):
        list(source.read(split))


@pytest.mark.parametrize("status", [405, 403, 404, 501, 503])
def test_a_server_that_refuses_head_is_read(web: FlakyProxy, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "head_status", status)
    monkeypatch.setattr(Lines, "head_length", 0)
    assert elements_of(files(web)) == [{"text": text} for text in TEXTS]


def test_a_server_that_knows_no_ranges_is_read(web: FlakyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lines, "knows_ranges", False)
    assert storage.read_range(f"{web.url}/0.txt", 7, 14) == b"line 1\n"
    assert elements_of(files(web)) == [{"text": text} for text in TEXTS]


def test_a_size_that_is_not_so_loses_nothing_in_silence(web: FlakyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for length in (0, 10, len(BODY) - 1):
        monkeypatch.setattr(Lines, "head_length", length)
        storage.reset_clients()
        said = rf"0\.txt: the server says that it has {length} bytes, and sends more"
        with pytest.raises(SourceError, match=said):
            elements_of(files(web))
    monkeypatch.setattr(Lines, "head_length", len(BODY) + 5)
    storage.reset_clients()
    set_patience(0.0)
    with pytest.raises(StorageOutageError, match="bytes came of"):
        elements_of(files(web))
