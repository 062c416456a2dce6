"""A real HTTP proxy that counts requests and can make some of them fail."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive"})


@dataclass
class FlakyProxy:
    """Forwards to `upstream` (host:port); takes one entry of `faults` per request, and acts on it first.

    A fault is an HTTP status to answer with, "reset" to drop the connection at once, or "short" to forward
    only half of the body.
    """

    upstream: str
    faults: deque[int | str] = field(default_factory=deque)
    requests: list[str] = field(default_factory=list)
    """Method and target of every request, in their order."""
    url: str = ""


def _handler(proxy: FlakyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            proxy.requests.append(f"{self.command} {self.path}")
            fault = proxy.faults.popleft() if proxy.faults else None
            if fault == "reset":
                self.close_connection = True
                return
            if isinstance(fault, int):
                self.answer(fault, [], b"")
                return
            connection = HTTPConnection(proxy.upstream, timeout=30)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response = connection.getresponse()
            self.answer(response.status, response.getheaders(), response.read(), cut=fault == "short")
            connection.close()

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool = False) -> None:
            self.send_response(status)
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            for name, value in headers:
                if name.lower() not in HOP_HEADERS | {"content-length"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the requests are in a list."""

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = forward  # noqa: N815 - the names http.server calls

    return Handler


@contextmanager
def flaky_proxy(upstream: str) -> Iterator[FlakyProxy]:
    """Run a proxy in front of a server on this machine."""
    proxy = FlakyProxy(upstream)
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy)) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield proxy
        server.shutdown()
        thread.join()
