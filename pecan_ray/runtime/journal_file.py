"""Where a journal lies: a file on the controller's node, or in a folder that the user names; a bucket gets a copy."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import ray

from pecan_ray.errors import JournalError
from pecan_ray.storage import is_remote

OFF = "off"
"""No journal is kept."""
LONGEST_NAME = 150
"""Characters of a file's name that are told from a job's: systems allow 255 bytes, and the actor's id follows."""
# Seconds in which the kernel has closed the files of a process that was killed, its memory freed before; and how
# often that is looked at.
GONE_S, LOOK_S = 5.0, 0.05
STALE_S = 3600.0
"""A journal beside Ray's session in which nothing was written for so long, and that no process has open, is left over
from a trainer that was killed."""


class JournalFile:
    """Entries in a file: each is handed to the system in one call, so that a killed process leaves whole ones."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it, for this process alone to read; raises JournalError where it cannot."""
        self.path = path
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fd = _held(path)
            self.nbytes = os.fstat(self._fd).st_size
            """Bytes that were written."""
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be opened: {error}.", path=str(path)) from error

    def read(self) -> bytes:
        """Return all that was written."""
        return self.path.read_bytes()

    def cut(self, nbytes: int) -> None:
        """Drop what lies behind so many bytes: an entry that was written in part."""
        os.ftruncate(self._fd, nbytes)
        self.nbytes = nbytes

    def descriptor(self) -> int:
        """Return another descriptor of the file, which whoever asks closes."""
        return os.dup(self._fd)

    def append(self, data: bytes) -> None:
        """Write an entry; raises OSError where not all of it could be."""
        # Decision 37: no fsync, because a killed process leaves what it has handed to the system.
        # A node that goes down takes trainer and controller with it; then a saved state remains.
        written = os.write(self._fd, data)
        self.nbytes += written
        if written != len(data):
            raise OSError(f"{written} of {len(data)} bytes could be written")

    def replace(self, data: bytes) -> None:
        """Write these entries in place of all others, or leave all as it is; raises OSError."""
        with _replaced_file(self.path, data) as beside:
            fd = _held(beside)  # before it counts: behind that nothing may fail
        os.close(self._fd)
        self._fd, self.nbytes = fd, len(data)

    def close(self) -> None:
        """Leave it as it is, for whoever goes on from it."""
        os.close(self._fd)

    def remove(self) -> None:
        """Close it and remove it; what cannot be removed is empty at least, so that nobody goes on from it."""
        os.ftruncate(self._fd, 0)
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.close()


@dataclass(frozen=True)
class JournalPlace:
    """Where an actor keeps what another process needs that takes its place."""

    folder: Path
    name: str
    actor: str
    """Its id, which a process that Ray starts again has as well."""
    bucket: str = ""
    """Where a copy goes, for other machines: a folder of a bucket, of this job alone."""

    @property
    def in_session_folder(self) -> bool:
        """Return whether nobody has named it: it is a folder of Ray's session."""
        return self.name == self.actor

    @property
    def journal(self) -> Path:
        """The file of the journal."""
        return self.folder / f"{self.name}.journal"

    @property
    def listings(self) -> Path:
        """The file of the pages of its listings."""
        return self.folder / f"{self.name}.listings"

    @property
    def job_file(self) -> Path:
        """The file of the job itself."""
        return self.folder / f"{self.name}.job"

    def keep_job(self, pickled: bytes) -> None:
        """Write down the job, with its plan; raises OSError."""
        write_all(self.job_file, self.written(pickled))

    def written(self, job: bytes) -> bytes:
        """Return a job as it is written down, with whose it is."""
        return f"{self.actor} {zlib.crc32(job):08x}\n".encode() + job

    def job(self) -> bytes | None:
        """Return the job that a process of this actor has written down; None if there was none."""
        found = kept_job(self.job_file)
        return None if found is None or found[0] != self.actor else found[1]

    @property
    def files(self) -> tuple[Path, ...]:
        """All that may be here."""
        return self.journal, self.listings, self.job_file

    def rename_previous_files(self, job: str) -> str:
        """Keep what a run before this one has left under a name of its own, and return that; empty if there is nothing.

        Raises JournalError, and leaves all as it is, where a job writes there; OSError where it cannot be moved.
        """
        if not any(self.present):
            return ""
        if self._is_written():
            raise JournalError(
                f"a job of the name {job} runs and writes {self.journal}, on another cluster perhaps: give this one "
                "another name, iter_batches(job=...), or another folder, Config(journal=...).",
                path=str(self.journal),
            )
        names = (f"{self.name}%before-{number}" for number in count(1))  # no job's: see `file_name`
        aside = next(place for name in names if not any((place := replace(self, name=name)).present))
        for path, other in zip(self.files, aside.files, strict=True):
            if path.exists():
                os.rename(path, other)
        return aside.name

    def rename_back(self, aside: str) -> None:
        """Undo `rename_previous_files`, whose answer this is, as far as that can be done."""
        for path, other in zip(self.files, replace(self, name=aside).files, strict=True):
            with contextlib.suppress(OSError):
                os.rename(other, path)

    @property
    def present(self) -> tuple[bool, ...]:
        """Which of the files are there."""
        return tuple(path.exists() for path in self.files)

    def _is_written(self) -> bool:
        """Tell whether a process has the journal open; one that was just killed has a moment to be gone."""
        until = time.monotonic() + GONE_S
        while True:
            try:
                with self.journal.open("rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            except BlockingIOError:
                if time.monotonic() > until:
                    return True
                time.sleep(LOOK_S)
            except OSError:  # it is not there, or its file system has no locks
                return False

    def remove_job(self) -> None:
        """Remove what `keep_job` has written, if it can be."""
        with contextlib.suppress(OSError):
            self.job_file.unlink()


def file_name(job: str) -> str:
    """Return how the files of a job are called: of no other job, whatever characters are in its name."""
    quoted = quote(job, safe="")
    if len(quoted) <= LONGEST_NAME:
        return quoted
    return (
        f"{quoted[:LONGEST_NAME]}%longer-{hashlib.sha256(job.encode()).hexdigest()}"  # behind % quoting has no letter l
    )


def place_of(folder: str | os.PathLike[str] | None, job: str) -> JournalPlace:
    """Return the place of the actor that asks: in a folder, or of Ray's session on this node (None; or a bucket)."""
    actor = str(ray.get_runtime_context().get_actor_id())
    bucket = "" if folder is None or not is_remote(os.fspath(folder)) else bucket_folder(folder, job)
    if folder is not None and not bucket:
        return JournalPlace(Path(folder), file_name(job), actor)
    node: Any = ray._private.worker._global_node
    return JournalPlace(Path(node.get_session_dir_path()) / "pecan-journals", actor, actor, bucket)


def bucket_folder(root: str | os.PathLike[str], job: str) -> str:
    """Return where in a bucket the copies of a job's journals lie."""
    return f"{os.fspath(root).rstrip('/')}/{file_name(job)}"


def kept_job(path: Path) -> tuple[str, bytes] | None:
    """Return which actor has written a job down, and the job, pickled; None if none has.  Raises JournalError."""
    try:
        written = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error}.", path=str(path)) from error
    return job_of(written, str(path))


def job_of(written: bytes, where: str) -> tuple[str, bytes]:
    """Return which actor has written a job down, and the job, pickled.  Raises JournalError for a damaged one."""
    head, _, pickled = written.partition(b"\n")
    actor, _, checksum = head.decode(errors="replace").partition(" ")
    if checksum != f"{zlib.crc32(pickled):08x}":
        raise JournalError(f"{where} is damaged: the job cannot go on.", path=where)
    return actor, pickled


def write_all(path: Path, data: bytes) -> None:
    """Write a file whole, or leave what was there; raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _replaced_file(path, data):
        pass


@contextlib.contextmanager
def _replaced_file(path: Path, data: bytes) -> Iterator[Path]:
    """Write a file under another name; behind the block it takes the place of the one that was there."""
    beside = path.with_name(f"{path.name}.new")
    try:
        # O_NOFOLLOW: in a folder that others may write to, no link of theirs decides which file is written.
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        yield beside
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _held(path: Path) -> int:
    """Open a file for adding to it, and lock it; raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    # Nobody waits for this lock: who can have it knows that the process is gone.
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def remove_stale(folder: Path) -> None:
    """Remove journals that nobody writes any more, and the jobs beside them."""
    for path in folder.glob("*.journal"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if time.time() - path.stat().st_mtime > STALE_S:
                # Raises, and so leaves all of it, if a process has the journal open.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The job first: without it nobody goes on from the others, should this process be ended here.
                for kind in (".job", ".listings", ".journal"):
                    path.with_suffix(kind).unlink(missing_ok=True)
