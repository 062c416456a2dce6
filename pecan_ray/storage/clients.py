"""The clients of storages that this process has: each is found by the scheme of a path, and what it was told for it.

They belong to the process that uses them: nothing here is pickled, and a forked child makes its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from pecan_ray.storage.backend import Backend
from pecan_ray.storage.fsspec_files import FsspecFiles
from pecan_ray.storage.gcs import GcsStorage
from pecan_ray.storage.local import LocalFiles
from pecan_ray.storage.local_errors import passes
from pecan_ray.storage.objects import ObjectStore
from pecan_ray.storage.options import StorageOptions, options_of
from pecan_ray.storage.retry import retry
from pecan_ray.storage.s3 import S3

_MAKERS: dict[str, Callable[[dict[str, Any]], Backend]] = {
    "": lambda _: LocalFiles(),
    "s3": lambda options: ObjectStore(S3(options)),
    "gs": lambda options: ObjectStore(GcsStorage(options)),
}


def is_remote(path: str) -> bool:
    """Say whether a path lies in an object store, or another storage that has no files of this machine."""
    return "://" in path


def backend(path: str) -> Backend:
    """Return this process's client for a path."""
    scheme, separator, _ = path.partition("://")
    made = partial(_backend_of, scheme if separator else "", options_of(path) if separator else None, os.getpid())
    try:
        return made()
    except OSError as error:
        if not passes(error):
            raise
    # A client's library reads files of its own, for which there may be no descriptors just now.
    return retry(made, passes=passes, path=path)


# The process's number is part of the key: a forked child must not use its parent's connections.
@cache
def _backend_of(scheme: str, options: StorageOptions | None, pid: int) -> Backend:
    given = {} if options is None else options.resolved()
    return _MAKERS[scheme](given) if scheme in _MAKERS else FsspecFiles(scheme, given)


def forget_clients() -> None:
    """Forget this process's clients, so that changed credentials or endpoints are looked up again."""
    _backend_of.cache_clear()
