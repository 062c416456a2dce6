"""Files of this machine (and of what is mounted on it)."""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, cast

from pecan_ray.errors import SourceError, SourceNotFoundError, SourcePermissionError
from pecan_ray.storage.backend import MAGIC, FileInfo, compile_glob, is_hidden
from pecan_ray.storage.ranges import FileRange, replaced
from pecan_ray.storage.retry import Doing

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_VISITS = 1000
"""So often one folder may be come to behind links: links to links double with every step."""

Descend = Callable[[str, int], bool]
"""(path of a folder, how deep it lies below the first one) -> whether to look into it."""


def explain(error: OSError, path: str, doing: Doing = "read") -> SourceError:
    """Return the error of ours that says what went wrong with a local path."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
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


class LocalFiles:
    """A `Backend` over the file system."""

    def info(self, path: str) -> FileInfo | None:
        """Return the file's description, or None if there is no such file; pipes and devices are refused."""
        try:
            status = os.stat(path)
            return None if stat.S_ISDIR(status.st_mode) else _describe(path, status)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise explain(error, path) from error

    def folder(self, path: str) -> Iterator[FileInfo]:
        """Yield the files below a folder in the order of their names."""
        if not os.path.isdir(path):
            return
        root = path.rstrip("/") + "/"
        for file in _walk(root, lambda folder, _: not is_hidden(folder.rsplit("/", 1)[-1])):
            if not is_hidden(file[len(root) :]):
                yield _stat(file)

    def glob(self, pattern: str) -> Iterator[FileInfo]:
        """Yield the files that match, in the order of their names; folders that cannot match are not read.

        A file or folder that is called like the pattern itself is what is meant.
        """
        try:
            literal = stat.S_IFMT(os.stat(pattern).st_mode)
        except OSError:
            literal = 0
        if literal:
            yield from self.folder(pattern) if stat.S_ISDIR(literal) else (_stat(pattern),)
            return
        fixed = pattern[: _first_magic(pattern)]
        root = fixed[: fixed.rfind("/") + 1]
        segments = pattern[len(root) :].split("/")
        matches = compile_glob(pattern).match
        if not os.path.isdir(root):
            return
        for file in _walk(root, _descend_along(segments)):
            if matches(file):
                yield _stat(file)

    def subfolders(self, path: str) -> list[str]:
        """Return the sorted names of the folders directly below a folder."""
        try:
            with os.scandir(path) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir() and not is_hidden(entry.name))
        except OSError as error:
            raise explain(error, path) from error

    def read(self, path: str, start: int, stop: int | None, version: str) -> FileRange:
        """Return bytes `start` to `stop`; fewer where the file ends before."""
        try:
            fd = _open_file(path)
            try:
                found = os.fstat(fd)
                stop = found.st_size if stop is None else min(stop, found.st_size)
                data = _pread(fd, start, stop)
                after = os.fstat(fd)
                more = not found.st_size and bool(os.pread(fd, 1, 0))
            finally:
                os.close(fd)
        except OSError as error:
            raise explain(error, path) from error
        if (version and version != _version(found)) or _changed(found, after):
            raise replaced(path)
        if more:
            raise _of_no_size(path)
        if start + len(data) < stop:
            raise _shorter(path, start + len(data), found.st_size)
        return FileRange(data, after.st_size, version)

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole, beside its place first."""
        folder = os.path.dirname(path)
        beside = os.path.join(folder, f".{secrets.token_hex(8)}.part")  # no listing shows it
        try:
            os.makedirs(folder or ".", exist_ok=True)
            try:
                with open(beside, "xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # or else a crash could leave the name without the bytes
                os.replace(beside, path)
            except BaseException:
                with contextlib.suppress(OSError):  # the first error is told
                    os.unlink(beside)
                raise
        except OSError as error:
            raise explain(error, path, "write") from error

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        try:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
        except OSError as error:
            raise explain(error, path, "remove") from error


def _pread(fd: int, start: int, stop: int) -> bytes:
    """Return bytes `start` to `stop`; fewer where the file ends before, or the system stops by itself."""
    data = os.pread(fd, max(0, stop - start), start)
    pieces = [data]
    while data and start + sum(map(len, pieces)) < stop:  # the system reads 2 GiB at a time
        data = os.pread(fd, stop - start - sum(map(len, pieces)), start + sum(map(len, pieces)))
        pieces.append(data)
    return b"".join(pieces) if len(pieces) > 1 else data


def _changed(before: os.stat_result, after: os.stat_result) -> bool:
    """Tell whether a file was written to; asked about every range, and cheaper than two versions."""
    return before.st_mtime_ns != after.st_mtime_ns or before.st_size != after.st_size


class _OneVersion(io.FileIO):
    """Reads a file as long as nobody writes to it; the second half of another version would be no part of the first."""

    def __init__(self, path: str, version: str) -> None:
        super().__init__(path, "rb", opener=lambda name, _: _open_file(name))
        self._path = path
        self._version = version or _version(os.fstat(self.fileno()))

    def check(self) -> None:
        """Raise SourceReplacedError if the file has been written to."""
        if _version(os.fstat(self.fileno())) != self._version:
            raise replaced(self._path)

    def _check_end(self) -> None:
        """Raise SourceError if the file ends here, and says to be longer."""
        at, size = self.tell(), os.fstat(self.fileno()).st_size
        if at < size:
            raise _shorter(self._path, at, size)

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = super().readinto(buffer)
        self.check()
        if not count and memoryview(buffer).nbytes:
            self._check_end()
        return count or 0

    def readall(self) -> bytes:
        data = super().readall()
        self.check()
        self._check_end()
        return data or b""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        self.check()
        if not data and size:
            self._check_end()
        return data or b""


def open_local(path: str, version: str = "", *, buffering: int = 1 << 20) -> BinaryIO:
    """Open a file; raise SourceReplacedError at once, or as soon as it is read, if it has another version."""
    try:
        file = _OneVersion(path, version)
    except OSError as error:
        raise explain(error, path) from error
    if version:
        try:
            file.check()
        except BaseException:
            file.close()
            raise
    return cast(BinaryIO, io.BufferedReader(file, buffering) if buffering else file)


def _open_file(path: str) -> int:
    """Open a file; what has become a pipe since it was listed is refused, where opening it would wait for a writer."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(fd)
        raise _no_file(path, mode)
    return fd


def _no_file(path: str, mode: int) -> SourceError:
    return SourceError(f"{path} is {_kind(mode)}, not a file: it cannot be read again and again.", path=path)


def _first_magic(pattern: str) -> int:
    found = MAGIC.search(pattern)
    return found.start() if found else len(pattern)


def _descend_along(segments: list[str]) -> Descend:
    """Return which folders a glob can match in, given its segments below the folder where the walk starts."""
    free = segments.index("**") if "**" in segments else len(segments)
    allowed: list[re.Pattern[str]] = [compile_glob(segment) for segment in segments[:free]]

    def descend(folder: str, depth: int) -> bool:
        name = folder.rsplit("/", 1)[-1]
        if depth < free:
            return depth < len(segments) - 1 and allowed[depth].match(name) is not None
        # Below `**` an explicitly named hidden folder may follow, which the whole pattern decides on.
        return free < len(segments)

    return descend


@dataclass(frozen=True)
class _Open:
    """A folder whose names are being gone through."""

    path: str
    """Ends in a slash."""
    names: Iterator[tuple[str, bool]]
    """(name, with a slash if it is a folder's; whether it is a link), sorted."""
    identity: tuple[int, int]


def _walk(root: str, descend: Descend) -> Iterator[str]:
    """Yield the files below a folder (which ends in a slash) in an object store's order.

    A link to a folder that it lies in is not followed.  Raises SourceError where links lead to the same folder over
    and over by other ways.
    """
    above = [_open(root)]
    visits: Counter[tuple[int, int]] = Counter()
    """How often a folder was come to behind a link."""
    linked_at: int | None = None
    """Place in `above` of the first folder that was come to by a link."""
    while above:
        here = above[-1]
        for name, linked in here.names:
            path = here.path + name
            if not name.endswith("/"):
                yield path
            elif descend(path[:-1], len(above) - 1):
                folder = _open(path)
                if linked and any(folder.identity == one.identity for one in above):
                    continue
                if linked and linked_at is None:
                    linked_at = len(above)
                if linked_at is not None:
                    visits[folder.identity] += 1
                    if visits[folder.identity] > MOST_VISITS:
                        raise SourceError(
                            f"Links lead to the folder {path} in more than {MOST_VISITS} ways. Name what to read, or "
                            "remove links.",
                            path=path,
                        )
                above.append(folder)
                break
        else:
            above.pop()
            if linked_at is not None and len(above) <= linked_at:
                linked_at = None


def _open(folder: str) -> _Open:
    try:
        status = os.stat(folder)
        with os.scandir(folder) as entries:
            names = sorted(
                (entry.name + "/" if entry.is_dir() else entry.name, entry.is_symlink()) for entry in entries
            )
    except OSError as error:
        raise explain(error, folder) from error
    return _Open(folder, iter(names), (status.st_dev, status.st_ino))


def _stat(path: str) -> FileInfo:
    try:
        return _describe(path, os.stat(path))
    except OSError as error:
        raise explain(error, path) from error


def _describe(path: str, status: os.stat_result) -> FileInfo:
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(path, status.st_mode)
    if not status.st_size and _has_content(path):
        raise _of_no_size(path)
    return FileInfo(path=path, size=status.st_size, version=_version(status))


def _has_content(path: str) -> bool:
    """Tell whether a file that says to be empty is not: those of /proc are made when they are read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return bool(os.pread(fd, 1, 0))
    except BlockingIOError:  # something would come
        return True
    finally:
        os.close(fd)


def _of_no_size(path: str) -> SourceError:
    return SourceError(
        f"{path} says to have 0 bytes, and has more: it is made while it is read (as in /proc), or is being written. "
        "Read a copy of it.",
        path=path,
    )


def _shorter(path: str, at: int, size: int) -> SourceError:
    return SourceError(
        f"{path} ends at byte {at}, and says to have {size}: it is made while it is read (as in /sys), or its file "
        "system has not all of it. Read a copy of it.",
        path=path,
        offset=at,
    )


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a folder" if stat.S_ISDIR(mode) else "a device"


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}.{status.st_size}"
