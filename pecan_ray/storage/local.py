"""Files of this machine (and of what is mounted on it)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pecan_ray.errors import SourceError, SourceNotFoundError, StorageOutageError
from pecan_ray.storage.backend import MAGIC, FileInfo, compile_glob, is_hidden
from pecan_ray.storage.local_errors import passes, with_retries
from pecan_ray.storage.local_stream import no_file, open_file, shorter, version_of
from pecan_ray.storage.ranges import FileRange, replaced

MOST_VISITS = 1000
"""Most times that one folder is come to behind links: links to links double with every step."""

Descend = Callable[[str, int], bool]
"""(path of a folder, how deep it lies below the first one) -> whether to look into it."""


class LocalFiles:
    """A `Backend` over the file system."""

    def info(self, path: str) -> FileInfo | None:
        """Return the file's description, or None if there is no such file; pipes and devices are refused."""
        try:
            status = with_retries(path, lambda: os.stat(path))
        except SourceNotFoundError:
            return None
        return None if stat.S_ISDIR(status.st_mode) else _describe(path, status)

    def folder(self, path: str) -> Iterator[FileInfo]:
        """Yield the files below a folder in the order of their names."""
        if not _is_folder(path):
            return
        root = path.rstrip("/") + "/"
        for file in _walk(root, lambda folder, _: not is_hidden(folder.rsplit("/", 1)[-1])):
            if not is_hidden(file[len(root) :]):
                yield _file_info(file)

    def glob(self, pattern: str) -> Iterator[FileInfo]:
        """Yield the files that match, in the order of their names; folders that cannot match are not read.

        A file or folder that is called like the pattern itself is what is meant.
        """
        literal = _mode(pattern)
        if literal:
            yield from self.folder(pattern) if stat.S_ISDIR(literal) else (_stat(pattern),)
            return
        fixed = pattern[: _first_magic(pattern)]
        root = fixed[: fixed.rfind("/") + 1]
        segments = pattern[len(root) :].split("/")
        matches = compile_glob(pattern).match
        if not _is_folder(root):
            return
        for file in _walk(root, _descend_along(segments)):
            if matches(file):
                yield _file_info(file)

    def subfolders(self, path: str) -> list[str]:
        """Return the sorted names of the folders directly below a folder.

        Raises SourceNotFoundError for a link that leads nowhere: it may have led to a folder.
        """

        def names() -> tuple[list[str], list[str]]:
            with os.scandir(path) as entries:
                shown = [entry for entry in entries if not is_hidden(entry.name)]
            return sorted(entry.name for entry in shown if _is_dir(entry)), [
                entry.name for entry in shown if entry.is_symlink()
            ]

        folders, links = with_retries(path, names)
        for name in links:
            _ = name in folders or _stat(f"{path}/{name}")
        return folders

    def read(self, path: str, start: int, stop: int | None, version: str) -> FileRange:
        """Return bytes `start` to `stop`; fewer where the file ends before."""
        piece = with_retries(path, lambda: _ReadResult.read(path, start, stop))
        if (version and version != version_of(piece.before)) or _changed(piece.before, piece.after):
            raise replaced(path, start)
        if piece.more:
            raise _of_no_size(path)
        if start + len(piece.data) < piece.stop:
            raise shorter(path, start + len(piece.data), piece.before.st_size)
        return FileRange(piece.data, piece.after.st_size, version)

    def write(self, path: str, data: bytes) -> None:
        """Write a file whole, beside its place first."""
        with_retries(path, lambda: _write(path, data), "write")

    def delete(self, path: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(SourceNotFoundError):
            with_retries(path, lambda: os.unlink(path), "remove")


def _write(path: str, data: bytes) -> None:
    folder = os.path.dirname(path)
    # A name by chance, because two may write the same file at once.
    beside = os.path.join(folder, f".{secrets.token_hex(8)}.part")  # no listing shows it
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


@dataclass(frozen=True)
class _ReadResult:
    """Some bytes of a file, and what the file was like before and after they were read."""

    data: bytes
    stop: int
    """Where they should end."""
    before: os.stat_result
    after: os.stat_result
    more: bool
    """Whether there are bytes although the file says that there are none."""

    @classmethod
    def read(cls, path: str, start: int, stop: int | None) -> _ReadResult:
        """Read bytes `start` to `stop`, or to the end."""
        fd = open_file(path)
        try:
            before = os.fstat(fd)
            end = before.st_size if stop is None else min(stop, before.st_size)
            data = _pread(fd, start, end)
            after = os.fstat(fd)
            return cls(data, end, before, after, not before.st_size and bool(os.pread(fd, 1, 0)))
        finally:
            os.close(fd)


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


def _is_among(folder: _Open, above: list[_Open]) -> bool:
    return any(folder.identity == one.identity for one in above)


def _check_visits(path: str, visits: int) -> None:
    if visits > MOST_VISITS:
        raise SourceError(
            f"Links lead to the folder {path} in more than {MOST_VISITS} ways. Name what to read, or remove links.",
            path=path,
        )


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
        # An iterator: after the folders below, the names that are left are gone on with.
        for name, linked in here.names:
            path = here.path + name
            if not name.endswith("/"):
                yield path
            elif descend(path[:-1], len(above) - 1):
                folder = _open(path)
                if linked and _is_among(folder, above):
                    continue
                if linked and linked_at is None:
                    linked_at = len(above)
                if linked_at is not None:
                    visits[folder.identity] += 1
                    _check_visits(path, visits[folder.identity])
                above.append(folder)
                break
        else:
            above.pop()
            if linked_at is not None and len(above) <= linked_at:
                linked_at = None


def _open(folder: str) -> _Open:
    def names() -> tuple[os.stat_result, list[tuple[str, bool]]]:
        status = os.stat(folder)
        with os.scandir(folder) as entries:
            return status, sorted(
                # With its slash, as keys have it: `a-b` stands before `a/c`, and that before `a0`, on all
                # storages.
                (entry.name + "/" if _is_dir(entry) else entry.name, entry.is_symlink())
                for entry in entries
            )

    status, found = with_retries(folder, names)
    return _Open(folder, iter(found), (status.st_dev, status.st_ino))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    """Tell whether a name is a folder's; links that cannot be followed are no folders."""
    try:
        return entry.is_dir()
    except OSError as error:
        if passes(error) or not entry.is_symlink():
            raise
        return False


def _mode(path: str) -> int:
    """Return what a path is, in the bits of its mode; 0 where it cannot be looked at: it is not there, or too long."""
    try:
        return stat.S_IFMT(with_retries(path, lambda: os.stat(path)).st_mode)
    except StorageOutageError:
        raise
    except SourceError:
        return 0


def file_on_disk(path: str) -> str:
    """Return what changes whenever a local file is written to or replaced, whatever its time and size say afterwards.

    It belongs to this machine's file: a copy has another one, and so has the same file behind some mounts (FUSE) that
    were made anew.  Empty where there is no such file.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_ino}.{status.st_ctime_ns}" if stat.S_ISREG(status.st_mode) else ""


def _is_folder(path: str) -> bool:
    return stat.S_ISDIR(_mode(path))


def _file_info(path: str) -> FileInfo:
    """Describe a file that a folder names; a link that cannot be followed is a file that nobody can read.

    Reading it tells so.  It costs itself and not the listing.
    """
    try:
        return _stat(path)
    except StorageOutageError:
        raise
    except SourceError:
        if os.path.islink(path) and not os.path.exists(path):
            return FileInfo(path=path, size=0, version="")
        raise


def _stat(path: str) -> FileInfo:
    return _describe(path, with_retries(path, lambda: os.stat(path)))


def _describe(path: str, status: os.stat_result) -> FileInfo:
    if not stat.S_ISREG(status.st_mode):
        raise no_file(path, status.st_mode)
    if not status.st_size and with_retries(path, lambda: _has_content(path)):
        raise _of_no_size(path)
    return FileInfo(path=path, size=status.st_size, version=version_of(status))


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
