"""Making digests of datasets, and holding the datasets against them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pecan_ray.errors import CorruptSourceError
from pecan_ray.storage.access import open_stream, read_all, write_file
from pecan_ray.storage.backend import FileInfo
from pecan_ray.storage.digest import BLOCK_BYTES, ObjectDigest, block_hash, digest_lines, digest_objects
from pecan_ray.storage.listing import Patterns, list_files

READERS = 8
"""Objects that are read at the same time: each is read with four requests (`access.IN_FLIGHT`), of the 32 that a
process has."""


def object_digest(file: FileInfo) -> ObjectDigest:
    """Read an object, and return its digest; raises SourceReplacedError if it is not the listed version any more."""
    whole, hashes = hashlib.blake2b(digest_size=32), bytearray()
    size = 0
    with open_stream(file.path, version=file.version) as stream:
        # A buffered stream gives whole blocks up to the last one, so each hash is that of its place.
        while block := stream.read(BLOCK_BYTES):
            whole.update(block)
            hashes += block_hash(block)
            size += len(block)
    return ObjectDigest(file.path, size, file.version, whole.hexdigest(), bytes(hashes))


def make_digest(patterns: Patterns, told: Callable[[ObjectDigest], None] = lambda _: None) -> tuple[ObjectDigest, ...]:
    """Read all files of files, folders and globs, and return their digests by path; `told` is given each as it is made.

    Raises what listing and reading raise.
    """
    with ThreadPoolExecutor(READERS, "pecan-digest") as readers:
        made: dict[str, ObjectDigest] = {}
        # By path: a file that two patterns name is read once.
        for one in readers.map(object_digest, {file.path: file for file in list_files(patterns)}.values()):
            made[one.path] = one
            told(one)
    return tuple(made[path] for path in sorted(made))


def write_digest(path: str, objects: Iterable[ObjectDigest]) -> None:
    """Write a digest file, local or in a bucket, in place of one that is there."""
    write_file(path, b"".join(digest_lines(objects)))


def read_digest(path: str) -> Mapping[str, ObjectDigest]:
    """Return what a digest file says, by the objects' paths; raises CorruptSourceError for one that is damaged."""
    data = read_all(path)
    try:
        return {one.path: one for one in digest_objects(data)}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptSourceError(
            f"{path} is no digest file, or a damaged one ({error}): make it again by `pecan cache digest`.", path=path
        ) from error


def changed(objects: Iterable[ObjectDigest], told: Callable[[str], None] = lambda _: None) -> tuple[str, ...]:
    """Read the objects of a digest again, and return what is wrong with which; `told` is given each path as it is done.

    The version is not looked at: an object that was written again with the same bytes is the same.
    """

    def wrong(one: ObjectDigest) -> str:
        try:
            found = object_digest(FileInfo(one.path, one.size, ""))
        except FileNotFoundError:
            return f"{one.path} is gone"
        if found.size != one.size:
            return f"{one.path} has {found.size:,} bytes, and had {one.size:,}"
        return "" if found.blake2b == one.blake2b else f"{one.path} has other bytes than it had"

    found: list[str] = []
    listed = list(objects)
    with ThreadPoolExecutor(READERS, "pecan-digest") as readers:
        for one, text in zip(listed, readers.map(wrong, listed), strict=True):
            told(one.path)
            found += [text] if text else []
    return tuple(found)
