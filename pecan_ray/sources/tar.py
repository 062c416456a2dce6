"""Walking over the members of a tar archive, front to back, and noticing where one is cut off.

The standard library's reader takes a broken header in the middle of an archive for its end; data would be
lost without a word.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from pecan_ray.errors import CorruptSourceError
from pecan_ray.sources.files import skip_bytes

BLOCK = tarfile.BLOCKSIZE


@dataclass
class TarMember:
    """One regular file of an archive; `read` may be called once, before the next member is asked for."""

    path: str
    """Of the archive."""
    name: str
    offset: int
    """First byte of the data."""
    size: int
    stream: BinaryIO
    consumed: int = 0

    def read(self) -> bytes:
        """Return the data, or raise CorruptSourceError if the archive ends before."""
        data = self.stream.read(self.size)
        self.consumed = len(data)
        if len(data) < self.size:
            _broken(self.path, self.offset + len(data), f"it ends inside {self.name!r}")
        return data


def members(path: str, stream: BinaryIO, size: int | None) -> Iterator[TarMember]:
    """Yield the regular files of an archive of `size` bytes (None: not known); raise CorruptSourceError."""
    offset = 0
    overrides: dict[str, str] = {}
    while True:
        header = stream.read(BLOCK)
        try:
            info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if len(header) == BLOCK and not any(header):
                return
            _broken(path, offset, _reason(header, error))
        data_at = offset + BLOCK
        length = int(overrides.get("size", info.size)) if info.isreg() else _extension_size(info)
        padded = -(-length // BLOCK) * BLOCK
        if size is not None and data_at + padded > size:
            _broken(path, size, f"it ends inside {overrides.get('path', info.name)!r}")
        member = TarMember(path, overrides.get("path", info.name), data_at, length, stream)
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
            overrides = {**overrides, **_extension(info.type, member)}
        elif info.isreg():
            overrides = {}
            yield member
        elif info.type != tarfile.XGLTYPE:
            overrides = {}
        left = padded - member.consumed
        if skip_bytes(stream, left) < left:
            _broken(path, data_at, f"it ends inside {member.name!r}")
        offset = data_at + padded


def _extension_size(info: tarfile.TarInfo) -> int:
    """Return the bytes behind a header that is no regular file's: links and folders have none."""
    extensions = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
    return info.size if info.type in extensions else 0


def _extension(kind: bytes, member: TarMember) -> dict[str, str]:
    """Return what a header for the next member overrides: its path, and its size if that exceeds 8 GiB."""
    data = member.read()
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": data.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    found = {}
    while data:
        digits, _, rest = data.partition(b" ")
        record, data = rest[: int(digits) - len(digits) - 2], data[int(digits) :]
        keyword, _, value = record.partition(b"=")
        if keyword in (b"path", b"size"):
            found[keyword.decode()] = value.decode("utf-8", "surrogateescape")
    return found


def _reason(header: bytes, error: tarfile.HeaderError) -> str:
    if not header:
        return "it ends without the two blocks of zeros that close an archive"
    if len(header) < BLOCK:
        return "it ends inside a header"
    return f"what should be a header is none ({error})"


def _broken(path: str, offset: int, problem: str) -> NoReturn:
    raise CorruptSourceError(
        f"Archive {path} is broken at byte {offset}: {problem}. Check it with `tar -tvf`, and copy it again.",
        path=path,
        offset=offset,
    )
