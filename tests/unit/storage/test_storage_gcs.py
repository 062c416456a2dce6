"""Google Cloud Storage where the emulator does not answer as Google: versions, pages, encodings, endless answers."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from threading import Event
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from pecan_ray import storage
from pecan_ray.errors import SourceError, SourceReplacedError
from pecan_ray.sources import TextLines
from tests.flaky_http import serving
from tests.source_contract import elements_of

pytest.importorskip("gcsfs")

LINES = [f"line {number}" for number in range(5000)]
PACKED = gzip.compress("".join(f"{line}\n" for line in LINES).encode(), mtime=0)


class Google(BaseHTTPRequestHandler):
    """Gives one object under a condition on its generation."""

    protocol_version = "HTTP/1.1"
    body: ClassVar[bytes] = b"one\n"
    item: ClassVar[dict[str, str]] = {"name": "a", "size": "4", "generation": "1"}

    def do_GET(self) -> None:
        query, path = parse_qs(urlsplit(self.path).query), unquote(urlsplit(self.path).path)
        if "alt" not in query:
            found = self.item if "/o/" in path else self.listing(query)
            self.response(200 if path.endswith(("/o", f"/o/{self.item['name']}")) else 404, json.dumps(found).encode())
        elif query.get("ifGenerationMatch", [self.item["generation"]]) != [self.item["generation"]]:
            self.response(412, b"")
        else:
            self.give()

    def listing(self, query: dict[str, list[str]]) -> dict[str, Any]:
        return {"items": [self.item]}

    def give(self) -> None:
        asked = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start, last = (int(asked[1]), int(asked[2] or len(self.body))) if asked else (0, len(self.body))
        data = self.body[start : last + 1]
        where = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{len(self.body)}"} if asked else {}
        self.response(206 if asked else 200, data, **where)

    def response(self, status: int, body: bytes, **headers: str) -> None:
        told = {"Content-Length": str(len(body)), "X-Goog-Generation": self.item["generation"], **headers}
        self.send_response(status)
        for name, value in told.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def reaching(handler: type[BaseHTTPRequestHandler]) -> Iterator[None]:
    with serving(handler) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
        storage.reset_clients()
        yield
    storage.reset_clients()


def test_a_short_answer_is_asked_for_again_and_a_replaced_object_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halves = [{"X-Goog-Stored-Content-Length": "4"}] * 2

    class Halves(Google):
        """Sends half of an object, as if it was all of it, and then all."""

        def give(self) -> None:
            if halves:
                self.response(200, self.body[:2], **halves.pop())
            else:
                super().give()

    with reaching(Halves):
        source = TextLines("gs://data/*")
        (split,) = source.splits()
        assert list(source.read(split)) == [{"text": "one"}] and not halves and split.version == "1"
        storage.reset_clients()
        halves.append({"X-Goog-Generation": ""})  # as the page of a login
        with pytest.raises(SourceError, match=r"gs://data/a: the answer \(status 200\) names no version"):
            list(source.read(split))
        storage.reset_clients()
        monkeypatch.setattr(Google, "item", {**Google.item, "generation": "2"})
        with pytest.raises(SourceReplacedError, match="gs://data/a was replaced since it was listed"):
            list(source.read(split))


def test_the_first_page_is_used_before_the_second_is_asked_for() -> None:
    asked: list[int] = []

    class Pages(Google):
        """Three objects to a page."""

        def listing(self, query: dict[str, list[str]]) -> dict[str, Any]:
            first = int(query.get("pageToken", ["0"])[0])
            asked.append(first)
            items = [{"name": f"train/{n}", "size": "1", "generation": str(n)} for n in range(first, first + 3)]
            return {"items": items, **({"nextPageToken": str(first + 3)} if first < 6 else {})}

    with reaching(Pages):
        files = storage.list_files("gs://data/train/*")
        assert [next(files).path for _ in range(3)] == [f"gs://data/train/{n}" for n in range(3)]
        assert asked == [0]
        assert len(list(files)) == 6
        assert asked == [0, 3, 6]


@pytest.mark.parametrize(("says", "held"), [(True, "1,125,899,906,842,624 bytes"), (False, "unknown size")])
def test_a_server_that_sends_all_of_a_large_object_is_refused_before_it_has(says: bool, held: str) -> None:
    given_up = Event()

    class Endless(Google):
        """Ignores ranges, and begins to send more than anybody has memory for, with or without saying how much."""

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header(*("Content-Length", str(1 << 50)) if says else ("Transfer-Encoding", "chunked"))
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 16) if says else b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            except OSError:
                given_up.set()
            self.close_connection = True

    with reaching(Endless):
        with pytest.raises(SourceError, match=f"gs://data/key: the store ignores ranges: .* {held}"):
            storage.read_range("gs://data/key", 5, 25)
        assert given_up.wait(30), "the connection is left open"


# --- objects with the encoding gzip, which the store unpacks for whoever does not ask for them -------------------


def encoded(name: str, encoding: str = "gzip", unpacks: bool = False) -> type[Google]:
    """Return a store of a packed object; `unpacks`: whatever is asked for."""

    class Encoded(Google):
        body = PACKED
        item: ClassVar = {**Google.item, "name": name, "size": str(len(PACKED)), "contentEncoding": encoding}

        def give(self) -> None:
            if encoding == "gzip" and (unpacks or "gzip" not in self.headers.get("Accept-Encoding", "")):
                self.response(200, gzip.decompress(PACKED))
            else:
                super().give()

        def response(self, status: int, body: bytes, **headers: str) -> None:
            packed = {"Content-Encoding": "gzip"} if encoding == "gzip" and body in PACKED else {}
            super().response(status, body, **{"X-Goog-Stored-Content-Encoding": encoding, **packed, **headers})

    return Encoded


def test_a_file_that_is_called_gzip_comes_as_it_is_stored_and_any_other_is_refused() -> None:
    for encoding in ("gzip", "identity"):
        with reaching(encoded("a.txt.gz", encoding)):
            assert [element["text"] for element in elements_of(TextLines("gs://data/*"))] == LINES
            assert storage.read_range("gs://data/a.txt.gz", 10, 20) == PACKED[10:20]
    for name, unpacks in (("a.txt", False), ("a.txt", True), ("a.txt.gz", True)):
        with reaching(encoded(name, unpacks=unpacks)):
            with pytest.raises(SourceError, match=rf"gs://data/{name} is stored with the encoding gzip and comes with"):
                elements_of(TextLines("gs://data/*"))
            with pytest.raises(SourceError, match=r"ends in \.gz"):
                storage.read_all(f"gs://data/{name}")
