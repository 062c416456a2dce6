"""Google Cloud Storage through gcsfs.

Credentials and endpoint are found by gcsfs (application default credentials, instance metadata,
``STORAGE_EMULATOR_HOST``; anonymous where there are none).  It retries throttling, 5xx and broken connections
itself, with exponential backoff and jitter.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from pecan_ray.errors import MissingExtraError, SourceError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.backend import FileInfo
from pecan_ray.storage.objects import Page
from pecan_ray.storage.retry import Backoff, retry

T = TypeVar("T")


class GoogleStorage:
    """An `ObjectApi` over one gcsfs file system, which belongs to this process."""

    scheme = "gs"

    def __init__(self) -> None:
        try:
            gcsfs = importlib.import_module("gcsfs")
        except ImportError as error:
            raise MissingExtraError(
                "Reading gs:// paths needs gcsfs: pip install 'pecan_ray[gcs]' (on the workers too).",
                extra="gcs",
            ) from error
        self._failure: type[Exception] = importlib.import_module("gcsfs.retry").HttpError
        # Listings must come from the store: a cached one would hide that the data has changed.
        self._fs: Any = gcsfs.GCSFileSystem(use_listings_cache=False, skip_instance_cache=True)

    def pages(self, bucket: str, prefix: str, delimiter: str) -> Iterator[Page]:
        """Yield the pages of a listing, asking for one only when it is wanted."""
        more: dict[str, str] = {"delimiter": delimiter} if delimiter else {}
        while True:
            listing = partial(self._fs.call, "GET", "b/{}/o", bucket, prefix=prefix, json_out=True, **more)
            answer: dict[str, Any] = self._ask(f"gs://{bucket}/{prefix}", listing)
            files = tuple(_describe(bucket, item) for item in answer.get("items", ()))
            yield Page(files=files, folders=tuple(answer.get("prefixes", ())))
            if not answer.get("nextPageToken"):
                return
            more["pageToken"] = answer["nextPageToken"]

    def head(self, bucket: str, key: str) -> FileInfo | None:
        """Describe an object; None: there is none."""
        try:
            describe = partial(self._fs.call, "GET", "b/{}/o/{}", bucket, key, json_out=True)
            answer: dict[str, Any] = self._ask(f"gs://{bucket}/{key}", describe)
        except SourceNotFoundError:
            return None
        return _describe(bucket, answer)

    def get(self, bucket: str, key: str, start: int, stop: int | None) -> bytes:
        """Return a range of an object's bytes; fewer where it ends before."""
        return self._ask(f"gs://{bucket}/{key}", partial(self._body, bucket, key, start, stop))

    def _body(self, bucket: str, key: str, start: int, stop: int | None) -> bytes:
        limits = {} if start == 0 and stop is None else {"start": start, "end": stop}
        try:
            data: bytes = self._fs.cat_file(f"{bucket}/{key}", **limits)
        except self._failure as error:
            if _status(error) == 416:
                return b""
            raise
        return data

    def _ask(self, path: str, call: Callable[[], T]) -> T:
        try:
            return retry(call, passes=_passes, path=path, backoff=Backoff(attempts=3))
        except (self._failure, OSError, ValueError, RuntimeError) as error:
            raise _explain(error, path) from error


def _describe(bucket: str, item: dict[str, Any]) -> FileInfo:
    version = str(item.get("generation") or item.get("etag", ""))
    return FileInfo(path=f"gs://{bucket}/{item['name']}", size=int(item["size"]), version=version)


def _passes(error: Exception) -> bool:
    """Say whether to try again what gcsfs does not: errors of the socket that reach us bare."""
    return isinstance(error, (ConnectionError, TimeoutError))


def _status(error: Exception) -> int:
    code = getattr(error, "code", None)
    return int(code) if code is not None and str(code).isdigit() else 0


def _explain(error: Exception, path: str) -> SourceError:
    # gcsfs reports 403 as a bare OSError whose text begins with this word.
    if isinstance(error, PermissionError) or _status(error) in (401, 403) or str(error).startswith("Forbidden"):
        return SourcePermissionError(
            f"Google Cloud Storage refused {path}. Check `gcloud auth application-default "
            "print-access-token`, and that the account has roles/storage.objectViewer on the bucket.",
            path=path,
        )
    if isinstance(error, FileNotFoundError) or _status(error) == 404:
        return SourceNotFoundError(
            f"{path} does not exist, or its bucket does not. Check bucket and key, and "
            "STORAGE_EMULATOR_HOST if it is set.",
            path=path,
        )
    return SourceError(f"Cannot read {path}: {error}. Check the network and the bucket's state.", path=path)
