"""Bytes of buckets that stay on the node, against real servers and, for what none does, a function."""

from __future__ import annotations

import hashlib
import json
import logging
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pecan_ray import storage
from pecan_ray.cache_options import MIB, Cache
from pecan_ray.cli import main
from pecan_ray.errors import CorruptSourceError, SourceNotFoundError, SourceReplacedError
from pecan_ray.storage import BlockCache
from pecan_ray.storage.digest import BLOCK_HASH_BYTES, block_hash
from tests.object_stores import Bucket
from tests.unit.storage.conftest import SMALL, WAYS, StoredObject

on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("known", [False, True], ids=["by version", "by digest"])
@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 1, 10 * SMALL, 1000])
def test_any_ranges_are_what_the_object_holds_and_no_byte_comes_twice(tmp_path: Path, size: int, known: bool) -> None:
    draw = random.Random(size)
    data = draw.randbytes(size)
    stored = StoredObject(data)
    digests = [stored.digest()] if known else []
    cache = BlockCache(tmp_path, 100 * MIB, digests)
    for _ in range(100):
        start = draw.randrange(size + 10)
        stop = draw.choice((None, draw.randrange(start + 1, size + 200)))
        piece = cache.read(stored.ask, stored.path, start, stop, "v1")
        assert piece.data == data[start:stop] and piece.size == size and isinstance(piece.data, bytes)
    assert stored.read(cache) == data
    # Before anything has come nothing tells where it ends, and what is asked for then is read again by whole blocks.
    assert stored.fetched <= size
    before = len(stored.requested)
    other = BlockCache(tmp_path, 100 * MIB, digests)
    if size:
        assert stored.read(other) == data and other.size(stored.path, "v1") == size
        assert len(stored.requested) == before and other.nbytes == size
    for version in ("", 'W/"weak"'):
        unnamed, plain = StoredObject(b"1" * 100, version=version), BlockCache(tmp_path, 100 * MIB)
        for _ in range(2):
            assert unnamed.read(plain) == b"1" * 100
        assert unnamed.fetched == 200, "bytes that nothing names are not kept"


# --- bytes that are not what they should be -----------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("kept", [True, False])
def test_if_they_come_again_that_is_an_error_that_names_the_object(tmp_path: Path, kept: bool) -> None:
    data = random.Random(4).randbytes(500)
    stored = StoredObject(data)
    cache = BlockCache(tmp_path if kept else None, 100 * MIB, [stored.digest()])
    spoils: tuple[Callable[[bytes], bytes], ...] = (
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: data[:-1],
        lambda data: data + b"1" * 70,
    )
    for spoil in spoils:
        stored.requested, stored.spoil = [], spoil
        with pytest.raises(
            CorruptSourceError, match=f"{stored.path} does not have the bytes .*`pecan cache digest`"
        ) as told:
            stored.read(cache)
        assert told.value.path == stored.path and told.value.offset in (SMALL, 448, 512)
        assert len(stored.requested) == 2
    stored.spoil = bytes
    assert stored.read(cache) == data, "what was wrong was kept"


@pytest.mark.usefixtures("small_blocks")
def test_a_damaged_block_is_dropped_and_comes_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = random.Random(5).randbytes(10 * SMALL)
    stored, cache = StoredObject(data), BlockCache(tmp_path, 100 * MIB)
    assert stored.read(cache) == data
    cache.close()
    (segment,) = (tmp_path / "segments").iterdir()
    held = bytearray(segment.read_bytes())
    held[held.index(data[3 * SMALL : 4 * SMALL]) + 5] ^= 0x40
    segment.write_bytes(held)
    again = BlockCache(tmp_path, 100 * MIB)
    stored.requested.clear()
    with caplog.at_level(logging.WARNING, "pecan_ray.storage"):
        for _ in range(2):
            assert stored.read(again) == data
    assert stored.requested == [(3 * SMALL, 4 * SMALL, "v1")]
    assert caplog.text.count("damaged") == 1


# --- a disk that does not do what it should -----------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("full", "said"), [(False, "nothing is kept"), (True, "No space left")])
def test_a_disk_that_takes_nothing_is_said_once_and_reading_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, full: bool, said: str
) -> None:
    def no_room(fd: int, parts: object, at: int) -> int:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").write_text("no folder")
    stored = StoredObject(b"2" * 300)
    with caplog.at_level(logging.WARNING, "pecan_ray.storage"):
        cache = BlockCache(tmp_path / ("cache" if full else "file/cache"), 100 * MIB)
        if full:
            monkeypatch.setattr(os, "pwritev", no_room)
        for _ in range(3):
            assert stored.read(cache) == b"2" * 300
    assert stored.fetched == 900 and len(caplog.records) == 1 and said in caplog.text


def test_it_never_takes_more_than_it_may(tmp_path: Path) -> None:
    most, block = 64 * MIB, os.urandom(MIB)
    cache = BlockCache(tmp_path, most)
    objects = [StoredObject(number.to_bytes(4, "big") + block[4:], f"s3://data/{number}") for number in range(100)]
    for stored in objects:
        assert stored.read(cache) == stored.data
        assert sum(one.stat().st_size for one in (tmp_path / "segments").iterdir()) <= most
    here = sum(cache.size(stored.path, "v1") is not None for stored in objects)
    again = BlockCache(tmp_path, most)
    assert here == 100, "sizes are remembered"
    assert sum(again.size(stored.path, "v1") is not None for stored in objects[:60]) >= 32, "what is used stays"


# --- with real servers --------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    storage.keep_on_node(None)


@pytest.mark.parametrize("with_digest", [False, True])
def test_whatever_reads_a_bucket_reads_it_once(bucket: Bucket, tmp_path: Path, with_digest: bool) -> None:
    body = os.urandom(3 * MIB + 12_345)
    bucket.put({"kept/object": body})
    (listed,) = storage.list_files(f"{bucket.url}/kept/*")
    digests: tuple[str, ...] = ()
    if with_digest:
        digests = (f"{bucket.url}/digests/kept",)
        storage.write_digest(digests[0], storage.make_digest(f"{bucket.url}/kept"))
    cache = Cache(tmp_path, source_bytes=64 * MIB, digests=digests)
    storage.keep_source_bytes(cache)
    before = storage.remote_bytes()
    assert {read(listed) for read in WAYS.values()} == {body}
    assert storage.remote_bytes() - before <= len(body) + MIB, "bytes came twice"
    storage.reset_clients()
    storage.keep_source_bytes(cache)  # as another process does
    requests = len(bucket.proxy.requests)
    assert {read(listed) for read in WAYS.values()} == {body}
    data = [one for one in bucket.proxy.requests[requests:] if "kept/object" in one or "kept%2Fobject" in one]
    assert data == [], "a bucket was asked for what is here"
    assert storage.bytes_from_node() >= len(WAYS) * len(body) - 2 * MIB  # beginnings of files stay in memory, too


def test_what_the_bucket_has_meanwhile_is_told_apart(bucket: Bucket, tmp_path: Path) -> None:
    path = f"{bucket.url}/changes"
    bucket.put({"changes": b"1" * 1000})
    first = storage.file_info(path)
    storage.write_digest(str(tmp_path / "digest"), storage.make_digest(path))
    storage.keep_source_bytes(Cache(tmp_path / "plain", source_bytes=64 * MIB))
    assert storage.read_range(path, 0, version=first.version) == b"1" * 1000
    bucket.put({"changes": b"2" * 1000})
    second = storage.file_info(path)
    assert storage.read_range(path, 0, version=second.version) == b"2" * 1000
    # A job that has listed the first version goes on with it, as far as it is here.
    assert storage.read_range(path, 0, version=first.version) == b"1" * 1000
    storage.keep_source_bytes(Cache(tmp_path / "digested", source_bytes=64 * MIB, digests=[tmp_path / "digest"]))
    with pytest.raises(SourceReplacedError, match="its digest was made"):
        storage.read_range(path, 0, version=second.version)


@on_s3
def test_a_forked_child_leaves_its_parents_index_alone(bucket: Bucket, tmp_path: Path) -> None:
    path = f"{bucket.url}/forked"
    bucket.put({"forked": b"forked"})
    version = storage.file_info(path).version
    storage.keep_source_bytes(Cache(tmp_path, source_bytes=64 * MIB))
    storage.read_range(path, 0, version=version)
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as child:
        assert child.submit(storage.read_range, path, 0, version=version).result(60) == b"forked"
        assert child.submit(storage.bytes_from_node).result(60) == 0
    assert storage.read_range(path, 0, version=version) == b"forked" and storage.bytes_from_node() > 0


# --- digests of datasets: made, written, read, held against what is there, and damaged ------------------------------

OBJECTS = {"a": b"", "b/one": os.urandom(10), "b/two": os.urandom(2 * MIB), "c ü": os.urandom(MIB + 1)}


@pytest.fixture
def data(bucket: Bucket) -> str:
    bucket.put({f"set/{name}": body for name, body in OBJECTS.items()})
    return f"{bucket.url}/set"


@on_s3
def test_the_command_digests_the_bytes_of_every_object_and_finds_what_has_changed(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (f"{data}-digest", str(tmp_path / "digest")):
        assert main(["cache", "digest", data, "--output", path]) == 0
        assert f"4 objects with 3.1 MB: {path}" in capsys.readouterr().out
        found = dict(storage.read_digest(path))
        assert list(found) == sorted(f"{data}/{name}" for name in OBJECTS)
        for name, body in OBJECTS.items():
            one, blocks = found[f"{data}/{name}"], [block_hash(body[at : at + MIB]) for at in range(0, len(body), MIB)]
            assert (one.size, one.version) == (len(body), storage.file_info(one.path).version)
            assert one.blake2b == hashlib.blake2b(body, digest_size=32).hexdigest()
            assert [one.block(number) for number in range(len(blocks))] == blocks
            assert one.block_hashes == b"".join(blocks) and len(one.block_hashes) == BLOCK_HASH_BYTES * len(blocks)
    storage.write_file(f"{data}/b/two", OBJECTS["b/two"])  # the same bytes again
    assert main(["cache", "digest", "--check", path]) == 0
    assert f"4 of 4 objects are as {path} tells" in capsys.readouterr().out
    storage.write_file(f"{data}/b/one", os.urandom(10))
    storage.write_file(f"{data}/c ü", b"shorter")
    storage.delete_file(f"{data}/a")
    assert main(["cache", "digest", "--check", path]) == 1
    said = capsys.readouterr().out
    changed = ("b/one has other bytes than it had", "c ü has 7 bytes, and had 1,048,577", "a is gone")
    assert all(f"{data}/{change}" in said for change in changed) and f"1 of 4 objects are as {path} tells" in said


def test_the_command_says_what_it_must_be_given_and_what_is_not_there_is_said(tmp_path: Path, capsys: Any) -> None:
    for arguments in ([], ["s3://x"], ["--output", "x"], ["--check", "x", "s3://x"], ["--check", "x", "--output", "y"]):
        assert main(["cache", "digest", *arguments]) == 2
        assert "give data and --output FILE, or --check FILE" in capsys.readouterr().err
    for make in (storage.make_digest, storage.read_digest):
        with pytest.raises(SourceNotFoundError):
            make(f"{tmp_path}/nothing")


def test_any_damage_of_a_digest_is_found(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"file-{number}").write_bytes(os.urandom(100 * number))
    path = tmp_path / "digest"
    storage.write_digest(str(path), storage.make_digest(str(tmp_path / "file-*")))
    assert len(storage.read_digest(str(path))) == 5
    whole, draw = path.read_bytes(), random.Random(0)
    lines = whole.splitlines(keepends=True)
    damaged = {
        "empty": b"",
        "without an end": b"".join(lines[:-1]),
        "a line less": b"".join(lines[:2] + lines[3:]),
        "lines in another order": b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
        "another format": whole.replace(b'"pecan_digest":1', b'"pecan_digest":2'),
        "no object": json.dumps([1]).encode() + b"\n{}\n",
    }
    for number in range(300):  # what counts objects and bytes, at the end, is not of use to anybody but people
        at = draw.randrange(len(whole) - len(lines[-1]))
        flipped = bytes([whole[at] ^ (1 << draw.randrange(8))])
        damaged[f"a bit of byte {at} ({number})"] = whole[:at] + flipped + whole[at + 1 :]
    for name, data in damaged.items():
        path.write_bytes(data)
        with pytest.raises(CorruptSourceError, match="pecan cache digest") as told:
            pytest.fail(f"{name} is read: {storage.read_digest(str(path))}")
        assert str(path) in str(told.value)
