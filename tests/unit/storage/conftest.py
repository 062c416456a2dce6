"""What tests of storages share: a place on each kind of storage, objects of no server, blocks of few bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pecan_ray import storage
from pecan_ray.storage import BlockCache, FileInfo, ObjectDigest, block_cache, blocks, digest
from pecan_ray.storage.ranges import FileRange
from tests.object_stores import Bucket, empty_bucket

SMALL = 64
"""Bytes of a block in tests that need many of them."""


class Place(NamedTuple):
    """A folder of some storage, and a way to write into it without the code under test."""

    root: str
    bucket: Bucket | None = None

    def put(self, objects: dict[str, bytes]) -> None:
        if self.bucket is not None:
            self.bucket.put(objects)
            return
        for name, body in objects.items():
            if self.root.startswith("memory:"):
                pytest.importorskip("fsspec").filesystem("memory").pipe_file(f"{self.root}/{name}", body)
            else:
                Path(self.root, name).parent.mkdir(parents=True, exist_ok=True)
                Path(self.root, name).write_bytes(body)


@pytest.fixture(params=["disk", "memory", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty folder of each storage: the disk, one that fsspec reads, and two that stand behind real servers."""
    if request.param == "disk":
        yield Place(str(tmp_path))
    elif request.param == "memory":
        files = pytest.importorskip("fsspec").filesystem("memory")
        storage.reset_clients()
        yield Place("memory://data")
        if files.exists("/data"):
            files.rm("/data", recursive=True)
    else:
        with empty_bucket(request.param, request.getfixturevalue(f"{request.param}_endpoint")) as bucket:
            yield Place(bucket.url, bucket)


class StoredObject:
    """An object of a bucket that is only a function, and what was asked of it."""

    def __init__(self, data: bytes, path: str = "s3://data/folder/object", version: str = "v1") -> None:
        self.data, self.path, self.version = data, path, version
        self.requested: list[tuple[int, int | None, str]] = []
        """Beginnings, ends and versions."""
        self.spoil: Callable[[bytes], bytes] = bytes
        """What becomes of bytes on their way."""

    def ask(self, start: int, stop: int | None, version: str) -> FileRange:
        self.requested.append((start, stop, version))
        assert version in ("", self.version)
        return FileRange(self.spoil(self.data[start:stop]), len(self.data), self.version)

    def read(self, cache: BlockCache, start: int = 0, stop: int | None = None) -> bytes:
        return cache.read(self.ask, self.path, start, stop, self.version).data

    def digest(self) -> dict[str, ObjectDigest]:
        """Return what a digest of small blocks tells of it."""
        hashes = [digest.block_hash(self.data[at : at + SMALL]) for at in range(0, len(self.data), SMALL)]
        return {self.path: ObjectDigest(self.path, len(self.data), self.version, "", b"".join(hashes))}

    @property
    def fetched(self) -> int:
        """Bytes that were asked for."""
        return sum(len(self.data[start:stop]) for start, stop, _ in self.requested)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets blocks have `SMALL` bytes."""
    for module in (block_cache, blocks, digest):
        monkeypatch.setattr(module, "BLOCK_BYTES", SMALL)


def _from_a_stream(file: FileInfo) -> bytes:
    with storage.open_stream(file.path, version=file.version) as stream:
        return stream.read()


def _at_random(file: FileInfo) -> bytes:
    with storage.open_random(file.path, size=file.size, version=file.version) as opened:
        return opened.read()


def _fetched_ahead(file: FileInfo) -> bytes:
    storage.prefetch([storage.Head(file.path, file.version, file.size)])
    return _from_a_stream(file)


WAYS: dict[str, Callable[[FileInfo], bytes]] = {
    "from a stream": _from_a_stream,
    "at random": _at_random,
    "fetched ahead": _fetched_ahead,
    "a range": lambda file: storage.read_range(file.path, 0, version=file.version),
    "a piece": lambda file: storage.read_file_range(file.path, 0, file.size, version=file.version).data,
    "all of it": lambda file: storage.read_all(file.path, file.size, version=file.version),
    "among many": lambda file: b"".join(storage.read_many([file.path], [file.version])),
}
"""All that reads a file, of which each returns the bytes of one that was listed."""
