"""Web servers that fail for a while, refuse, or tell a wrong size: waited for, or named, and nothing is left out."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import pecan_ray as pecan
from pecan_ray import storage
from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError, StorageOutageError
from pecan_ray.sources import TextLines
from pecan_ray.storage.retry import Backoff, set_patience

pytest.importorskip("aiohttp")
fsspec = pytest.importorskip("fsspec")

LINES = 20
BODY = b"".join(b"line %d\n" % number for number in range(LINES))


@dataclass
class Server:
    """A web server with ranges, whose answers a function may replace by a status (0: the connection is cut)."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    answer: Callable[[str, int], int | None] = lambda method, number: None
    """(method, number of the request) -> status instead of the answer."""
    length: int | None = None
    """What HEAD says, if it is not the size."""

    def files(self, count: int) -> list[str]:
        return [f"{self.url}/{number}.txt" for number in range(count)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(Backoff, "pause_s", lambda self, failures, chance: 0.001)
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *said: Any) -> None: ...

        def do_GET(self) -> None:
            state.asked.append((self.command, self.path))
            status = state.answer(self.command, len(state.asked))
            if status is not None:
                self._refuse(status)
                return
            wanted = self.headers.get("Range")
            first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
            data = BODY[int(first) : int(last) + 1 if last else None]
            length = state.length if state.length is not None and self.command == "HEAD" else len(data)
            self._head(206 if wanted else 200, length)
            if self.command == "GET":
                self.wfile.write(data)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _refuse(self, status: int) -> None:
            if status:
                self._head(status, 0)
            else:
                self.close_connection = True
                self.connection.close()

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        state.url = f"http://127.0.0.1:{running.server_port}"
        storage.reset_clients()
        yield state
        running.shutdown()
        thread.join()
    set_patience(Backoff.patience_s)


def outage(begins: int, status: int) -> Callable[[str, int], int | None]:
    """Return the answers of a server that fails for four requests."""
    return lambda _, number: status if begins <= number < begins + 4 else None


@pytest.mark.parametrize("status", [503, 500, 429, 0])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_outage_costs_nothing_wherever_it_begins(server: Server, status: int, on_error: Any) -> None:
    config = pecan.Config(reorder="off", error_budget=1.0)
    for begins in (1, 4, 8):  # while files are listed, and while they are read
        server.asked.clear()
        server.answer = outage(begins, status)
        batches = pecan.PecanPipeline(TextLines(server.files(3)), config=config).batch(10)
        found = [text for batch in batches.iter_batches(debug=True, on_error=on_error) for text in batch["text"]]
        assert sorted(found) == sorted(BODY.decode().splitlines() * 3), begins


@pytest.mark.parametrize("status", [503, 0])
def test_an_outage_beyond_the_patience_is_told_as_such(server: Server, status: int) -> None:
    server.answer = lambda method, number: status
    set_patience(0.0)
    with pytest.raises(StorageOutageError, match=r"0\.txt could not be read: the storage failed"):
        list(TextLines(server.files(1)).splits())


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, SourceNotFoundError), (410, SourceNotFoundError), (403, SourcePermissionError), (400, SourceError)],
)
def test_what_does_not_pass_is_told_at_once(server: Server, status: int, error: type[Exception]) -> None:
    server.answer = lambda method, number: status
    with pytest.raises(error, match=r"0\.txt"):
        list(TextLines(server.files(1)).splits())
    assert len(server.asked) < 8
    server.answer = lambda method, number: None
    source = TextLines(server.files(1))
    (split,) = source.splits()
    server.answer = lambda method, number: status
    with pytest.raises(error, match=r"0\.txt"):
        list(source.read(split))


@pytest.mark.parametrize("status", [405, 403, 404, 501, 503])
def test_a_server_that_refuses_head_is_read(server: Server, status: int) -> None:
    server.answer = lambda method, number: status if method == "HEAD" else None
    source = TextLines(server.files(1))
    assert [
        element["text"] for split in source.splits() for element in source.read(split)
    ] == BODY.decode().splitlines()


@pytest.mark.parametrize("length", [0, 10, len(BODY) - 1])
def test_a_size_that_is_too_small_loses_nothing_in_silence(server: Server, length: int) -> None:
    server.length = length
    source = TextLines(server.files(1))
    with pytest.raises(SourceError, match=rf"0\.txt: the server says that it has {length} bytes, and sends more"):
        [element for split in source.splits() for element in source.read(split)]


def test_a_size_that_is_too_large_is_no_end_of_the_file(server: Server) -> None:
    server.length = len(BODY) + 5
    set_patience(0.0)
    source = TextLines(server.files(1))
    with pytest.raises(StorageOutageError, match="bytes came of"):
        [element for split in source.splits() for element in source.read(split)]


def test_a_folder_that_cannot_be_listed_is_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's own walk goes on without it."""
    files = fsspec.filesystem("memory")
    for name in ("a/1.txt", "b/2.txt"):
        files.pipe_file(f"/tree/{name}", b"x\n")
    plain, failures = type(files).ls, [OSError("first"), ConnectionResetError("then")]

    def ls(self: Any, path: str, *more: Any, **named: Any) -> Any:
        if path.rstrip("/").endswith("/b") and len(failures) == 2:
            raise failures.pop()
        return plain(self, path, *more, **named)

    monkeypatch.setattr(type(files), "find", fsspec.AbstractFileSystem.find)  # as most file systems have it
    monkeypatch.setattr(type(files), "ls", ls)
    storage.reset_clients()
    try:
        found = [file.path for file in storage.list_files("memory://tree")]
        assert found == ["memory://tree/a/1.txt", "memory://tree/b/2.txt"] and len(failures) == 1
    finally:
        files.rm("/tree", recursive=True)
