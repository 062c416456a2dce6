"""Where ranks on one machine find the Ray that one of them has started: without a cluster each would start its own."""

from __future__ import annotations

import atexit
import fcntl
import functools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pecan_ray.errors import ClusterError
from pecan_ray.job.waiting import SAY_AFTER_S
from pecan_ray.runtime.launch import launch

logger = logging.getLogger("pecan_ray")

LOOK_S = 0.1
"""Between two looks whether other ranks still use the Ray of this one, at its end."""
_present: list[IO[str]] = []
"""The files that this process holds open until it ends: the lock on such a file says that it lives."""


def connect_or_start(start: Callable[[], str], connect: Callable[[str], bool], *, folder: Path | None = None) -> bool:
    """Connect to the Ray of another rank on this machine, or start one for all; return whether it was started.

    `start` returns the address of the Ray that it has started; `connect` returns whether the one at an address was
    there.  The process that has started it stays at its end until the others have ended.
    """
    place = (folder or Path(tempfile.gettempdir())) / f"pecan-ranks-{os.getuid()}-{_launcher()}"
    present = place.with_suffix(".present")
    # Decision 89: ranks stand in line at this lock, and the first one starts the Ray of all.
    with _locked(place) as door:
        address = door.read()
        if address and connect(address):
            lives = _opened(present)
            # Decision 89: the kernel takes the lock back, however this process ends.
            fcntl.lockf(lives, fcntl.LOCK_SH)
            _present.append(lives)
            return False
        address = start()
        door.seek(0)
        door.truncate()
        door.write(address)
    atexit.register(functools.partial(_see_off, place, present))  # comes before Ray's own, which ends it
    return True


def _see_off(place: Path, present: Path) -> None:
    """Wait until the ranks that use the Ray of this process have ended, which ends with it."""
    # Under the lock, so that no rank joins a Ray that is about to end.
    with _locked(place), _opened(present) as lives:
        started, message = time.monotonic(), False
        while not _free(lives):
            if not message and time.monotonic() - started > SAY_AFTER_S:
                message = True
                logger.warning("waiting: other ranks still use the Ray that this process, which ends, has started")
            time.sleep(LOOK_S)
        place.unlink(missing_ok=True)
        present.unlink(missing_ok=True)


def _free(lives: IO[str]) -> bool:
    try:
        # Each rank that has joined holds a shared lock for as long as it lives, so none is left with this one.
        fcntl.lockf(lives, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _launcher() -> str:
    """Return what the ranks of a launch on this machine have in common: their port, or the process that began them."""
    found = launch()
    return (found.run if found is not None else "") or f"of-{os.getppid()}"


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """Open a file that nobody else has open in this way."""
    while True:
        with _opened(path) as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                yield file
                return


def _is_at(file: IO[str], path: Path) -> bool:
    """Tell whether a file is still the one at a path: the one who held it before may have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _opened(path: Path) -> IO[str]:
    """Open a file of this user; raises ClusterError for one of somebody else, who could name a Ray of theirs there."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+")
    if os.fstat(file.fileno()).st_uid != os.getuid():
        file.close()
        raise ClusterError(f"{path} belongs to another user: remove it, or start a cluster by `ray start --head`.")
    return file
