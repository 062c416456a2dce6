"""Where a journal lies: a file on the controller's node, or in a folder that the user names."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Any

import ray

from pecan_ray.errors import JournalError

STALE_S = 3600.0
"""A journal beside Ray's session in which nothing was written for so long, and that no process has open, is left over
from a trainer that was killed."""


class JournalFile:
    """Lines in a file: each is handed to the system in one call, so that a killed process leaves whole ones."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it, for this process alone to read; raises JournalError where it cannot."""
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be opened: {error}.", path=str(path)) from error
        self._hold()

    def _hold(self) -> None:
        # Nobody waits for this lock: who can have it knows that the process is gone.
        with contextlib.suppress(OSError):
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def read(self) -> bytes:
        """Return all that was written."""
        return self.path.read_bytes()

    def cut(self, nbytes: int) -> None:
        """Drop what lies behind so many bytes: a line that was written in part."""
        os.ftruncate(self._fd, nbytes)

    def append(self, data: bytes) -> None:
        """Write lines; raises OSError where not all of it could be."""
        written = os.write(self._fd, data)
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes could be written")

    def replace(self, data: bytes) -> None:
        """Write these lines in place of all others, or leave all as it is; raises OSError."""
        beside = self.path.with_name(f"{self.path.name}.new")
        fd = os.open(beside, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.replace(beside, self.path)
        except OSError:
            os.close(fd)
            beside.unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd = fd
        self._hold()

    def close(self) -> None:
        """Close it; what was written stays."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close it and remove it."""
        self.path.unlink(missing_ok=True)
        self.close()


def journal_path(folder: str | os.PathLike[str] | None, job: str) -> Path:
    """Return where the journal of the actor that asks lies: in a folder (None: of Ray's session on this node)."""
    if folder is not None:
        return Path(folder) / f"{job.replace('/', '_')}.journal"
    node: Any = ray._private.worker._global_node
    session = Path(node.get_session_dir_path())
    return session / "pecan-journals" / f"{ray.get_runtime_context().get_actor_id()}.journal"


def remove_stale(folder: Path) -> None:
    """Remove journals that nobody writes any more."""
    for path in folder.glob("*.journal*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if time.time() - path.stat().st_mtime > STALE_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
