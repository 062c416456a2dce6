"""Writing, listing and removing files: the same on a disk, on S3 and on Google Cloud Storage."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Event

import pytest

from pecan_ray import storage
from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError, StorageOutageError
from pecan_ray.storage import local, retry
from tests.flaky_http import FlakyProxy
from tests.object_stores import SECRET, reaching_gcs, reaching_s3, s3_bucket

BODY = os.urandom(100_000)


@pytest.fixture
def s3(s3_endpoint: str) -> Iterator[tuple[str, FlakyProxy]]:
    with reaching_s3(s3_endpoint) as proxy, s3_bucket(s3_endpoint) as url:
        yield url, proxy


@pytest.fixture
def gcs(gcs_endpoint: str) -> Iterator[tuple[str, FlakyProxy]]:
    with reaching_gcs(gcs_endpoint) as proxy:
        yield "gs://data", proxy
        proxy.outage = None
        proxy.faults.clear()
        for file in list(storage.list_folder("gs://data")):
            storage.delete_file(file.path)


@pytest.fixture(params=["s3", "gcs", "disk"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where files are written to: a bucket, or a folder."""
    return str(tmp_path) if request.param == "disk" else str(request.getfixturevalue(request.param)[0])


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest) -> tuple[str, FlakyProxy]:
    found: tuple[str, FlakyProxy] = request.getfixturevalue(request.param)
    return found


def listed(folder: str) -> list[tuple[str, int]]:
    return [(file.path.removeprefix(f"{folder}/"), file.size) for file in storage.list_folder(folder)]


def test_what_was_written_is_read_listed_and_removed(root: str) -> None:
    for name, body in (("kept/a/one", BODY), ("kept/a b#?/zwei ü", b"2"), ("other/three", b"3")):
        storage.write_file(f"{root}/{name}", body)
    assert storage.read_all(f"{root}/kept/a/one") == BODY and storage.read_all(f"{root}/kept/a b#?/zwei ü") == b"2"
    assert sorted(listed(f"{root}/kept")) == [("a b#?/zwei ü", 1), ("a/one", len(BODY))]
    piece = storage.read_piece(f"{root}/kept/a/one", 10, 20)
    assert piece.data == BODY[10:20] and piece.size == len(BODY)
    for _ in range(2):  # what is gone may be removed again
        storage.delete_file(f"{root}/kept/a/one")
        storage.delete_file(f"{root}/nothing/of/the/kind")
    assert listed(f"{root}/kept") == [("a b#?/zwei ü", 1)] and listed(f"{root}/absent") == []
    with pytest.raises(SourceNotFoundError):
        storage.read_all(f"{root}/kept/a/one")


def test_a_file_that_is_written_again_is_another_version(root: str) -> None:
    path = f"{root}/file"
    storage.write_file(path, b"first")
    first = storage.file_info(path)
    storage.write_file(path, b"the second")
    second = storage.file_info(path)
    assert storage.read_all(path) == b"the second" and first.version != second.version and second.size == 10


def test_two_that_write_at_once_leave_one_of_both_whole(root: str) -> None:
    path, bodies = f"{root}/file", [bytes([number]) * 300_000 for number in range(4)]
    storage.write_file(path, bodies[0])
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(storage.write_file, path, body) for body in bodies * 3]
        while not all(write.done() for write in writes):
            assert storage.read_all(path) in bodies
    assert storage.read_all(path) in bodies and len(listed(root)) == 1


@pytest.mark.parametrize("fault", [500, 503, 429, "reset"])
def test_writing_waits_for_faults_that_pass(bucket: tuple[str, FlakyProxy], fault: int | str) -> None:
    root, proxy = bucket
    proxy.faults.extend([fault, fault])
    storage.write_file(f"{root}/key", BODY)
    assert storage.read_all(f"{root}/key") == BODY
    proxy.faults.append(fault)
    storage.delete_file(f"{root}/key")
    assert listed(root) == [] and len([one for one in proxy.requests if one.startswith("DELETE")]) == 2


def test_an_outage_is_waited_out_and_no_longer_than_patience(
    bucket: tuple[str, FlakyProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, proxy = bucket
    proxy.faults.extend([503] * 5)
    storage.write_file(f"{root}/key", b"x")
    assert storage.read_all(f"{root}/key") == b"x" and not proxy.faults
    proxy.outage = 503
    monkeypatch.setattr(retry._patience, "seconds", 0.2)
    with pytest.raises(StorageOutageError, match=r"could not be written: the storage failed \d+ times"):
        storage.write_file(f"{root}/key", b"y")
    with pytest.raises(StorageOutageError, match="could not be removed"):
        storage.delete_file(f"{root}/key")


def test_one_threads_patience_is_no_other_ones(bucket: tuple[str, FlakyProxy]) -> None:
    root, proxy = bucket
    proxy.outage = 503
    with retry.unless_given_up(Event(), patience_s=0.2), pytest.raises(StorageOutageError, match="written"):
        storage.write_file(f"{root}/key", b"x")
    proxy.outage = None
    proxy.faults.extend([503] * 5)
    storage.write_file(f"{root}/key", b"y")
    assert storage.read_all(f"{root}/key") == b"y"


def test_a_refusal_is_told_with_what_is_missing_and_no_secret(bucket: tuple[str, FlakyProxy]) -> None:
    root, proxy = bucket
    calls: list[tuple[Callable[[], None], str]] = [
        (lambda: storage.write_file(f"{root}/key", b"x"), r"refused to write .*/key.*(s3:PutO|storage\.objectUser)"),
        (lambda: storage.delete_file(f"{root}/key"), r"refused to remove .*/key.*(s3:DeleteO|storage\.objectUser)"),
    ]
    for call, right in calls:
        proxy.faults.append(403)
        with pytest.raises(SourcePermissionError, match=right) as caught:
            call()
        assert SECRET not in str(caught.value)
    absent = root.replace("data", "absent")
    with pytest.raises(SourceNotFoundError, match="absent"):
        storage.write_file(f"{absent}/key", b"x")


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"Cannot write|does not exist"):
        storage.write_file(str(tmp_path / "file" / "below"), b"x")
    with pytest.raises(SourceError, match="proc"):
        storage.write_file("/proc/pecan/file", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _killed_in_the_middle(path: str) -> None:
    local.os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]  # just before the end
    storage.write_file(path, b"second")


def test_a_writer_that_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    storage.write_file(path, b"first")
    process = get_context("fork").Process(target=_killed_in_the_middle, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert storage.read_all(path) == b"first" and listed(str(tmp_path)) == [("file", 5)]
