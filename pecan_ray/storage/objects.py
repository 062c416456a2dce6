"""Folders and globs on top of object stores, which know only buckets, keys and prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pecan_ray.storage.backend import MAGIC, FileInfo, called_so, compile_glob, is_hidden
from pecan_ray.storage.ranges import FileRange, RangeRequest


@dataclass(frozen=True)
class Page:
    """One answer of a listing."""

    files: tuple[FileInfo, ...]
    folders: tuple[str, ...]
    """Prefixes that the delimiter rolled up, with their final slash."""


class ObjectApi(Protocol):
    """The five requests that are made of an object store.  They raise `SourceError`s only."""

    scheme: str

    def pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Page]:
        """Yield the pages of a listing, asking for one only when it is wanted."""
        ...

    def head(self, bucket: str, key: str) -> FileInfo | None:
        """Describe an object; None: there is none."""
        ...

    def get(self, bucket: str, key: str, asked: RangeRequest) -> FileRange:
        """Return a range of an object's bytes; fewer where it ends before."""
        ...

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object whole, in one request: it is there with all its bytes, or as it was before."""
        ...

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object; nothing to do where there is none."""
        ...


@dataclass(frozen=True)
class ObjectStore:
    """A `Backend` over the requests of one object store."""

    api: ObjectApi

    def info(self, path: str) -> FileInfo | None:
        """Return the object's description, or None if there is no such object."""
        bucket, key = self._split(path)
        # A key that ends in a slash is the marker of a folder, as consoles leave them, and no file.
        return self.api.head(bucket, key) if key and not key.endswith("/") else None

    def folder(self, path: str) -> Iterator[FileInfo]:
        """Yield the objects below a prefix that ends in a slash, page by page."""
        bucket, key = self._split(path)
        # With the slash: `data` would also list what lies below `data-old`.
        prefix = key.rstrip("/") + "/" if key.rstrip("/") else ""
        start = len(f"{self.api.scheme}://{bucket}/{prefix}")
        for page in self.api.pages(bucket, prefix, ""):
            for file in page.files:
                if not file.path.endswith("/") and not is_hidden(file.path[start:]):
                    yield file

    def glob(self, pattern: str) -> Iterator[FileInfo]:
        """Yield the objects that match, page by page; only its fixed beginning is listed.

        An object that is called like the pattern itself is what is meant, or a folder of which nothing else matches.
        """
        bucket, key = self._split(pattern)
        # With stars alone the listing tells: a request more for each listing would also hide a refusal.
        literal = called_so(self, pattern) if "[" in key or "?" in key else None
        if literal is not None:
            yield literal
            return
        prefix, delimiter = _fixed_prefix(key)
        matches, found = compile_glob(key).match, False
        start = len(f"{self.api.scheme}://{bucket}/")
        for number, page in enumerate(self.api.pages(bucket, prefix, delimiter)):
            # A star comes before letters and digits: an object that is called so is among the first ones listed.
            called = _named(page, pattern) if number == 0 else None
            if called is not None:
                yield called
                return
            for file in page.files:
                if not file.path.endswith("/") and matches(file.path[start:]):
                    found = True
                    yield file
        if not found:
            yield from self.folder(pattern)

    def subfolders(self, path: str) -> list[str]:
        """Return the sorted names of the prefixes directly below a prefix."""
        bucket, key = self._split(path)
        prefix = key.rstrip("/") + "/" if key.rstrip("/") else ""
        names = [
            folder[len(prefix) :].rstrip("/") for page in self.api.pages(bucket, prefix, "/") for folder in page.folders
        ]
        return sorted(name for name in names if not is_hidden(name))

    def read(self, path: str, start: int, stop: int | None, version: str) -> FileRange:
        """Return bytes `start` to `stop`; fewer where the object ends before."""
        bucket, key = self._split(path)
        return self.api.get(bucket, key, RangeRequest(path, start, stop, version))

    def write(self, path: str, data: bytes) -> None:
        """Write an object whole."""
        self.api.put(*self._split(path), data)

    def delete(self, path: str) -> None:
        """Remove an object, if it is there."""
        self.api.delete(*self._split(path))

    def _split(self, path: str) -> tuple[str, str]:
        bucket, _, key = path[len(self.api.scheme) + 3 :].partition("/")
        return bucket, key


def _fixed_prefix(key: str) -> tuple[str, str]:
    """Return the fixed beginning of a pattern, and the delimiter with which to list what begins so."""
    magic = MAGIC.search(key)
    prefix = key[: magic.start()] if magic else key
    # With a delimiter the store leaves out what lies deeper than the pattern can match.
    return prefix, "" if "/" in key[len(prefix) :] or "**" in key else "/"


def _named(page: Page, path: str) -> FileInfo | None:
    return next((file for file in page.files if file.path == path), None)
