"""What reading and writing promise of S3 and of Google Cloud Storage, each behind a proxy that makes requests fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from threading import Timer
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

from pecan_ray import PecanPipeline, storage
from pecan_ray.engines.contract import Produced
from pecan_ray.engines.in_process import InProcessEpoch
from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError, StorageOutageError
from pecan_ray.options import EngineName, OnError
from pecan_ray.sources import Csv, ImageFolder, JsonLines, Parquet, TextLines, files
from pecan_ray.sources.files import prefetch_files
from pecan_ray.storage import access, gcs, ranges, retry, s3
from tests.flaky_http import FlakyProxy
from tests.object_stores import SECRET, Bucket
from tests.ray.waiting import until
from tests.sample_files import files_of_every_kind, sources_of_every_kind, table
from tests.source_contract import elements_of
from tests.unit.storage.conftest import Place

DIGITS = b"0123456789" * 10


# --- what is there ---------------------------------------------------------------------------------------------


def test_every_file_source_reads_from_a_bucket_what_it_reads_from_a_disk(bucket: Bucket, tmp_path: Path) -> None:
    content = files_of_every_kind(rows=40)
    bucket.put(content)
    Place(str(tmp_path)).put(content)
    on_disk = sources_of_every_kind(str(tmp_path), split_bytes=50)
    for source, local in zip(sources_of_every_kind(bucket.url, split_bytes=50), on_disk, strict=True):
        expected = elements_of(local)
        assert expected and repr(elements_of(source)).replace(bucket.url, str(tmp_path)) == repr(expected)
        is_cut = isinstance(source, (TextLines, JsonLines, Csv, Parquet))
        assert len(list(source.splits())) > (2 if is_cut else 1)
    absent = bucket.url.replace("data", "absent")
    for call in (
        lambda: list(storage.list_files(f"{absent}/*.txt")),
        lambda: storage.write_file(f"{absent}/key", b"x"),
    ):
        with pytest.raises(SourceNotFoundError, match="absent"):
            call()


def test_small_objects_are_fetched_ahead_once_each(bucket: Bucket) -> None:
    bucket.put({f"text/{n:02}": f"line {n}\n".encode() for n in range(40)})
    source = TextLines(f"{bucket.url}/text/*")
    splits = list(source.splits())
    bucket.proxy.requests.clear()
    prefetch_files(source, splits)
    assert [one["text"] for split in splits for one in source.read(split)] == [f"line {n}" for n in range(40)]
    fetched = sorted(unquote(urlsplit(request.split()[1]).path) for request in bucket.proxy.requests)
    assert [path[-7:] for path in fetched] == [f"text/{n:02}" for n in range(40)]
    bucket.put({"pq": table()})
    parquet = Parquet(f"{bucket.url}/pq")
    prefetch_files(parquet, list(parquet.splits()))
    asked = len(bucket.proxy.requests)
    assert len(list(parquet.read(next(parquet.splits())))) == 7
    assert asked < len(bucket.proxy.requests), "it begins at its end"


# --- stores that fail for a while ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [500, 502, 503, 429, "reset", "short"])
def test_passing_faults_are_retried(bucket: Bucket, fault: int | str) -> None:
    proxy, path = bucket.proxy, f"{bucket.url}/key"
    bucket.put({"key": DIGITS})
    proxy.faults.extend([fault, fault])
    assert storage.read_range(path, 5, 25) == DIGITS[5:25]
    assert len([one for one in proxy.requests if "key" in one]) == 3, "libraries do not try again by themselves"
    proxy.faults.append(fault)
    assert [file.size for file in storage.list_files(f"{bucket.url}/k*")] == [100]
    if fault == "short":
        return
    proxy.faults.extend([fault, fault])
    storage.write_file(f"{bucket.url}/other", DIGITS)
    assert storage.read_all(f"{bucket.url}/other") == DIGITS
    proxy.faults.append(fault)
    storage.delete_file(path)
    assert [file.path for file in storage.list_folder(bucket.url)] == [f"{bucket.url}/other"]
    assert len([one for one in proxy.requests if one.startswith("DELETE")]) == 2


def test_a_store_that_never_answers_is_asked_again(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (s3, gcs):
        monkeypatch.setattr(module, "READ_S", 2.0)
    storage.reset_clients()
    bucket.put({"key": b"content"})
    bucket.proxy.faults.append("hang")
    assert storage.read_range(f"{bucket.url}/key", 1, 5) == b"onte"
    # On a busy machine an honest answer may be late, too, and is asked for again.
    assert len([one for one in bucket.proxy.requests if "key" in one]) >= 2


@pytest.mark.parametrize("status", [403, 400])
def test_lasting_faults_are_told_at_once_with_what_is_missing_and_no_secret(bucket: Bucket, status: int) -> None:
    proxy, path = bucket.proxy, f"{bucket.url}/key"
    bucket.put({"key": b"x"})
    storage.read_all(path)  # a client has looked around
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: storage.read_all(path), r"refused to read .*/key.*(s3:GetObject|objectViewer)"),
        (lambda: list(storage.list_files(f"{bucket.url}/*")), r"s3:ListBucket|objectViewer"),
        (lambda: storage.write_file(path, b"x"), r"refused to write .*/key.*(s3:PutO|storage\.objectUser)"),
        (lambda: storage.delete_file(path), r"refused to remove .*/key.*(s3:DeleteO|storage\.objectUser)"),
    ]
    for call, right in calls:
        proxy.requests.clear()
        proxy.faults.append(status)
        with pytest.raises(SourcePermissionError if status == 403 else SourceError) as caught:
            call()
        assert SECRET not in str(caught.value) and len(proxy.requests) == 1
        caught.match(right if status == 403 else "400")


# --- stores that answer something else -------------------------------------------------------------------------


def test_a_store_that_ignores_ranges_is_cut_or_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"{bucket.url}/key"
    bucket.put({"key": DIGITS})
    bucket.proxy.outage = "whole"
    assert storage.read_range(path, 5, 25) == DIGITS[5:25]
    assert storage.read_range(path, 95) == b"56789"
    with storage.open_stream(path, 42) as stream:
        assert stream.read() == DIGITS[42:]
    monkeypatch.setattr(ranges, "WHOLE_BYTES", 99)
    with pytest.raises(SourceError, match=f"{path}: the store ignores ranges"):
        storage.read_range(path, 5, 25)


def test_a_store_that_finds_no_range_in_what_it_has_is_no_empty_file(bucket: Bucket) -> None:
    bucket.put({"t/a.txt": b"a\nb\n", "i/c/x.png": b"image"})
    for source in (TextLines(f"{bucket.url}/t/"), ImageFolder(f"{bucket.url}/i/")):
        (split,) = source.splits()
        for fault in (416, 204):
            bucket.proxy.faults.append(fault)
            with pytest.raises(SourceError, match=r"://data/./.*: the (store|answer)"):
                list(source.read(split))
        bucket.proxy.faults.clear()
        assert elements_of(source)


def test_a_part_that_is_sent_as_the_whole_is_no_short_file(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "HEAD_BYTES", 10)  # a checksum is sent with the whole
    monkeypatch.setattr(access, "TAIL_BYTES", 5)
    bucket.put({"key": b"one\ntwo\nthree\nfour\n"})
    source = TextLines(f"{bucket.url}/key")
    (split,) = source.splits()
    bucket.proxy.faults.append("part")
    with pytest.raises(SourceError, match=f"{bucket.url}/key: the (store's answer ends at byte 5|answer)"):
        list(source.read(split))


# --- outages in the middle of an epoch -------------------------------------------------------------------------------

FILES, LINES, AHEAD = 24, 5, 4
ENGINES = ("python", "tensorflow")
ON_ERROR = ("raise", "skip", "quarantine")
ALL = sorted(f"{n} {line}" for n in range(FILES) for line in range(LINES))


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry._patience, "seconds", 0.3)


@contextlib.contextmanager
def running(bucket: Bucket, engine: EngineName, on_error: OnError) -> Iterator[Generator[Produced, None, None]]:
    """Read many files, fetching so little ahead that an outage behind the first element meets requests."""
    bucket.put({f"many/{n:02}": b"".join(b"%d %d\n" % (n, line) for line in range(LINES)) for n in range(FILES)})
    pipe = PecanPipeline(TextLines(f"{bucket.url}/many/*"), engine=engine).map(lambda element: element)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "SPLITS_AHEAD", AHEAD)
        with contextlib.closing(InProcessEpoch(pipe.plan, engine=engine, on_error=on_error).produced()) as produced:
            yield produced


def check_outage(bucket: Bucket, engine: EngineName, on_error: OnError, begin: Callable[[FlakyProxy], object]) -> None:
    """Let a store fail in the middle of an epoch; every element must come."""
    with running(bucket, engine, on_error) as produced:
        found = [next(produced)]
        begin(bucket.proxy)
        found += produced
    assert sorted(text for one in found for text in np.atleast_1d(one.columns["text"]).astype(str)) == ALL
    assert [bad for one in found for bad in one.bad] == []


@pytest.mark.parametrize("engine", ENGINES)
def test_an_outage_in_which_each_fetch_fails_twice_costs_no_element(bucket: Bucket, engine: EngineName) -> None:
    check_outage(bucket, engine, "skip", lambda proxy: proxy.faults.extend([503] * 2 * AHEAD))
    assert not bucket.proxy.faults


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["s3"], indirect=True)
@pytest.mark.parametrize("on_error", ON_ERROR)
@pytest.mark.parametrize("seconds", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("engine", ENGINES)
def test_outages_cost_no_element(bucket: Bucket, engine: EngineName, seconds: float, on_error: OnError) -> None:
    def begin(proxy: FlakyProxy) -> None:
        proxy.outage = 503
        Timer(seconds, lambda: setattr(proxy, "outage", None)).start()

    check_outage(bucket, engine, on_error, begin)
    assert bucket.proxy.rejected > 0


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize("on_error", ON_ERROR)
def test_a_longer_outage_ends_the_job_and_is_no_bad_element(bucket: Bucket, on_error: OnError) -> None:
    with running(bucket, "python", on_error) as produced:
        found = [next(produced)]
        bucket.proxy.outage = 503
        with pytest.raises(StorageOutageError, match="503"):
            found += produced
    assert [bad for one in found for bad in one.bad] == []
    if on_error == "raise":  # who writes waits no longer either
        with pytest.raises(StorageOutageError, match=r"could not be written: the storage failed \d+ times"):
            storage.write_file(f"{bucket.url}/key", b"z")
        with pytest.raises(StorageOutageError, match="could not be removed"):
            storage.delete_file(f"{bucket.url}/key")


def test_a_pipeline_that_is_closed_tries_nothing_again(bucket: Bucket) -> None:
    with running(bucket, "python", "raise") as produced:
        next(produced)
        bucket.proxy.outage = 503
        for _ in range(LINES):
            next(produced)
        until(retry.retries.longest, "nothing is fetched ahead")
    until(lambda: retry.retries.longest() is None, "what a closed pipeline would have read is tried again")
