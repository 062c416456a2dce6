"""What a file system's errors mean: some pass by themselves, as a mount's that is cut off, and are waited out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.retry import Doing, retry

T = TypeVar("T")

_PASSING = [
    # The device or the server behind a mount (NFS, Lustre, FUSE) does not answer, or has been started again.
    *("EIO", "ESTALE", "ETIMEDOUT", "ETIME", "EREMOTEIO", "ENOTCONN", "ESHUTDOWN", "ENOLINK", "ECOMM", "EPROTO"),
    "EBUSY",
    # The network to it is down.
    *("ECONNRESET", "ECONNREFUSED", "ECONNABORTED", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN", "ENETUNREACH"),
    "ENETRESET",
    # This machine has no room for the call just now: open files, buffers, memory of the kernel.
    *("EINTR", "EAGAIN", "EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"),
]
PASSING_ERRNOS = frozenset(getattr(errno, name) for name in _PASSING if hasattr(errno, name))
"""Not among them: what says that a file is not there or not allowed, or that a disk is full or must not be changed."""


def passes(error: BaseException) -> bool:
    """Tell whether an error of the operating system may pass by itself: the file may be as good as ever."""
    return isinstance(error, OSError) and (error.errno in PASSING_ERRNOS or isinstance(error, TimeoutError))


def with_retries(path: str, call: Callable[[], T], doing: Doing = "read") -> T:
    """Return what `call` returns, waiting out errors that pass; raise what others mean for a local path.

    Raises StorageOutageError when the patience of this process is over.
    """
    try:
        try:
            return call()  # nearly all calls end here, and pay nothing for the patience
        except OSError as error:
            if not passes(error):
                raise
        return retry(call, passes=passes, path=path, doing=doing)
    except OSError as error:
        raise explain(error, path, doing) from error


def explain(error: OSError, path: str, doing: Doing = "read") -> SourceError:
    """Return the error of ours that says what went wrong with a local path."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) or error.errno == errno.ELOOP:
        if os.path.islink(path):
            return SourceNotFoundError(
                f"{path} is a link to {os.readlink(path)}, which leads to no file on this machine. Remove the link, or "
                "mend it, on the machines of all workers.",
                path=path,
            )
        return SourceNotFoundError(
            f"{path} does not exist on this machine. Check the spelling, and that the machines of all "
            "workers see the same disk (or use an s3:// or gs:// path).",
            path=path,
        )
    if isinstance(error, PermissionError):
        return SourcePermissionError(
            f"Not allowed to {doing} {path}. Check its mode and owner with `ls -l`, and which user the workers run as.",
            path=path,
        )
    return SourceError(f"Cannot {doing} {path}: {error}.", path=path)
