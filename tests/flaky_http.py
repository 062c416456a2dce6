"""A real HTTP proxy that counts requests and can make some of them fail."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOP_HEADERS = frozenset({"connection", "transfer-encoding", "keep-alive"})


@dataclass
class FlakyProxy:
    """Forwards to `upstream` (host:port); takes one entry of `faults` per request, and acts on it first.

    A fault is an HTTP status to answer with, "reset" to drop the connection at once, "short" to forward only half of
    the body, "part" to send half of it as if that was the whole object, "damaged" to change a byte of it, "whole" to
    send the whole object where a range is asked for, "hang" to say nothing until `stop_hanging` is set, or None.
    """

    upstream: str
    faults: deque[int | str | None] = field(default_factory=deque)
    requests: list[str] = field(default_factory=list)
    """Method and target of every request, in their order,"""
    times: list[float] = field(default_factory=list)
    """and when each came, by the monotonic clock."""
    url: str = ""
    outage: int | str | None = None
    """A fault of every request, for as long as it is set."""
    rejected: int = 0
    """Requests that met the outage."""
    stop_hanging: threading.Event = field(default_factory=threading.Event)

    def fault(self) -> int | str | None:
        """Return what is wrong with the next request."""
        if self.outage is not None:
            self.rejected += 1
            return self.outage
        return self.faults.popleft() if self.faults else None


def _handler(proxy: FlakyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            proxy.requests.append(f"{self.command} {self.path}")
            proxy.times.append(time.monotonic())
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))  # or it would be the next request
            fault = proxy.fault()
            if fault == "hang":
                proxy.stop_hanging.wait()
                fault = "reset"
            if fault == "reset":
                self.close_connection = True
                return
            if isinstance(fault, int):
                self.response(fault, [], b"")
                return
            connection = HTTPConnection(proxy.upstream, timeout=30)
            headers = {name: value for name, value in self.headers.items() if name != "Range" or fault != "whole"}
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            status, told, data = response.status, response.getheaders(), response.read()
            if fault == "part":
                status, data = 200, data[: len(data) // 2]
                told = [(name, value) for name, value in told if name.lower() != "content-range"]
            elif fault == "damaged":
                data = data[:-1] + bytes([data[-1] ^ 1])
            self.response(status, told, data, cut=fault == "short")
            connection.close()

        def response(self, status: int, headers: list[tuple[str, str]], body: bytes, cut: bool = False) -> None:
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
def serving(handler: Callable[..., BaseHTTPRequestHandler], host: str = "127.0.0.1") -> Iterator[str]:
    """Run a web server that answers as a handler does; give its address."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def flaky_proxy(upstream: str, host: str = "127.0.0.1") -> Iterator[FlakyProxy]:
    """Run a proxy in front of a server on this machine, at one of its addresses."""
    proxy = FlakyProxy(upstream)
    with serving(_handler(proxy), host) as address:
        proxy.url = f"http://{address}"
        try:
            yield proxy
        finally:
            proxy.stop_hanging.set()
