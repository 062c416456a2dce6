"""Of processes and threads of a node that miss the same bytes one fetches them, and the others wait for it a while."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

WAIT_S = 5.0
"""Most seconds to wait: who fetches may be slow by its quota, and then it is better to fetch the bytes oneself."""
# Seconds between two tries for the lock: short beside a request of some ten milliseconds.
LOOK_S = 0.01


@contextlib.contextmanager
def alone(folder: Path | None, key: str) -> Iterator[bool]:
    """Be the only one of the node inside with a key, as far as others do not take too long; tell whether one was.

    A lock file stands for all keys that begin alike; the system lets go of it when its process ends.  Without a folder,
    or with one that has no room for it, nobody waits.
    """
    fd = None
    if folder is not None:
        with contextlib.suppress(OSError):  # it spares a request, no more
            # Decision 54: one file for each of 4,096 kinds of keys, so that they do not become as many as the blocks.
            # No link is followed: where others may write into the folder it could lead to any file.
            fd = os.open(folder / f"{key[:3]}.fetching", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield fd is not None and _waited(fd)
    finally:
        if fd is not None:
            with contextlib.suppress(OSError):  # a forked child has it too, and must not hold it
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _waited(fd: int) -> bool:
    """Take a lock, or give up; return whether it was held by another one."""
    until, waited = time.monotonic() + WAIT_S, False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            if time.monotonic() > until:
                return True
            time.sleep(LOOK_S)
        except OSError:  # a file system without locks
            return waited
        else:
            return waited
