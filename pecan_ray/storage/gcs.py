"""Google Cloud Storage through gcsfs.

Credentials and endpoint are found by gcsfs (application default credentials, instance metadata,
``STORAGE_EMULATOR_HOST``; anonymous where there are none).  Its own retries are left out: ours wait as long as the
user says, tell of it, and would be multiplied by them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from pecan_ray.errors import MissingExtraError, SourceError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.backend import FileInfo
from pecan_ray.storage.local_errors import passes
from pecan_ray.storage.objects import Page
from pecan_ray.storage.ranges import FileRange, RangeRequest, replaced, too_long
from pecan_ray.storage.retry import Doing, is_cert_error, retry

T = TypeVar("T")

# Seconds, as for S3.
CONNECT_S = 10.0
READ_S = 30.0
"""A store that sends nothing for so long is asked again, as S3 is."""
PASSING = frozenset({408, 429})
"""Statuses of HTTP that are worth another try: a request that took too long, and too many of them."""
NEVER = frozenset({501, 505})
"""Answers of a server that does not know such requests, and will not."""

STORED = {"Accept-Encoding": "gzip"}
"""What lets an object with the encoding gzip come as it is stored: without it the store unpacks it, and sends all of it
whatever range is asked for."""
# Answers in JSON are read as they come: the session unpacks nothing (`auto_decompress`).
PLAIN = {"Accept-Encoding": "identity"}
BYTES = {"Content-Type": "application/octet-stream"}
ROLES: dict[Doing, str] = {
    "read": "roles/storage.objectViewer",
    "write": "roles/storage.objectUser",
    "remove": "roles/storage.objectUser",
}
GZIPPED = (".gz", ".gzip", ".tgz")


class _TooLongError(Exception):
    """A server begins to send a large object of which a range was asked for."""

    def __init__(self, length: int | None) -> None:
        super().__init__(length)
        self.length = length


class GcsStorage:
    """An `ObjectApi` over one gcsfs file system, which belongs to this process."""

    scheme = "gs"

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        """`options`: of gcsfs."""
        try:
            gcsfs = importlib.import_module("gcsfs")
        except ImportError as error:
            raise MissingExtraError(
                "Reading gs:// paths needs gcsfs: pip install 'pecan_ray[gcs]' (on the workers too).",
                extra="gcs",
            ) from error
        self._failure: type[Exception] = importlib.import_module("gcsfs.retry").HttpError
        # Listings must come from the store: a cached one would hide that the data has changed.
        aiohttp = importlib.import_module("aiohttp")
        # No bound on a whole request: a large range over a slow pipe takes long without ever being silent.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
        self._fs: Any = gcsfs.GCSFileSystem(
            **(options or {}),
            use_listings_cache=False,
            skip_instance_cache=True,
            requests_timeout=timeout,
            # What comes as it is stored must not be unpacked here: sizes and ranges are those of the stored bytes.
            session_kwargs={"trace_configs": [_header_check_trace(aiohttp)], "auto_decompress": False},
        )
        self._sync: Callable[..., Any] = importlib.import_module("fsspec.asyn").sync
        request = type(self._fs)._request
        self._once: Any = getattr(request, "__wrapped__", request)
        """One request, without gcsfs's retries."""
        google = importlib.import_module("google.auth.exceptions")
        self._broken = (
            aiohttp.ClientError,
            importlib.import_module("requests.exceptions").RequestException,
            google.RefreshError,
            google.TransportError,
            ConnectionError,
            TimeoutError,
            asyncio.TimeoutError,
        )

    def pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Page]:
        """Yield the pages of a listing, asking for one only when it is wanted."""
        more: dict[str, str] = {"delimiter": delimiter} if delimiter else {}
        while True:
            listing = partial(self._describe, "b/{}/o", bucket, prefix=prefix, **more)
            answer = self._ask(f"gs://{bucket}/{prefix}", listing)
            files = tuple(_describe(bucket, item) for item in answer.get("items", ()))
            yield Page(files=files, folders=tuple(answer.get("prefixes", ())))
            if not answer.get("nextPageToken"):
                return
            more["pageToken"] = answer["nextPageToken"]

    def head(self, bucket: str, key: str) -> FileInfo | None:
        """Describe an object; None: there is none."""
        try:
            answer = self._ask(f"gs://{bucket}/{key}", partial(self._describe, "b/{}/o/{}", bucket, key))
        except SourceNotFoundError:
            return None
        return _describe(bucket, answer)

    def get(self, bucket: str, key: str, asked: RangeRequest) -> FileRange:
        """Return a range of an object's bytes; fewer where it ends before."""
        return self._ask(asked.path, partial(self._get, bucket, key, asked))

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Write an object whole, in one request: it is there with all its bytes, or as it was before."""
        url = f"{self._fs._location}/upload/storage/v1/b/{{}}/o"
        upload = partial(
            self._request, url, bucket, method="POST", data=data, headers=BYTES, uploadType="media", name=key
        )
        self._ask(f"gs://{bucket}/{key}", upload, doing="write")

    def delete(self, bucket: str, key: str) -> None:
        """Remove an object; nothing to do where there is none."""
        removal = partial(self._request, "b/{}/o/{}", bucket, key, method="DELETE")
        with contextlib.suppress(SourceNotFoundError):
            self._ask(f"gs://{bucket}/{key}", removal, doing="remove")

    def _get(self, bucket: str, key: str, asked: RangeRequest) -> FileRange:
        # Where a listing told no generation, the version is an ETag.
        match = {"ifGenerationMatch": asked.version} if asked.version.isdigit() else {}
        try:
            wanted = asked.header() | STORED
            status, headers, body = self._request(self._fs.url(f"{bucket}/{key}"), headers=wanted, **match)
        except FileExistsError as error:  # so gcsfs names the status 412
            raise replaced(asked.path, asked.start) from error
        except _TooLongError as error:
            raise asked.ignored(error.length) from None
        except self._failure as error:
            if _status(error) == 416:  # gcsfs leaves out the headers; an answer that is wrong would be an empty file
                size = self._describe("b/{}/o/{}", bucket, key)["size"]
                return asked.nothing(f"bytes */{size}")
            raise
        _check_encoding(asked.path, headers)
        version = headers.get("X-Goog-Generation", "")
        if match:
            asked.check_version(version)
        asked.check_response_source(status, version or headers.get("X-Goog-Hash", ""))
        part = headers.get("Content-Range")
        if not part:
            asked.check_whole(status, headers.get("X-Goog-Stored-Content-Length"), body)
        return asked.parse_response(status, part, body, version)

    def _describe(self, path: str, *names: str, **query: str) -> dict[str, Any]:
        """Return an answer in JSON."""
        answer: dict[str, Any] = json.loads(self._request(path, *names, headers=PLAIN, **query)[2])
        return answer

    def _request(self, path: str, *names: str, method: str = "GET", **query: Any) -> tuple[int, Any, bytes]:
        """Make one request; return the status, the headers and the body."""
        status, headers, _, body = self._sync(self._fs.loop, self._once, self._fs, method, path, *names, **query)
        return status, headers, body

    def _ask(self, path: str, call: Callable[[], T], doing: Doing = "read") -> T:
        try:
            return retry(call, passes=self._passes, path=path, doing=doing)
        except (self._failure, *self._broken, OSError, ValueError, RuntimeError) as error:
            if isinstance(error, SourceError):
                raise
            raise _explain(error, path, doing) from error

    def _passes(self, error: Exception) -> bool:
        if isinstance(error, self._failure):
            status = _status(error)
            # As in gcsfs's own `retry`: the next try has a new token.
            expired = status == 401 and "Invalid Credentials" in str(error)
            return expired or status in PASSING or (status >= 500 and status not in NEVER)
        # This machine may have no descriptors left just now.
        return (isinstance(error, self._broken) and not is_cert_error(error)) or passes(error)


def _header_check_trace(aiohttp: Any) -> Any:
    """Return what lets a session refuse an answer by its headers: gcsfs reads whatever body follows."""

    async def look(session: Any, context: Any, ended: Any) -> None:
        answer = ended.response
        if "Range" in ended.headers and too_long(answer.status, answer.content_length):
            answer.close()
            raise _TooLongError(answer.content_length)

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(look)
    return trace


def _check_encoding(path: str, headers: Any) -> None:
    """Raise SourceError for an object whose bytes are compressed, although its name does not say so."""
    sent = headers.get("Content-Encoding", "identity")
    stored = headers.get("X-Goog-Stored-Content-Encoding", sent)
    if sent == stored and (sent == "identity" or path.lower().endswith(GZIPPED)):
        return
    raise SourceError(
        f"{path} is stored with the encoding {stored} and comes with {sent}: its size and its ranges are not those of "
        "what it holds. Store it without an encoding, or under a name that ends in .gz.",
        path=path,
    )


def _describe(bucket: str, item: dict[str, Any]) -> FileInfo:
    version = str(item.get("generation") or item.get("etag", ""))
    return FileInfo(path=f"gs://{bucket}/{item['name']}", size=int(item["size"]), version=version)


def _status(error: Exception) -> int:
    code = getattr(error, "code", None)
    return int(code) if code is not None and str(code).isdigit() else 0


def _explain(error: Exception, path: str, doing: Doing) -> SourceError:
    # gcsfs reports 403 as a bare OSError whose text begins with this word.
    if isinstance(error, PermissionError) or _status(error) in (401, 403) or str(error).startswith("Forbidden"):
        return SourcePermissionError(
            f"Google Cloud Storage refused to {doing} {path}. Check `gcloud auth application-default "
            f"print-access-token`, and that the account has {ROLES[doing]} on the bucket.",
            path=path,
        )
    if isinstance(error, FileNotFoundError) or _status(error) == 404:
        return SourceNotFoundError(
            f"{path} does not exist, or its bucket does not. Check bucket and key, and "
            "STORAGE_EMULATOR_HOST if it is set.",
            path=path,
        )
    return SourceError(f"Cannot {doing} {path}: {error}. Check the network and the bucket's state.", path=path)
