"""Storages that fsspec knows (``hf://``, ``az://``, ``https://`` and others), beside those that are read without it.

Credentials and other options are what a source's `storage_options` say, fsspec's own configuration
(``~/.config/fsspec/*.json``, variables that begin with ``FSSPEC_``), or what the storage's library finds.  Our retries
wait as long as the user says.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from pecan_ray.errors import MissingExtraError, SourceError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.backend import MAGIC, FileInfo, called_so, compile_glob, is_hidden
from pecan_ray.storage.local_errors import passes
from pecan_ray.storage.ranges import FileRange, RangeRequest, ShortResponseError
from pecan_ray.storage.retry import Doing, is_cert_error, retry

T = TypeVar("T")

VERSIONS = ("ETag", "etag", "generation", "sha256", "blob_id", "mtime", "LastModified", "last_modified", "created")
"""What tells versions of a file apart, under the names that storages give it; the first that is there counts."""
WEB = ("http", "https")
NETWORK_ERRORS = {
    ("aiohttp", "ClientError"),
    *(("requests", "ConnectionError"), ("requests", "Timeout"), ("requests", "ChunkedEncodingError")),
    *(("urllib3", "HTTPError"), ("httpx", "TransportError"), ("httpcore", "NetworkError")),
    *(("azure", "ServiceRequestError"), ("azure", "ServiceResponseError"), ("azure", "IncompleteReadError")),
}
"""(package, class) of what the libraries of fsspec's file systems raise for a connection that fails."""
# Tens of MB: a path, a size and a version each.
MOST_KNOWN = 100_000
"""Files whose size and version this process remembers, so that a range of one costs one request."""


class FsspecFiles:
    """A `Backend` over one file system of fsspec, which belongs to this process."""

    def __init__(self, scheme: str, options: dict[str, Any] | None = None) -> None:
        try:
            fsspec = importlib.import_module("fsspec")
            known = scheme in fsspec.available_protocols() or scheme in fsspec.registry
            # Listings must come from the store: a cached one would hide that the data has changed.
            # `skip_instance_cache`: fsspec would hand out the instance that the user's own code may be using.
            settings = {"use_listings_cache": False, **(options or {}), "skip_instance_cache": True}
            self._fs: Any = fsspec.filesystem(scheme, **settings) if known else None
        except ImportError as error:
            raise MissingExtraError(
                f"Reading {scheme}:// paths needs fsspec and its package for them (on the workers too): {error}. "
                "pip install 'pecan_ray[fsspec]' brings those for hf://, az:// and https://.",
                extra="fsspec",
            ) from error
        except TypeError as error:  # of its constructor
            raise SourceError(
                f"The storage of {scheme}:// cannot be opened: {error}. Say what it lacks in the source's "
                f"storage_options, or in fsspec's configuration, as in FSSPEC_{scheme.upper()}_HOST=...",
                path=f"{scheme}://",
            ) from error
        if self._fs is None:
            raise SourceNotFoundError(
                f"There is no storage for {scheme}://. Use a local path, s3://, gs://, or a scheme that fsspec knows.",
                path=f"{scheme}://",
            )
        self._scheme = scheme
        # Decision 61: fsspec's own walk goes on without a folder that could not be listed.
        self._walks = _has_find_of(self._fs, fsspec)
        self._known: dict[str, FileInfo] = {}

    def info(self, path: str) -> FileInfo | None:
        """Return the file's description, or None if there is no such file."""
        try:
            told = self._ask(path, lambda: self._fs.info(path))
        except SourceNotFoundError:
            return None
        if told.get("type", "file") != "file":
            return None
        found = self._describe(told, path)
        # A page that is made while it is sent may be announced with 0 bytes, and would be taken for an empty
        # file.
        if self._scheme in WEB and not found.size and self._ask(path, lambda: self._fs.cat_file(path)):
            raise _of_another_size(path, 0)
        return found

    def folder(self, path: str) -> Iterator[FileInfo]:
        """Yield the files below a folder in the order of their names."""
        start = len(self._whole(self._fs._strip_protocol(path)).rstrip("/")) + 1
        for file in self._found(path, None):
            if not is_hidden(file.path[start:]):
                yield file

    def glob(self, pattern: str) -> Iterator[FileInfo]:
        """Yield the files that match, in the order of their names; a question mark of a URL is no wildcard."""
        literal = called_so(self, pattern)
        if literal is not None:
            yield literal
            return
        magic = MAGIC.search(pattern)
        base = pattern[: magic.start()].rpartition("/")[0] if magic else pattern
        matches = compile_glob(pattern).match
        # No deeper than the pattern can match, because fsspec's listings come whole.
        depth = None if "**" in pattern else pattern[len(base) :].count("/")
        found = False
        for file in self._found(base, depth):
            if matches(file.path):
                found = True
                yield file
        if not found and self._scheme not in WEB:
            yield from self.folder(pattern)

    def subfolders(self, path: str) -> list[str]:
        """Return the sorted names of the folders directly below a folder."""
        try:
            listed = self._ask(path, lambda: self._fs.ls(path, detail=True))
        except SourceNotFoundError:
            return []
        names = (one["name"].rstrip("/").rpartition("/")[2] for one in listed if one.get("type") == "directory")
        return sorted(name for name in names if not is_hidden(name))

    def read(self, path: str, start: int, stop: int | None, version: str) -> FileRange:
        """Return bytes `start` to `stop`; fewer where the file ends before.

        Whether the file has another version than the wanted one is looked at by the first read of this process alone.
        """
        asked = RangeRequest(path, start, stop, version)
        # Decision 61: most file systems tell neither status nor headers, so an answer says nothing of its version.
        known = self._known.get(path)
        if known is None or (version and known.version != version):
            known = self.info(path)
            if known is None:
                raise SourceNotFoundError(f"{path} does not exist.", path=path)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[path] = known
        asked.check_version(known.version)
        end = known.size if stop is None else min(stop, known.size)
        if end <= start:
            return FileRange(b"", known.size, known.version)
        data = self._ask(path, lambda: self._read_range(path, start, end, known.size))
        return FileRange(data, known.size, known.version)

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole."""
        self._ask(path, lambda: self._fs.pipe_file(path, data), "write")
        self._known.pop(path, None)  # its size and version are others now

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        if self.info(path) is not None:
            self._ask(path, lambda: self._fs.rm_file(path), "remove")
        self._known.pop(path, None)

    def _read_range(self, path: str, start: int, end: int, size: int) -> bytes:
        # One byte more than the size that a web server has told: what is there would be lost.
        beyond = int(self._scheme in WEB and end == size)
        data: bytes = self._fs.cat_file(path, start=start, end=end + beyond)
        if beyond and len(data) == end - start + 1:
            raise _of_another_size(path, size)
        if len(data) == size > end - start:
            data = data[start:end]  # a server that knows no ranges has sent all of it
        if len(data) != end - start:
            raise ShortResponseError(f"{len(data)} bytes came of {end - start}")
        return data

    def _found(self, folder: str, depth: int | None) -> Iterator[FileInfo]:
        try:
            if self._walks:
                listed = [(one["name"], one) for one in self._walk(folder, depth)]
            else:
                found = self._ask(folder, lambda: self._fs.find(folder, maxdepth=depth, detail=True))
                listed = list(found.items())
        except SourceNotFoundError:
            return
        yield from sorted((self._describe(one, name) for name, one in listed), key=lambda file: file.path)

    def _walk(self, root: str, depth: int | None) -> Iterator[dict[str, Any]]:
        """Yield the files below a folder, each folder asked for with the patience of its own.

        The walk of fsspec itself leaves out, without a word, a folder that could not be listed.
        """
        begin = self._fs._strip_protocol(root).rstrip("/")
        folders, known = [(begin, 1)], {begin}
        while folders:
            folder, level = folders.pop()
            try:
                listed = self._ask(self._whole(folder), partial(self._fs.ls, folder, detail=True))
            except SourceNotFoundError:
                # The folder that was asked for is not there: `_found` has nothing to yield.
                if level == 1:
                    raise
                continue  # removed meanwhile, or a link of a page that leads nowhere
            for one in listed:
                name = one["name"].rstrip("/")
                if one.get("type") != "directory":
                    yield one
                elif name not in known and (depth is None or level < depth):
                    known.add(name)
                    folders.append((name, level + 1))

    def _describe(self, told: dict[str, Any], named: str) -> FileInfo:
        path = self._whole(str(told.get("name") or named))
        if told.get("size") is None:
            raise SourceError(
                f"{path}: the server does not say how many bytes it has, so that no range of it can be read.", path=path
            )
        version = next((told[name] for name in VERSIONS if told.get(name) is not None), "")
        if isinstance(version, float):  # file systems give a time in up to three ways: in listings, and of one file
            version = datetime.fromtimestamp(version, timezone.utc)
        to_str = version.isoformat() if isinstance(version, datetime) else str(version)
        return FileInfo(path, int(told["size"]), to_str)

    def _whole(self, name: str) -> str:
        return name if "://" in name else f"{self._scheme}://{name.lstrip('/')}"

    def _ask(self, path: str, call: Callable[[], T], doing: Doing = "read") -> T:
        try:
            return retry(call, passes=_passes, path=path, doing=doing)
        except SourceError:
            raise
        except Exception as error:  # each library has errors of its own
            raise _source_error(error, path, doing) from error


def _has_find_of(files: Any, fsspec: Any) -> bool:
    """Tell whether a file system finds files by walking through folders, as fsspec does where it is told no more."""
    kind, asyn = type(files), importlib.import_module("fsspec.asyn").AsyncFileSystem
    if isinstance(files, asyn):
        return bool(kind._find is asyn._find)
    return bool(kind.find is fsspec.AbstractFileSystem.find)


def _passes(error: Exception) -> bool:
    """Tell whether an error may pass by itself: the network's, and a server's that says so."""
    meant = _underlying(error)
    status = _status(meant)
    if status:
        # The three say "later"; 501 and 505 say that the server does not know such requests, and will not.
        return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))
    lasting = (FileNotFoundError, PermissionError, ImportError, ValueError)  # a ValueError: a URL that is none
    if isinstance(meant, lasting) or is_cert_error(meant):
        return False
    if isinstance(meant, (ConnectionError, asyncio.TimeoutError)) or passes(meant):
        return True
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(meant).__mro__}
    return not NETWORK_ERRORS.isdisjoint(kinds)


def _underlying(error: BaseException) -> BaseException:
    """Return what has happened: fsspec says of whatever befalls a request about a web file that there is no file.

    A file system that looks its files up in a dict means it.
    """
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        if isinstance(error.__cause__, LookupError):
            break
        error = error.__cause__
    return error


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None)
    told = (getattr(error, "status", 0), getattr(error, "status_code", 0), getattr(response, "status_code", 0))
    return next((code for code in told if isinstance(code, int) and code), 0)


def _source_error(error: Exception, path: str, doing: Doing) -> SourceError:
    meant = _underlying(error)
    status = _status(meant)
    if isinstance(meant, PermissionError) or status in (401, 403):
        return SourcePermissionError(f"The storage refused to {doing} {path}: {meant}.", path=path)
    if isinstance(meant, FileNotFoundError) or status in (404, 410):
        return SourceNotFoundError(f"{path} does not exist.", path=path)
    return SourceError(f"Cannot {doing} {path}: {type(meant).__name__}: {meant}.", path=path)


def _of_another_size(path: str, size: int) -> SourceError:
    return SourceError(
        f"{path}: the server says that it has {size} bytes, and sends more, of which nothing would be read. Check the "
        "server's Content-Length, or copy the file.",
        path=path,
    )
