"""Google Cloud Storage against a real emulator, behind a proxy that makes requests fail."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import ClassVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from pecan_ray import storage
from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError, SourceReplacedError
from pecan_ray.sources import ImageFolder, TextLines, TFRecords
from pecan_ray.sources.files import fetch_files_ahead
from pecan_ray.storage import gcs, retry
from tests.flaky_http import FlakyProxy
from tests.object_stores import reaching_gcs, serving_gcs
from tests.source_contract import check_elements
from tests.storage_outages import SHORTEST_S, check_outage, check_patience, outage_objects
from tests.unit.sources.test_sources_tfrecord import ELEMENTS, RECORDS, framed

pytest.importorskip("gcp_storage_emulator")
pytest.importorskip("gcsfs")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_gcs() as address:
        yield address


@pytest.fixture
def proxy(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyProxy]:
    """The way by which the code under test reaches the emulator."""
    monkeypatch.setattr(retry.Backoff, "pause_s", lambda self, failures, chance: 0.01)
    with reaching_gcs(endpoint) as running:
        yield running


def put(endpoint: str, **objects: bytes) -> None:
    for name, body in objects.items():
        url = f"http://{endpoint}/upload/storage/v1/b/data/o?uploadType=media&name={quote(name, safe='')}"
        urllib.request.urlopen(urllib.request.Request(url, body, method="POST")).close()


def test_sources_read_from_a_bucket(endpoint: str, proxy: FlakyProxy) -> None:
    data = b"".join(map(framed, RECORDS[:6]))
    put(endpoint, **{"tf/a": data, "text/a b#1.txt": b"one\ntwo\n", "img/cat/1.jpg": b"cat"})
    check_elements(TFRecords("gs://data/tf/*"), ELEMENTS[:6], splits=1)
    check_elements(TextLines("gs://data/text", split_bytes=3), [{"text": "one"}, {"text": "two"}], splits=3)
    image = {"image": b"cat", "label": 0, "path": "gs://data/img/cat/1.jpg"}
    check_elements(ImageFolder("gs://data/img"), [image], splits=1)
    assert storage.read_range("gs://data/tf/a", 4, 9) == data[4:9]
    assert storage.read_range("gs://data/tf/a", 4) == data[4:]


def test_what_is_missing_is_told(proxy: FlakyProxy) -> None:
    for pattern in ("gs://data/none", "gs://data/none/*"):
        with pytest.raises(SourceNotFoundError, match="Check the"):
            list(storage.list_files(pattern))
    with pytest.raises(SourceNotFoundError, match="gs://absent"):
        list(storage.list_files("gs://absent/*"))
    with pytest.raises(SourceNotFoundError, match="gs://data/none does not exist"):
        storage.read_all("gs://data/none")


def test_a_refusal_is_told(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, key=b"content")
    proxy.faults.append(403)
    with pytest.raises(SourcePermissionError, match="objectViewer"):
        storage.read_all("gs://data/key")
    assert len(proxy.requests) == 1


def test_outages_cost_no_element(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, **outage_objects())
    check_outage(proxy, "gs://data/many/*", "skip", "python", SHORTEST_S)


def test_a_longer_outage_is_no_bad_element(endpoint: str, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry._patience, "seconds", 0.3)
    put(endpoint, **outage_objects())
    check_patience(proxy, "gs://data/many/*", "skip")


@pytest.mark.parametrize("fault", [500, 502, 503, 429, "reset", "short", "hang"])
def test_whatever_passes_is_retried(
    endpoint: str, proxy: FlakyProxy, fault: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "hang":
        monkeypatch.setattr(gcs, "READ_S", 2.0)  # on a busy machine an honest answer may take a second
    storage.reset_clients()
    put(endpoint, key=b"content")
    times = 1 if fault == "hang" else 2
    proxy.faults.extend([fault] * times)
    assert storage.read_range("gs://data/key", 1, 5) == b"onte"
    asked = [request for request in proxy.requests if "/o/key" in request]
    assert len(asked) == times + 1, "gcsfs does not try again by itself"


def test_a_server_that_ignores_ranges(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, key=b"content")
    proxy.outage = "whole"
    assert storage.read_range("gs://data/key", 1, 5) == b"onte"


def test_a_store_that_finds_no_range_in_what_it_has_is_no_empty_file(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, **{"none/a.txt": b"a\nb\n"})
    (split,) = (source := TextLines("gs://data/none/")).splits()
    proxy.faults.append(416)
    with pytest.raises(SourceError, match=r"gs://data/none/a.txt: the store says that nothing .* has 4 bytes"):
        list(source.read(split))
    assert len(list(source.read(split))) == 2


def test_a_part_that_is_sent_as_the_whole_is_no_short_file(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, **{"part.txt": b"one\ntwo\nthree\nfour\n"})
    (split,) = (source := TextLines("gs://data/part.txt")).splits()
    proxy.faults.append("part")
    with pytest.raises(SourceError, match=r"gs://data/part.txt: the \w+"):
        list(source.read(split))


class Endless(BaseHTTPRequestHandler):
    """Ignores ranges, and begins to send more than anybody has memory for, with or without saying how much."""

    says: ClassVar[bool] = True
    protocol_version = "HTTP/1.1"
    given_up: ClassVar[Event] = Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header(*("Content-Length", str(1 << 50)) if self.says else ("Transfer-Encoding", "chunked"))
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(1 << 16) if self.says else b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        except OSError:
            Endless.given_up.set()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(("says", "held"), [(True, "1,125,899,906,842,624 bytes"), (False, "unknown size")])
def test_a_server_that_sends_all_of_a_large_object_is_refused_before_it_has(
    proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch, says: bool, held: str
) -> None:
    monkeypatch.setattr(Endless, "says", says)
    Endless.given_up.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_address[1]}")
        storage.reset_clients()
        with pytest.raises(SourceError, match=f"gs://data/key: the store ignores ranges: .* {held}"):
            storage.read_range("gs://data/key", 5, 25)
        assert Endless.given_up.wait(30), "the connection is left open"
        server.shutdown()
        thread.join()


def test_small_objects_are_fetched_ahead_once_each(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, **{f"ahead/{n:02}": f"line {n}\n".encode() for n in range(40)})
    source = TextLines("gs://data/ahead/*")
    splits = list(source.splits())
    del proxy.requests[:]
    fetch_files_ahead(source, splits)
    texts = [element["text"] for split in splits for element in source.read(split)]
    assert texts == [f"line {n}" for n in range(40)]
    fetched = sorted(urlsplit(request.split()[1]).path for request in proxy.requests)
    assert [unquote(path).rpartition("/o/")[2] for path in fetched] == [f"ahead/{n:02}" for n in range(40)]


def test_an_object_that_is_called_like_a_pattern_can_be_named(endpoint: str, proxy: FlakyProxy) -> None:
    put(endpoint, **{"odd/a[1].txt": b"odd\n", "odd/a1.txt": b"plain\n"})
    for path, text in (("gs://data/odd/a[1].txt", "odd"), ("gs://data/odd/a[[]1].txt", "odd")):
        source = TextLines(path)
        assert [element["text"] for split in source.splits() for element in source.read(split)] == [text]
    assert [file.path for file in storage.list_files("gs://data/odd/a[12].txt")] == ["gs://data/odd/a1.txt"]


class Versions(BaseHTTPRequestHandler):
    """Gives an object under a condition, as Google does (the emulator knows none)."""

    generation: ClassVar[str] = "1"

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "alt" not in query:
            item = {"name": "a", "size": "4", "generation": self.generation}
            self.answer(200, json.dumps(item if "/o/" in self.path else {"items": [item]}).encode())
        elif query.get("ifGenerationMatch", [self.generation]) != [self.generation]:
            self.answer(412, b"")
        else:
            self.answer(206, b"one\n")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{len(body)}")
        self.send_header("X-Goog-Generation", self.generation)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_an_object_that_was_replaced_is_refused(proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Versions) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        proxy.upstream = f"127.0.0.1:{server.server_address[1]}"
        source = TextLines("gs://data/*")
        (split,) = source.splits()
        assert split.version == "1"
        assert list(source.read(split)) == [{"text": "one"}]
        storage.reset_clients()
        monkeypatch.setattr(Versions, "generation", "2")
        with pytest.raises(SourceReplacedError, match="gs://data/a was replaced since it was listed"):
            list(source.read(split))
        server.shutdown()
        thread.join()


class Halves(Versions):
    """Sends half of an object, as if it was all of it, and then all."""

    faults: ClassVar[list[str]] = []

    def answer(self, status: int, body: bytes) -> None:
        if status != 206 or not self.faults:
            super().answer(status, body)
            return
        login = self.faults.pop() == "login"
        self.send_response(200)
        self.send_header("Content-Length", "2")
        if not login:
            self.send_header("X-Goog-Generation", self.generation)
            self.send_header("X-Goog-Stored-Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:2])


def test_an_answer_of_another_length_than_the_store_has_is_asked_for_again(proxy: FlakyProxy) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Halves) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        proxy.upstream = f"127.0.0.1:{server.server_address[1]}"
        (split,) = (source := TextLines("gs://data/*")).splits()
        Halves.faults[:] = ["half", "half"]
        assert list(source.read(split)) == [{"text": "one"}]
        Halves.faults[:] = ["login"]
        storage.reset_clients()
        with pytest.raises(SourceError, match=r"gs://data/a: the answer \(status 200\) names no version"):
            list(source.read(split))
        server.shutdown()
        thread.join()


class Pages(BaseHTTPRequestHandler):
    """Answers listings as Google does, three objects to a page (the emulator knows no pages)."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        token = parse_qs(urlsplit(self.path).query).get("pageToken", ["0"])[0]
        Pages.asked.append(token)
        first = int(token)
        items = [{"name": f"train/{n}", "size": "1", "generation": str(n)} for n in range(first, first + 3)]
        body = json.dumps({"items": items, **({"nextPageToken": str(first + 3)} if first < 6 else {})}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_the_first_page_is_used_before_the_second_is_asked_for(proxy: FlakyProxy) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        proxy.upstream = f"127.0.0.1:{server.server_address[1]}"
        files = storage.list_files("gs://data/train/*")
        assert [next(files).path for _ in range(3)] == [f"gs://data/train/{n}" for n in range(3)]
        assert Pages.asked == ["0"]
        assert len(list(files)) == 6
        assert Pages.asked == ["0", "3", "6"]
        server.shutdown()
        thread.join()
