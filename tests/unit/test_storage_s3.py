"""S3 against moto's real HTTP server, behind a proxy that counts requests and makes them fail."""

from __future__ import annotations

import importlib
import io
import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray import storage
from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError, SourceReplacedError
from pecan_ray.sources import Csv, ImageFolder, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from pecan_ray.storage import access
from tests.flaky_http import FlakyProxy, flaky_proxy
from tests.source_contract import check_contract
from tests.unit.test_sources_files import tar_of
from tests.unit.test_sources_tfrecord import ELEMENTS, RECORDS, framed

moto_server = pytest.importorskip("moto.server")
boto3 = importlib.import_module("boto3")
PAGE = 10
SECRET = "not-to-be-pickled"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A running S3 whose listings have pages of 10 keys."""
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(PAGE)
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()
    del os.environ["MOTO_S3_DEFAULT_MAX_KEYS"]


@pytest.fixture
def proxy(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyProxy]:
    """The way by which the code under test reaches S3."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    with flaky_proxy(endpoint) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        storage.reset_clients()
        yield running
    storage.reset_clients()


@pytest.fixture
def bucket(endpoint: str, proxy: FlakyProxy) -> Iterator[Any]:
    """An empty bucket ``data``, written to without the proxy."""
    found = boto3.resource("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1").Bucket("data")
    found.create()
    yield found
    # A page of the listing holds only some of the objects.
    while list(found.objects.all()):
        found.objects.all().delete()
    found.delete()


def put(bucket: Any, **objects: bytes) -> None:
    for key, body in objects.items():
        bucket.put_object(Key=key, Body=body)


def test_the_first_page_is_used_before_the_second_is_asked_for(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **dict.fromkeys([f"train/{n:04}.txt" for n in range(25)], b"x"))
    splits = TextLines("s3://data/train/*.txt").splits()
    first = [next(splits).path for _ in range(PAGE)]
    assert first == [f"s3://data/train/{n:04}.txt" for n in range(PAGE)]
    assert len(proxy.requests) == 1
    next(splits)
    assert len(proxy.requests) == 2
    assert len(list(splits)) == 25 - PAGE - 1
    assert len(proxy.requests) == 3


def test_patterns(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **dict.fromkeys(("a/1.txt", "a/b/2.txt", "a/_SUCCESS", "a.txt", "a/c/", "a/.h"), b""))

    def listed(pattern: str) -> list[str]:
        return [file.path.removeprefix("s3://data/") for file in storage.list_files(f"s3://data/{pattern}")]

    assert listed("a") == ["a/1.txt", "a/b/2.txt"]
    assert listed("a/") == ["a/1.txt", "a/b/2.txt"]
    assert listed("a.txt") == ["a.txt"]
    assert listed("a/*.txt") == ["a/1.txt"]
    assert listed("**/*.txt") == ["a.txt", "a/1.txt", "a/b/2.txt"]
    assert listed("") == ["a.txt", "a/1.txt", "a/b/2.txt"]
    assert storage.subfolders("s3://data/a") == ["b", "c"]


def test_what_is_missing_is_told(bucket: Any) -> None:
    for pattern in ("s3://data/none", "s3://data/none/*.txt"):
        with pytest.raises(SourceNotFoundError, match="Check the") as caught:
            list(storage.list_files(pattern))
        assert caught.value.path == pattern
    with pytest.raises(SourceNotFoundError, match="no bucket 'absent'"):
        list(storage.list_files("s3://absent/*.txt"))
    with pytest.raises(SourceNotFoundError, match="s3://data/none does not exist"):
        storage.read_all("s3://data/none")


@pytest.mark.parametrize("fault", [503, 500, 429, "reset", "short"])
def test_passing_faults_are_retried(bucket: Any, proxy: FlakyProxy, fault: int | str) -> None:
    put(bucket, key=b"0123456789" * 10)
    proxy.faults.extend([fault, fault])
    assert storage.read_range("s3://data/key", 5, 25) == b"5678901234" * 2
    assert len(proxy.requests) == 3
    proxy.faults.extend([503])
    assert [file.size for file in storage.list_files("s3://data/k*")] == [100]


def test_lasting_faults_are_not_retried(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, key=b"x")
    proxy.faults.append(403)
    with pytest.raises(SourcePermissionError, match=r"S3 refused s3://data/key .* s3:GetObject") as caught:
        storage.read_all("s3://data/key")
    assert SECRET not in str(caught.value)
    assert len(proxy.requests) == 1
    proxy.faults.append(403)
    with pytest.raises(SourcePermissionError, match="s3:ListBucket"):
        list(storage.list_files("s3://data/*"))
    proxy.faults.append(400)
    with pytest.raises(SourceError, match="S3 answered 400"):
        storage.read_all("s3://data/key")


def test_reads_of_large_objects_are_ranges(bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(access, "TAIL_BYTES", 300)
    monkeypatch.setattr(access, "HEAD_BYTES", 1000)
    body = bytes(n % 251 for n in range(10_500))
    put(bucket, key=body)
    proxy.faults.extend([503, "short", "reset"])
    assert storage.read_all("s3://data/key", len(body)) == body
    assert len(proxy.requests) == 11 + 3
    with storage.open_stream("s3://data/key", 20, 3_000) as stream:
        assert stream.read() == body[20:]
    proxy.requests.clear()
    with storage.open_stream("s3://data/key", 20, 3_000) as stream:
        assert stream.read(10) == body[20:30]
    # The ranges up to byte 3,000, nothing behind, and nothing before that would ask for the size.
    assert len(proxy.requests) <= 4
    with storage.open_random("s3://data/key") as file:
        file.seek(-10, os.SEEK_END)
        assert file.read() == body[-10:]
    assert storage.read_range("s3://data/key", 20_000, 20_010) == b""


def test_an_object_that_shrank_is_noticed(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bucket, key=b"short")
    monkeypatch.setattr(access, "BLOCK_BYTES", 4)
    with pytest.raises(SourceReplacedError, match="s3://data/key was replaced since it was listed"):
        storage.read_all("s3://data/key", 12)


def test_every_file_source_reads_from_a_bucket(bucket: Any) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"n": range(7)}), table, row_group_size=3)
    objects = {
        "tf/a": b"".join(map(framed, RECORDS[:6])),
        "text/a": b"one\ntwo\nthree\n",
        "json/a": b'{"n": 1}\n{"n": 2}\n',
        "csv/a": b"n\n1\n2\n3\n",
        "pq/a": table.getvalue(),
        "wds/a.tar": tar_of({"0.txt": b"x", "1.txt": b"y" * 600}),
        "img/cat/1.jpg": b"cat",
        "img/dog/1.jpg": b"dog",
    }
    put(bucket, **objects)
    lines = [{"text": text} for text in ("one", "two", "three")]
    numbers = [{"n": np.int64(n)} for n in range(7)]
    check_contract(TFRecords("s3://data/tf", split_bytes=100), ELEMENTS[:6], splits=1)
    check_contract(TextLines("s3://data/text/*", split_bytes=5), lines, splits=3)
    check_contract(JsonLines("s3://data/json/a", split_bytes=4), [{"n": 1}, {"n": 2}], splits=5)
    check_contract(Csv("s3://data/csv", split_bytes=2), numbers[1:4], splits=4)
    check_contract(Parquet("s3://data/pq", split_bytes=1), numbers, splits=3)
    samples = [{"__key__": "0", "txt": b"x"}, {"__key__": "1", "txt": b"y" * 600}]
    check_contract(WebDataset("s3://data/wds/*.tar"), samples, splits=1)
    images = [
        {"image": b"cat", "label": 0, "path": "s3://data/img/cat/1.jpg"},
        {"image": b"dog", "label": 1, "path": "s3://data/img/dog/1.jpg"},
    ]
    check_contract(ImageFolder("s3://data/img"), images, splits=1)


def test_credentials_stay_where_they_are(bucket: Any) -> None:
    put(bucket, a=b"x")
    source = TextLines("s3://data/a")
    assert [element["text"] for split in source.splits() for element in source.read(split)] == ["x"]
    assert SECRET.encode() not in pickle.dumps(source)
    identity = source.identity()
    put(bucket, a=b"y")
    assert source.identity() != identity


def test_without_credentials_requests_are_not_signed(
    bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, a=b"x")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    storage.reset_clients()
    proxy.faults.append(403)
    with pytest.raises(SourcePermissionError, match="no credentials"):
        storage.read_all("s3://data/a")
