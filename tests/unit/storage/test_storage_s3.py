"""S3 against moto's real HTTP server, behind a proxy that counts requests and makes them fail."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray import storage
from pecan_ray.errors import (
    SourceError,
    SourceNotFoundError,
    SourcePermissionError,
    SourceReplacedError,
    StorageOutageError,
)
from pecan_ray.options import Config, EngineName, OnError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Csv, ImageFolder, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from pecan_ray.sources.files import fetch_files_ahead
from pecan_ray.storage import access, ranges, retry, s3
from tests.flaky_http import FlakyProxy
from tests.object_stores import PAGE, SECRET, reaching_s3, s3_bucket, serving_s3
from tests.ray.waiting import until
from tests.source_contract import check_elements
from tests.storage_outages import LINES, OUTAGES, check_outage, check_patience, outage_objects, running
from tests.unit.sources.test_sources_files import tar_of
from tests.unit.sources.test_sources_tfrecord import ELEMENTS, RECORDS, framed

boto3 = pytest.importorskip("boto3")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving_s3() as address:
        yield address


@pytest.fixture
def proxy(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyProxy]:
    """The way by which the code under test reaches S3."""
    monkeypatch.setattr(retry.Backoff, "pause_s", lambda self, failures, chance: 0.01)
    with reaching_s3(endpoint) as running:
        yield running


@pytest.fixture
def bucket(endpoint: str, proxy: FlakyProxy) -> Iterator[Any]:
    """An empty bucket ``data``, written to without the proxy."""
    with s3_bucket(endpoint):
        yield boto3.resource("s3", endpoint_url=f"http://{endpoint}", region_name="us-east-1").Bucket("data")


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


def test_an_object_that_is_called_like_a_pattern_can_be_named(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **{"a[1].txt": b"odd\n", "a1.txt": b"plain\n"})
    for path, text in (("s3://data/a[1].txt", "odd"), ("s3://data/a[[]1].txt", "odd")):
        source = TextLines(path)
        assert [element["text"] for split in source.splits() for element in source.read(split)] == [text]
    assert [file.path for file in storage.list_files("s3://data/a[12].txt")] == ["s3://data/a1.txt"]


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
    with pytest.raises(SourcePermissionError, match=r"S3 refused to read s3://data/key .* s3:GetObject") as caught:
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
        assert stream.tell() == 30
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
    check_elements(TFRecords("s3://data/tf", split_bytes=100), ELEMENTS[:6], splits=1)
    check_elements(TextLines("s3://data/text/*", split_bytes=5), lines, splits=3)
    check_elements(JsonLines("s3://data/json/a", split_bytes=4), [{"n": 1}, {"n": 2}], splits=5)
    check_elements(Csv("s3://data/csv", split_bytes=2), numbers[1:4], splits=4)
    check_elements(Parquet("s3://data/pq", split_bytes=1), numbers, splits=3)
    samples = [{"__key__": "0", "txt": b"x"}, {"__key__": "1", "txt": b"y" * 600}]
    check_elements(WebDataset("s3://data/wds/*.tar"), samples, splits=1)
    images = [
        {"image": b"cat", "label": 0, "path": "s3://data/img/cat/1.jpg"},
        {"image": b"dog", "label": 1, "path": "s3://data/img/dog/1.jpg"},
    ]
    check_elements(ImageFolder("s3://data/img"), images, splits=1)


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


def test_a_listed_object_is_read_by_one_request(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **{"text/a": b"one\ntwo\n", "csv/a": b"n\n1\n", "tf/a": b"".join(map(framed, RECORDS[:3]))})
    for source in (TextLines("s3://data/text/*"), TFRecords("s3://data/tf/*"), Csv("s3://data/csv/*")):
        (split,) = source.splits()
        del proxy.requests[:]
        assert list(source.read(split))
        # The header of a CSV file was fetched, with all of this one, when the types were looked for.
        assert len(proxy.requests) == (0 if isinstance(source, Csv) else 1), proxy.requests


def test_small_objects_are_fetched_ahead_once_each(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **{f"text/{n:02}": f"line {n}\n".encode() for n in range(40)})
    source = TextLines("s3://data/text/*")
    splits = list(source.splits())
    del proxy.requests[:]
    fetch_files_ahead(source, splits)
    texts = [element["text"] for split in splits for element in source.read(split)]
    assert texts == [f"line {n}" for n in range(40)]
    assert sorted(proxy.requests) == [f"GET /data/text/{n:02}" for n in range(40)]
    del proxy.requests[:]
    table = io.BytesIO()
    pq.write_table(pa.table({"n": range(7)}), table)
    put(bucket, pq=table.getvalue())
    fetch_files_ahead(parquet := Parquet("s3://data/pq"), list(parquet.splits()))
    asked = len(proxy.requests)
    assert len(list(parquet.read(next(parquet.splits())))) == 7
    assert asked < len(proxy.requests), "it begins at its end"


def test_an_object_that_was_replaced_is_refused(
    bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(access, "TAIL_BYTES", 300)
    monkeypatch.setattr(access, "HEAD_BYTES", 1000)
    table = io.BytesIO()
    pq.write_table(pa.table({"n": range(7)}), table)
    put(bucket, key=b"1" * 9_000, pq=table.getvalue())
    for source in (TextLines("s3://data/key"), WebDataset("s3://data/key"), Parquet("s3://data/pq")):
        (split,) = source.splits()
        put(bucket, key=b"2" * 9_000, pq=table.getvalue().replace(b"n", b"m"))
        with pytest.raises(SourceReplacedError, match=f"{split.path} was replaced since it was listed"):
            list(source.read(split))
        put(bucket, key=b"1" * 9_000, pq=table.getvalue())
    with storage.open_stream("s3://data/key") as stream:
        assert stream.read(10) == b"1" * 10
        put(bucket, key=b"2" * 9_000)
        with pytest.raises(SourceReplacedError):
            stream.read()
    with storage.open_random("s3://data/key") as file:
        put(bucket, key=b"3" * 9_000)
        with pytest.raises(SourceReplacedError):
            file.read(10)


def test_a_store_that_ignores_ranges_is_cut_or_refused(
    bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bucket, key=b"0123456789" * 10)
    proxy.outage = "whole"
    assert storage.read_range("s3://data/key", 5, 25) == b"5678901234" * 2
    assert storage.read_range("s3://data/key", 95) == b"56789"
    with storage.open_stream("s3://data/key", 42) as stream:
        assert stream.read() == (b"0123456789" * 10)[42:]
    monkeypatch.setattr(ranges, "WHOLE_BYTES", 99)
    with pytest.raises(SourceError, match="s3://data/key: the store ignores ranges"):
        storage.read_range("s3://data/key", 5, 25)


def test_a_store_that_finds_no_range_in_what_it_has_is_no_empty_file(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **{"t/a.txt": b"a\nb\n", "i/c/x.png": b"image"})
    for source in (TextLines("s3://data/t/"), ImageFolder("s3://data/i/")):
        splits = list(source.splits())
        for fault in (416, 204):
            proxy.faults.append(fault)
            with pytest.raises(SourceError, match=r"s3://data/./.*: the (store|answer)"):
                list(source.read(splits[0]))
        proxy.faults.clear()
        assert list(source.read(splits[0]))


def test_a_wrong_checksum_is_asked_for_again_and_then_an_error(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, key=b"content")
    proxy.faults.extend(["damaged", "damaged"])
    assert storage.read_all("s3://data/key") == b"content"
    assert len(proxy.requests) == 3
    proxy.faults.extend(["damaged"] * 99)
    with pytest.raises(SourceError, match="s3://data/key came 5 times with a wrong checksum: Expected checksum"):
        storage.read_all("s3://data/key")
    assert len(proxy.requests) == 8


def test_a_part_that_is_sent_as_the_whole_is_no_short_file(
    bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "HEAD_BYTES", 10)  # a checksum is sent with the whole
    monkeypatch.setattr(access, "TAIL_BYTES", 5)
    put(bucket, key=b"one\ntwo\nthree\nfour\n")
    source = TextLines("s3://data/key")
    (split,) = source.splits()
    proxy.faults.append("part")
    with pytest.raises(SourceError, match=r"s3://data/key: the store's answer ends at byte 5, .* with 19 bytes"):
        list(source.read(split))


def test_a_store_that_never_answers_is_asked_again(
    bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_S", 0.2)
    storage.reset_clients()
    put(bucket, key=b"x")
    proxy.faults.extend(["hang", "hang"])
    assert storage.read_all("s3://data/key") == b"x"
    assert len(proxy.requests) == 3


@pytest.mark.parametrize(("engine", "seconds", "on_error"), OUTAGES)
def test_outages_cost_no_element(
    bucket: Any, proxy: FlakyProxy, seconds: float, on_error: OnError, engine: EngineName
) -> None:
    put(bucket, **outage_objects())
    check_outage(proxy, "s3://data/many/*", on_error, engine, seconds)


@pytest.mark.parametrize("on_error", ["raise", "skip", "quarantine"])
def test_a_longer_outage_is_no_bad_element(
    bucket: Any, proxy: FlakyProxy, on_error: OnError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry._patience, "seconds", 0.3)
    put(bucket, **outage_objects())
    check_patience(proxy, "s3://data/many/*", on_error)


def test_a_reader_that_is_closed_tries_nothing_again(bucket: Any, proxy: FlakyProxy, tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"here")
    proxy.outage = 503
    with contextlib.closing(storage.read_many([str(tmp_path / "here"), "s3://data/key"])) as reader:
        assert next(reader) == b"here"
        until(retry.retries.longest, "the second file is not read at the same time")
    until(lambda: retry.retries.longest() is None, "what nobody reads any more is tried again")


def test_a_pipeline_that_is_closed_tries_nothing_again(bucket: Any, proxy: FlakyProxy) -> None:
    put(bucket, **outage_objects())
    with running(PecanPipeline(TextLines("s3://data/many/*")).plan, "python", "raise") as produced:
        next(produced)
        proxy.outage = 503
        for _ in range(LINES):
            next(produced)
        until(retry.retries.longest, "nothing is fetched ahead")
    until(lambda: retry.retries.longest() is None, "what a closed pipeline would have read is tried again")


def test_an_outage_in_the_middle_of_a_parquet_file_is_no_bad_file(
    bucket: Any, proxy: FlakyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry._patience, "seconds", 0.3)
    table = io.BytesIO()
    pq.write_table(pa.table({"n": range(7)}), table, row_group_size=3)
    put(bucket, pq=table.getvalue())
    source = Parquet("s3://data/pq")
    (split,) = source.splits()
    proxy.outage = 503
    with pytest.raises(StorageOutageError, match="s3://data/pq could not be read"):
        list(source.read(split))


def test_a_secret_is_in_nothing_that_is_written(
    bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRET)
    storage.reset_clients()
    put(bucket, lines="".join(f"{number}\n" for number in range(200)).encode())
    caplog.set_level(logging.DEBUG, logger="pecan_ray")
    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"), error_budget=1.0)
    whole = PecanPipeline(TextLines("s3://data/lines"), name="planted", config=config).map(int, on="text")
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
    plan = cloudpickle.dumps(pipe.plan)
    kept = [path.read_bytes() for folder in (tmp_path, cache_folder) for path in folder.rglob("*") if path.is_file()]
    assert len(kept) >= 2 and caplog.text
    assert not [text for text in (*(one.encode() for one in said), plan, *kept) if SECRET.encode() in text]


def test_no_time_goes_into_the_dates_of_a_listing(bucket: Any) -> None:
    bucket.put_object(Key="a", Body=b"1")
    [found] = s3.S3()._client.list_objects_v2(Bucket="data")["Contents"]
    assert type(found["LastModified"]) is str
    assert next(iter(s3.S3().pages("data", "", ""))).files[0].size == 1
