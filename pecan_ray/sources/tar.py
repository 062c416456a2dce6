"""Walking over the members of a tar archive, front to back, and noticing where one is cut off or damaged.

The standard library's reader takes a broken header in the middle of an archive for its end; data would be
lost without a word.  Here what follows the closing zeros is read as a further archive (as by ``tar -i``), and
what is neither zeros nor a header is an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from pecan_ray.errors import CorruptSourceError
from pecan_ray.sources.files import MAX_RECORD_BYTES, skip_bytes

BLOCK = tarfile.BLOCKSIZE
EXTENSION_BYTES = 1 << 20
"""Bound on the name or the record list of one member: paths are shorter."""

_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENSIONS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE, *_PAX)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_KEYWORDS = {
    *(b"atime", b"charset", b"comment", b"ctime", b"gid", b"gname", b"hdrcharset", b"linkpath", b"mtime", b"path"),
    *(b"size", b"uid", b"uname"),
}
"""What POSIX defines of extended headers; those of vendors have a dot."""
_WITHOUT_DATA = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.DIRTYPE,
    tarfile.FIFOTYPE,
    b"V",  # the name of a volume
)
_IGNORED = (tarfile.DIRTYPE, b"D", b"V")
"""Folders, lists of what was in folders, and names of volumes: they hold no data of a sample."""
_NUMBERS = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148))
"""Where a header holds mode, owner, group, size and time, as digits or left empty."""
_KINDS = {
    tarfile.LNKTYPE: "a link",
    tarfile.SYMTYPE: "a link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "stored as a sparse file",
}


@dataclass
class TarMember:
    """One file of an archive; `read` may be called once, before the next member is asked for."""

    path: str
    """Of the archive."""
    name: str
    offset: int
    """First byte of the data."""
    size: int
    stream: BinaryIO
    begin: int = 0
    """First byte of its header, or of the extended one before it."""
    irregular: str = ""
    """What it is, where it is no regular file whose data could be read."""
    consumed: int = 0

    def read(self) -> bytes:
        """Return the data, or raise CorruptSourceError if the archive ends before."""
        data = self.stream.read(self.size)
        self.consumed = len(data)
        if len(data) < self.size:
            _broken(self.path, self.offset + len(data), f"it ends inside {self.name!r}")
        return data

    def skip_rest(self, padded: int) -> None:
        """Go to the next header; `padded`: bytes that the data takes in the archive."""
        left = padded - self.consumed
        if skip_bytes(self.stream, left) < left:
            _broken(self.path, self.offset, f"it ends inside {self.name!r}")


def members(
    path: str, stream: BinaryIO, size: int | None, max_record_bytes: int = MAX_RECORD_BYTES, offset: int = 0
) -> Iterator[TarMember]:
    """Yield what an archive of `size` bytes (None: not known) holds, but folders; raise CorruptSourceError.

    `offset`: of the stream's first byte, where a member begins.

    Where the size is not known no member may be larger than `max_record_bytes`: it would have to be decompressed.
    """
    begin, overrides = offset, dict[str, str]()
    announced = False  # An extended header has come, and its member not yet.
    header = stream.read(BLOCK)
    while True:
        info = _header(path, offset, header)
        if info is None:
            if announced:
                _broken(path, offset, "the member that an extended header announces is missing")
            header, offset = _behind_zeros(path, stream, offset, max_record_bytes)
            begin = offset
            if not header:
                return
            continue
        name = overrides.get("path", info.name)
        if not name:
            _broken(path, offset, "a member has no name")
        member = TarMember(path, name, offset + BLOCK, _length(path, offset, info, overrides), stream, begin)
        padded = -(-member.size // BLOCK) * BLOCK
        # Found before the data is asked for: else a cut archive would give a short file.
        if size is not None and member.offset + padded > size:
            _broken(path, size, f"it ends inside {name!r}")
        if info.type in _EXTENSIONS:
            overrides, announced = overrides | _extended_header(info.type, member, offset, overrides), True
        else:
            if size is None:
                _check_bound(path, offset, repr(name), member.size, max_record_bytes)
            if info.type not in _IGNORED:
                member.irregular = _unsupported_kind(info.type, overrides)
                yield member
            # Blocks with a map of holes may follow, which its size does not count.
            if info.type == tarfile.GNUTYPE_SPARSE:
                _broken(path, offset, f"{name!r} is a sparse file: pack it with `tar` without --sparse")
            overrides, announced, begin = {}, False, member.offset + padded
        member.skip_rest(padded)
        offset = member.offset + padded
        header = stream.read(BLOCK)


def _header(path: str, offset: int, header: bytes) -> tarfile.TarInfo | None:
    """Return what a header tells; None: a block of zeros stands in its place, behind the last member."""
    try:
        # Names of files need not be UTF-8.
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        if len(header) < BLOCK or any(header):
            _broken(path, offset, _reason(header, error))
        return None
    for start, stop in _NUMBERS:
        if not header[start] and header[start:stop].strip(b"\0"):
            _broken(path, offset, f"a header has {header[start:stop]!r} for a number")
    return info


def _extended_header(kind: bytes, member: TarMember, offset: int, before: dict[str, str]) -> dict[str, str]:
    """Return what an extended header tells of the member behind it, beside what headers `before` it have told."""
    _check_bound(member.path, offset, "an extended header", member.size, EXTENSION_BYTES)
    found = _extension(kind, member)
    if found.keys() & before.keys():
        _broken(member.path, offset, "two extended headers follow each other, without the member of the first one")
    return found


def _length(path: str, offset: int, info: tarfile.TarInfo, overrides: dict[str, str]) -> int:
    """Return the bytes behind a header: links and folders have none, whatever their headers say."""
    if info.type in _WITHOUT_DATA:
        return 0
    length = info.size
    if info.type not in _EXTENSIONS and "size" in overrides:
        digits = overrides["size"]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            _broken(path, offset, f"the extended header gives {digits!r} for a size")
        length = int(digits)
    if length < 0:
        _broken(path, offset, f"the size of {info.name!r} is negative ({length})")
    return length


def _check_bound(path: str, offset: int, what: str, length: int, bound: int) -> None:
    if length > bound:
        hint = "" if bound == EXTENSION_BYTES else "; max_record_bytes=... raises the bound"
        _broken(path, offset, f"{what} is said to have {length} bytes, more than {bound}{hint}")


def _unsupported_kind(kind: bytes, overrides: dict[str, str]) -> str:
    """Return what a member is, empty for a regular file."""
    if "sparse" in overrides:
        kind = tarfile.GNUTYPE_SPARSE
    return "" if kind in _FILES else _KINDS.get(kind, f"of the unknown type {kind!r}")


def _behind_zeros(path: str, stream: BinaryIO, first: int, most: int) -> tuple[bytes, int]:
    """Return the block behind the zeros of which the first block was read, and where it begins; none at the end.

    A lone block of zeros with something behind it is what is left of a damaged header.
    """
    offset = first + BLOCK
    while True:
        block = stream.read(BLOCK)
        if block.strip(b"\0"):
            break
        if len(block) < BLOCK:
            return b"", offset
        offset += BLOCK
        if offset - first > most:
            _broken(path, first, f"there are more than {most} bytes of zeros; max_record_bytes=... raises the bound")
    # An archive ends with two blocks of zeros, so one alone is no end
    # (docs/decisions/sources.md#28-what-counts-as-a-loss).
    if offset == first + BLOCK:
        _broken(path, first, "a lone block of zeros lies where a header should be")
    return block, offset


def _extension(kind: bytes, member: TarMember) -> dict[str, str]:
    """Return what a header for the next member overrides: its path, its size, and whether it is sparse."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        message, member.size = member.size, -(-member.size // BLOCK) * BLOCK
        name, _, _ = member.read().partition(b"\0")
        if len(name) > message:
            _broken(member.path, member.offset, "a long name goes on behind its end")
        return {"path": name.decode("utf-8", "surrogateescape")}
    data = member.read()
    if kind == tarfile.GNUTYPE_LONGLINK:
        return {"link": "yes"}
    found = {}
    for keyword, value in _records(member, data):
        if keyword.startswith(b"GNU.sparse."):
            found["sparse"] = "yes"
        # Nobody defines it, so it may say anything of the data: refused rather than guessed.
        elif keyword not in _KEYWORDS and b"." not in keyword:
            _broken(member.path, member.offset, f"the extended header has an unknown keyword {keyword!r}")
        elif keyword in (b"path", b"size"):
            # It would be the path, or the size, of each member that follows.
            if kind == tarfile.XGLTYPE:
                _broken(member.path, member.offset, f"one header for all members gives a {keyword.decode()}")
            found[keyword.decode()] = value.decode("utf-8", "surrogateescape")
    return {name: value for name, value in found.items() if value}


def _records(member: TarMember, data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keywords and values of an extended header: ``"<length> <keyword>=<value>\\n"``, one behind the other."""
    at = 0
    size, data = len(data), data.rstrip(b"\0")
    if size and not data:
        _broken(member.path, member.offset, "the extended header holds nothing but zeros")
    while at < len(data):
        digits, _, _ = data[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[at : at + length]
        keyword, equals, value = record[len(digits) + 1 :].partition(b"=")
        if len(record) < length or not record.endswith(b"\n") or not equals:
            _broken(member.path, member.offset + at, "a record of the extended header is not what it says")
        yield keyword, value[:-1]
        at += length


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
