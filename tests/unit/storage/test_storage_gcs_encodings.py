"""Objects of Google Cloud Storage with the encoding gzip, which the store unpacks for whoever does not ask for them."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from pecan_ray import storage
from pecan_ray.errors import SourceError
from pecan_ray.sources import TextLines

pytest.importorskip("gcsfs")

LINES = [f"line {number}" for number in range(5000)]
PACKED = gzip.compress("".join(f"{line}\n" for line in LINES).encode(), mtime=0)


class Encoded(BaseHTTPRequestHandler):
    """Gives one object, as Google does (the emulator knows no encodings)."""

    name: ClassVar[str] = ""
    encoding: ClassVar[str] = "gzip"
    unpacks: ClassVar[bool] = False
    """Whatever is asked for."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        item = {"name": self.name, "size": str(len(PACKED)), "generation": "1", "contentEncoding": self.encoding}
        if "alt" not in parse_qs(parts.query):
            found = unquote(parts.path).endswith(f"/o/{self.name}")
            answer = item if found else {"items": [item]}
            self.answer(200 if found or parts.path.endswith("/o") else 404, json.dumps(answer).encode(), {})
        elif self.encoding == "gzip" and (self.unpacks or "gzip" not in self.headers.get("Accept-Encoding", "")):
            self.answer(200, gzip.decompress(PACKED), {"X-Goog-Stored-Content-Encoding": "gzip"})
        else:
            asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            start, last = (int(asked[1]), int(asked[2] or len(PACKED))) if asked else (0, len(PACKED))
            data = PACKED[start : last + 1]
            told = {"X-Goog-Stored-Content-Encoding": self.encoding}
            if self.encoding == "gzip":
                told["Content-Encoding"] = "gzip"
            if asked:
                told["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{len(PACKED)}"
            self.answer(206 if asked else 200, data, told)

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body)), "X-Goog-Generation": "1"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    with ThreadingHTTPServer(("127.0.0.1", 0), Encoded) as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{running.server_address[1]}")
        storage.reset_clients()
        yield
        running.shutdown()
        thread.join()
    storage.reset_clients()


def texts(path: str) -> list[str]:
    source = TextLines(path)
    return [element["text"] for split in source.splits() for element in source.read(split)]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_file_that_is_called_gzip_comes_as_it_is_stored(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoded, "name", "a.txt.gz")
    monkeypatch.setattr(Encoded, "encoding", encoding)
    assert texts("gs://data/*") == LINES
    assert storage.read_range("gs://data/a.txt.gz", 10, 20) == PACKED[10:20]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("name", "unpacks"), [("a.txt", False), ("a.txt", True), ("a.txt.gz", True)])
def test_any_other_one_is_refused(name: str, unpacks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Encoded, "name", name)
    monkeypatch.setattr(Encoded, "unpacks", unpacks)
    with pytest.raises(SourceError, match=rf"gs://data/{name} is stored with the encoding gzip and comes with"):
        texts("gs://data/*")
    with pytest.raises(SourceError, match=r"ends in \.gz"):
        storage.read_all(f"gs://data/{name}")
