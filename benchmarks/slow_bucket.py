"""A process of this machine that speaks as much of S3 as reading needs, has a folder's files, and is slow."""

from __future__ import annotations

import multiprocessing
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PIECE = 64 << 10
SENT = "/sent"
"""Answers with the bytes of objects that were sent so far."""


class Pipe:
    """So many bytes a second for all who ask, and how many there were."""

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s, self.nbytes = bytes_per_s, 0
        self._free_at = 0.0
        self._lock = threading.Lock()
        """Guards both."""

    def send(self, nbytes: int) -> None:
        """Wait until so many bytes have gone through."""
        with self._lock:
            self.nbytes += nbytes
            self._free_at = max(self._free_at, time.monotonic()) + nbytes / self.bytes_per_s
            free_at = self._free_at
        time.sleep(max(0.0, free_at - time.monotonic()))


def _handler(folder: Path, pipe: Pipe) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == SENT:
                self.head(200, told := str(pipe.nbytes).encode())
                self.wfile.write(told)
                return
            if "list-type" in url.query:
                self.head(200, listed := _listed(folder, parse_qs(url.query).get("prefix", [""])[0]))
                self.wfile.write(listed)
                return
            path = folder / unquote(url.path.lstrip("/")).partition("/")[2]
            if not path.is_file():
                self.head(404, b"")
                return
            size = path.stat().st_size
            found = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first, last = (int(found[1]), int(found[2] or size - 1)) if found else (0, size - 1)
            with path.open("rb") as file:
                file.seek(first)
                part = file.read(last + 1 - first)
            range_told = {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{size}"} if found else {}
            self.head(206 if found else 200, part, range_told)
            if self.command == "HEAD":
                return
            for begin in range(0, len(part), PIECE):
                pipe.send(len(piece := part[begin : begin + PIECE]))
                self.wfile.write(piece)

        def do_HEAD(self) -> None:
            self.do_GET()

        def head(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"ETag": '"v"', "Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


def _listed(folder: Path, prefix: str) -> bytes:
    found = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.rglob("*") if path.is_file())
    keys = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;v&quot;</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key, size in found
        if key.startswith(prefix)
    )
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{keys}</ListBucketResult>".encode()


class SlowServer(ThreadingHTTPServer):
    """A server to which clients that were ended, as jobs are, are no news."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _serve(told: Connection, folder: Path, bytes_per_s: float) -> None:
    server = SlowServer(("127.0.0.1", 0), _handler(folder, Pipe(bytes_per_s)))
    told.send(server.server_address[1])
    server.serve_forever()


def sent_by(url: str) -> int:
    """Return how many bytes of objects a server has sent."""
    with urllib.request.urlopen(f"{url}{SENT}") as answer:
        return int(answer.read())


@contextmanager
def running_bucket(folder: Path, bytes_per_s: float) -> Iterator[str]:
    """Run the server in a process of its own, which ends with this one; give its address."""
    ours, theirs = multiprocessing.Pipe()
    begin = multiprocessing.get_context("spawn").Process
    process = begin(target=_serve, args=(theirs, folder, bytes_per_s), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()
