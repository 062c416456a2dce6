"""Files of elements that were left out: JSON lines, which are read without running anybody's code.

A line begins each job; every other one is an element. What is not plain is kept as a pickle inside its line, and read
only where the reader is told to trust the file.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import logging
import os
import pickle
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from pecan_ray.by_value import dumps
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.plain import NotPlainError, Written, decode, encode, whole
from pecan_ray.errors import PlanError
from pecan_ray.job.bad_elements import digest_of
from pecan_ray.job.saved_state import SavedState
from pecan_ray.plan.splits import Origin, Source, as_written
from pecan_ray.storage.listing import would_name

logger = logging.getLogger("pecan_ray")

# Of quarantine files: a file of another version is refused, because its elements could be read as others.
FORMAT_VERSION = 1
LOCK_S = 1.0
"""So long another trainer's writing is waited for, which takes some milliseconds: who holds the lock for a second has
stopped."""
HEAD = b'{"pecan-quarantine": '
"""How files begin."""
CURE = "Name a file that can be written by Config(quarantine_path=...)"
_CURES = {
    errno.ENOENT: "its folder does not exist: make it",
    errno.ENOTDIR: "its folder is none",
    errno.ELOOP: "it is a symbolic link, which is not followed: name the file that it points to",
    errno.EISDIR: "it is a folder: name a file in it",
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "the disk quota is used up: make room",
    errno.EACCES: "writing is not allowed there",
    errno.EPERM: "it belongs to another user",
    errno.EROFS: "the disk can only be read",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENXIO: "it is no regular file",
}
_KINDS = {stat.S_IFREG: 0, stat.S_IFLNK: errno.ELOOP, stat.S_IFDIR: errno.EISDIR}


@dataclass(frozen=True)
class Pickled:
    """Stands for an element that was kept as a pickle, which was not read since that can run code."""

    nbytes: int


class QuarantineFile:
    """Appends bad elements to a file, which is opened, and written, before the first one comes."""

    def __init__(self, path: Path, job: str, *, continues: bool = False) -> None:
        """Open the file; raises `PlanError` where elements could not be kept in it.

        `continues`: what runs before this one have kept in it is not kept again.
        """
        self.path = path
        self.unkept = 0
        """Elements that could not be written."""
        self._lock = threading.Lock()
        """Guards the file, and what is known of it, among the threads of this process."""
        self._process = os.getpid()
        self._is_unchanged = self._has_partial_line = False
        """Nothing but lines that begin jobs is in it, as far as this process knows; a line was written in part."""
        self._kept: set[int] = set()
        """Elements that are in it, by whichever trainer of the job, as hashes."""
        self._read_to = 0
        """So far it was looked at for what others have written."""
        try:
            self._fd, created = _opened(path)
        except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
            _reject(path, error)
        try:
            self._begin(job, created, continues)
        except OSError as error:
            self.close()
            _reject(path, error)
        except BaseException:
            self.close()
            raise

    def _begin(self, job: str, created: bool, continues: bool) -> None:
        found = os.pread(self._fd, len(HEAD), 0)
        if found and found != HEAD:
            raise PlanError(
                f"bad elements cannot be kept in {self.path}: it holds something else. Move it away. {CURE}."
            )
        # Elements are somebody's data, and a file that was there may be readable for all.
        os.fchmod(self._fd, 0o600)
        size = os.fstat(self._fd).st_size
        self._has_partial_line = (
            size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        )  # an earlier job ended while it wrote
        self._is_unchanged = created or found == HEAD
        line = HEAD + b'%d, "job": %s}\n' % (FORMAT_VERSION, json.dumps(job).encode())
        self._write(line)
        # A full disk or quota shows now, before the job has begun.
        os.fsync(self._fd)
        self._read_to = 0 if continues else size

    def add(self, bad: Sequence[BadElement]) -> None:
        """Write elements at once: a crash later does not lose them.  What cannot be written is told and counted.

        What another trainer of the job has kept in this file is in it already: it comes to two of them where a batch
        was given back.
        """
        with self._lock:
            if bad and self._fd >= 0:  # once it is closed, nobody uses what comes
                self._add(bad)

    def _add(self, bad: Sequence[BadElement]) -> None:
        with _exclusive_lock(self._fd):
            self._look()
            for one in bad:
                written = _written(one)
                if (found := _identity(written)) in self._kept:
                    continue
                try:
                    self._write(json.dumps(written, separators=(",", ":"), allow_nan=False).encode() + b"\n")
                    self._is_unchanged = False
                    self._kept.add(found)
                except OSError as error:
                    if not self.unkept:
                        logger.warning(
                            "bad elements cannot be kept in %s any more (%s): they are left out, and counted as "
                            "Report.unkept_elements. Each further one is tried again.",
                            *(self.path, error.strerror or error),
                        )
                    self.unkept += one.elements_left_out

    def _look(self) -> None:
        """Note what was written since the last look."""
        try:
            data = os.pread(self._fd, max(0, os.fstat(self._fd).st_size - self._read_to), self._read_to)
        except OSError:  # then an element may be in it twice
            return
        lines = data[: data.rfind(b"\n") + 1]
        self._read_to += len(lines)
        for line in lines.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # another one's line may be torn
                self._kept.add(_identity(json.loads(line)))

    def _write(self, line: bytes) -> None:
        """Append a whole line; what was written of one that does not fit is taken back."""
        # Ends the line that an earlier writing has left in its midst.
        data = b"\n" + line if self._has_partial_line else line
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError:
            if done:
                self._take_back(done)
            raise
        self._has_partial_line = False

    def _take_back(self, nbytes: int) -> None:
        end = os.lseek(self._fd, 0, os.SEEK_CUR)
        try:
            self._has_partial_line = os.fstat(self._fd).st_size != end
            # Only if nobody has written behind it meanwhile.
            if not self._has_partial_line:
                os.ftruncate(self._fd, end - nbytes)
        except OSError:
            self._has_partial_line = True

    def close(self) -> None:
        """Close the file, and delete it if this job made it and nobody has anything in it."""
        with self._lock:
            fd, self._fd = self._fd, -1
            if fd < 0:
                return
            if self.unkept:
                logger.warning("%d bad elements could not be kept in %s", self.unkept, self.path)
            # A forked process has no say; a file whose only lines begin jobs tells of nothing.
            if self._is_unchanged and os.getpid() == self._process:
                with contextlib.suppress(OSError):  # others have it open; or it is gone, or moved
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.lstat(self.path), os.fstat(fd)) and _only_heads(fd):
                        os.unlink(self.path)
            os.close(fd)


def _opened(path: Path) -> tuple[int, bool]:
    """Return a descriptor of a regular file, with a shared lock on it, and whether it is new."""
    while True:
        fd, created = _descriptor(path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
            with contextlib.suppress(OSError):  # where there are no locks, nobody deletes it
                # All who have it open share this lock: who gets it alone at the end may delete the file.
                fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_nlink:
                return fd, created
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # another trainer of the job has just deleted it


def _descriptor(path: Path) -> tuple[int, bool]:
    """Open or make a file; a symbolic link is not followed, and no other end of a pipe is waited for."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        kind = _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode), errno.ENXIO)
        if kind:
            raise OSError(kind, os.strerror(kind)) from None
        return os.open(path, flags), False


def _reject(path: Path, error: OSError | ValueError) -> NoReturn:
    why = _CURES.get(getattr(error, "errno", None) or 0, str(error))
    raise PlanError(f"bad elements cannot be kept in {path}: {why}. {CURE}.") from error


def default_path(job: str) -> Path:
    """Return the file of a job in the working directory; raises `PlanError` for a name that is none of a file."""
    if "/" in job or "\0" in job:
        raise PlanError(
            f"bad elements of {job!r} cannot be kept in a file that is named so, since the name has a slash. Name the "
            "pipeline, or job=..., without one, or a file by Config(quarantine_path=...)."
        )
    return Path(f"pecan-quarantine-{job}.jsonl")


def check_apart(path: Path, sources: Sequence[Source]) -> None:
    """Raise PlanError for a file that would be read as data, by this job or the next one."""
    whole = os.path.abspath(path)
    for source in sources:
        patterns = getattr(as_written(source), "patterns", ())
        if would_name(patterns, whole):
            raise PlanError(
                f"bad elements cannot be kept in {whole}: the source reads {', '.join(patterns)}, and with it this "
                "file. Name one elsewhere by Config(quarantine_path=...)."
            )


def _only_heads(fd: int) -> bool:
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        return all(line.startswith(HEAD) for line in file)


def _written(bad: BadElement) -> dict[str, Written]:
    def put(*parts: bytes) -> str:
        return base64.b64encode(b"".join(parts)).decode()

    written: dict[str, Written] = {"op": bad.op, "where": bad.where, "error": bad.error}
    for name in ("origin", "first"):
        origin = getattr(bad, name)
        written[name] = None if origin is None else asdict(origin)
    written |= {"elements_left_out": bad.elements_left_out, "estimated": bad.estimated, "open_end": bad.open_end}
    try:
        # Plain wherever it can be, because a pickle runs code when it is read:
        # docs/decisions/security.md#30-files-and-streams-run-no-code.
        written["element"] = {"plain": encode(bad.element, put)}
    except (NotPlainError, RecursionError):
        try:
            written["element"] = {"pickle": put(dumps(bad.element))}
        except Exception as error:  # pickling runs anybody's code
            written["element"] = {"plain": None}
            written["error"] = f"{bad.error} (not kept: {type(error).__name__} when it was pickled)"
    return written


def _identity(written: dict[str, Any]) -> int:
    """Return what an element is told apart by, as in `BadElement.identity`."""
    return hash(json.dumps([written["op"], written["origin"] or written["first"] or written["where"]]))


@contextlib.contextmanager
def _exclusive_lock(fd: int) -> Iterator[None]:
    """Keep other trainers from writing meanwhile, where the file system has locks; wait no longer than a second."""
    # Linux's `struct flock`. The lock is the open file's: one of the process would go whenever another
    # descriptor of the file is closed.
    ours = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, ours)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                break
            time.sleep(0.001)
        except OSError:  # there are none
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0))


def quarantined(path: str | Path, *, trust: bool = False) -> Iterator[BadElement]:
    """Yield the elements of a quarantine file.

    An element that was kept as a pickle comes as `Pickled`, unless `trust` says that the file was written by nobody
    who means harm: reading a pickle runs the code that it names.  Raises `PlanError` if there is no such file, or if it
    holds something else, behind the elements that could be read.
    """
    try:
        with open(path, "rb") as file:
            if file.peek(len(HEAD))[: len(HEAD)] != HEAD:
                raise PlanError(f"{path} is no quarantine file.")
            yield from _lines(path, file, trust)
    except OSError as error:
        raise PlanError(f"cannot read the quarantine file {path}: {error}") from error


def _lines(path: str | Path, file: Any, trust: bool) -> Iterator[BadElement]:
    """Yield the elements of all lines that can be read, and raise then for the first one that cannot."""
    problem: PlanError | None = None
    for number, line in enumerate(file, 1):
        try:
            if line.startswith(HEAD):
                _check_version(path, line)
            elif line.strip():
                bad = _read(path, number, line, trust)
                yield bad
        except PlanError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _check_version(path: str | Path, head: bytes) -> None:
    version = head[len(HEAD) :].partition(b",")[0]
    if version != b"%d" % FORMAT_VERSION:
        raise PlanError(
            f"{path} has elements in the format {version[:20].decode(errors='replace')}, and this version of pecan_ray "
            f"reads format {FORMAT_VERSION}: read them with the one that wrote them."
        )


def _read(path: str | Path, number: int, line: bytes, trust: bool) -> BadElement:
    def get(text: Written) -> bytes:
        return base64.b64decode(text, validate=True)

    try:
        written = json.loads(line)
        op, where, error_text = (_text(written[name]) for name in ("op", "where", "error"))
        origin, first = (_origin(written[name]) for name in ("origin", "first"))
        # Earlier versions did not say how well the number is known.
        known = {name: written.get(name) is True for name in ("estimated", "open_end")}
        bad = BadElement(op, where, error_text, None, origin, first, whole(written["elements_left_out"]), **known)
        ((kind, content),) = written["element"].items()
        if kind == "plain":
            return replace(bad, element=decode(content, get))
        data = get(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PlanError(f"line {number} of {path} is no whole bad element ({error}).") from error
    if not trust:
        return replace(bad, element=Pickled(len(data)))
    try:
        return replace(bad, element=pickle.loads(data))
    except Exception as error:  # unpickling runs anybody's code
        raise PlanError(
            f"{path} is no complete quarantine file ({type(error).__name__}: {error}). Where its elements are objects "
            "of modules of your own, these must be importable."
        ) from error


def _text(written: Written) -> str:
    if not isinstance(written, str):
        raise ValueError(f"{written!r} is no text")
    return written


def _origin(written: Written) -> Origin | None:
    return None if written is None else Origin(**{name: whole(value, -1) for name, value in written.items()})


def quarantine_writer(file: QuarantineFile | None, saved: SavedState | None) -> Callable[[Sequence[BadElement]], None]:
    """Return what keeps bad elements in a file, but for those that a run before this one has kept."""
    dealt = frozenset(saved.point.bad) if saved is not None else frozenset()

    def keep(bad: Sequence[BadElement]) -> None:
        if file is not None:
            file.add([one for one in bad if not dealt or digest_of(one.identity) not in dealt])

    return keep
