"""What S3 alone has: pages of listings, versions that a request can ask for, checksums, credentials (moto's server)."""

from __future__ import annotations

import logging
import os
import pickle
import resource
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from pecan_ray import storage
from pecan_ray.errors import SourceError, SourcePermissionError, SourceReplacedError
from pecan_ray.options import Config
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Parquet, TextLines, WebDataset
from pecan_ray.storage import access
from pecan_ray.storage.clients import forget_clients
from tests.object_stores import PAGE, SECRET, Bucket
from tests.sample_files import table

pytest.importorskip("boto3")
pytestmark = pytest.mark.parametrize("bucket", ["s3"], indirect=True)

KEY = "s3://data/key"


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a large object be one of some thousand bytes."""
    monkeypatch.setattr(access, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(access, "TAIL_BYTES", 300)
    monkeypatch.setattr(access, "HEAD_BYTES", 1000)


def test_the_first_page_is_used_before_the_second_is_asked_for(bucket: Bucket) -> None:
    bucket.put(dict.fromkeys([f"train/{n:04}.txt" for n in range(25)], b"x"))
    splits = TextLines("s3://data/train/*.txt").splits()
    for number in range(25):
        assert next(splits).path == f"s3://data/train/{number:04}.txt"
        assert len(bucket.proxy.requests) == number // PAGE + 1
    bucket.put(dict.fromkeys(("a/1.txt", "a/b/2.txt", "a.txt", "a/c/"), b""))
    for pattern in ("a", "a/", "[a]/**"):  # an object that is called like a folder is none
        assert [file.path for file in storage.list_files(f"s3://data/{pattern}")] == [
            f"s3://data/a/{name}" for name in ("1.txt", "b/2.txt")
        ]
    assert storage.subfolders("s3://data/a") == ["b", "c"]


def test_a_read_waits_while_this_process_may_open_nothing_more(bucket: Bucket) -> None:
    bucket.put({"key": b"all of it"})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    again = threading.Timer(0.3, resource.setrlimit, (resource.RLIMIT_NOFILE, limits))
    forget_clients()  # the library of a new one reads files of its own
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    again.start()
    try:
        assert storage.read_all(KEY) == b"all of it"
    finally:
        again.join()


@pytest.mark.usefixtures("small_reads")
def test_reads_of_large_objects_are_ranges(bucket: Bucket) -> None:
    proxy, body = bucket.proxy, bytes(n % 251 for n in range(10_500))
    bucket.put({"key": body})
    proxy.faults.extend([503, "short", "reset"])
    assert storage.read_all(KEY, len(body)) == body
    assert len(proxy.requests) == 11 + 3
    with storage.open_stream(KEY, 20, 3_000) as stream:
        assert stream.read() == body[20:]
    proxy.requests.clear()
    with storage.open_stream(KEY, 20, 3_000) as stream:
        assert stream.read(10) == body[20:30]
        assert stream.tell() == 30
    # The ranges up to byte 3,000, nothing behind, and nothing before that would ask for the size.
    assert len(proxy.requests) <= 4
    with storage.open_random(KEY) as file:
        file.seek(-10, os.SEEK_END)
        assert file.read() == body[-10:]
    assert storage.read_range(KEY, 20_000, 20_010) == b""


@pytest.mark.usefixtures("small_reads")
def test_an_object_that_was_replaced_is_refused(bucket: Bucket) -> None:
    before = {"key": b"1" * 9_000, "pq": table()}
    after = {"key": b"2" * 9_000, "pq": table().replace(b"v", b"w")}
    for source in (TextLines(KEY), WebDataset(KEY), Parquet("s3://data/pq")):
        bucket.put(before)
        (split,) = source.splits()
        bucket.put(after)
        with pytest.raises(SourceReplacedError, match=f"{split.path} was replaced since it was listed"):
            list(source.read(split))
    with storage.open_stream(KEY) as stream:
        assert stream.read(10) == b"2" * 10
        bucket.put({"key": b"3" * 9_000})
        with pytest.raises(SourceReplacedError):
            stream.read()
    with storage.open_random(KEY) as file:
        bucket.put({"key": b"4" * 9_000})
        with pytest.raises(SourceReplacedError):
            file.read(10)


def test_a_wrong_checksum_is_asked_for_again_and_then_an_error(bucket: Bucket) -> None:
    bucket.put({"key": b"content"})
    bucket.proxy.faults.extend(["damaged", "damaged"])
    assert storage.read_all(KEY) == b"content"
    assert len(bucket.proxy.requests) == 3
    bucket.proxy.faults.extend(["damaged"] * 99)
    with pytest.raises(SourceError, match="s3://data/key came 5 times with a wrong checksum: Expected checksum"):
        storage.read_all(KEY)
    assert len(bucket.proxy.requests) == 8


# --- credentials -----------------------------------------------------------------------------------------------


def test_without_credentials_requests_are_not_signed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put({"key": b"x"})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    storage.reset_clients()
    bucket.proxy.faults.append(403)
    with pytest.raises(SourcePermissionError, match="no credentials"):
        storage.read_all(KEY)


def test_a_secret_is_in_nothing_that_is_sent_or_written(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_folder: Path, caplog: Any
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    storage.reset_clients()
    bucket.put({"lines": "".join(f"{number}\n" for number in range(200)).encode()})
    caplog.set_level(logging.DEBUG, logger="pecan_ray")
    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"), error_budget=1.0)
    source = TextLines("s3://data/lines")
    whole = PecanPipeline(source, name="planted", config=config).map(int, on="text")
    whole = whole.filter(lambda number: number > 1, on="text")
    said = [repr(whole), whole.explain(), whole.explain(format="json"), whole.fingerprint()]
    whole.save_order(tmp_path / "order.json")
    pipe = whole.map(lambda number: 1 / (number % 7), on="text", name="divides")
    with pipe.batch(8).iter_batches(debug=True, on_error="quarantine") as batches:
        assert sum(len(batch["text"]) for batch in batches) > 100
        said += [str(batches.report()), repr(batches.report())]
    with pytest.raises(ZeroDivisionError, match="divides failed") as caught:
        list(pipe.iter_batches(debug=True))
    said += [*caught.value.__notes__, caplog.text, *map(str, os.listdir(tmp_path))]
    sent = [cloudpickle.dumps(pipe.plan), pickle.dumps(source)]
    kept = [path.read_bytes() for folder in (tmp_path, cache_folder) for path in folder.rglob("*") if path.is_file()]
    assert len(kept) >= 2 and caplog.text
    assert not [text for text in (*(one.encode() for one in said), *sent, *kept) if SECRET.encode() in text]
    identity = source.identity()
    bucket.put({"lines": b"other\n"})
    assert source.identity() != identity
