"""Reading the files of splits, compressed ones too, with errors that say where they break.

Compressed files are told by the ends of their names.  A file of several compressed streams, one behind the other, is
read to its end; what lies behind the last one and is no such stream is an error, as is a file of no bytes.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from pecan_ray.errors import CorruptSourceError, PecanError, SourceError, SourceReplacedError
from pecan_ray.plan.splits import Split
from pecan_ray.storage import open_random, open_stream, read_range

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_BITS = 16 + zlib.MAX_WBITS
"""How zlib is told that a stream has gzip's header and checksum."""
# Bytes that are read at a time, compressed.
INPUT_BYTES = 1 << 16
OUTPUT_BYTES = 1 << 20
"""Bytes that are buffered behind a decompressor: data of lines is packed to a tenth or so."""
XZ_MEMORY = 512 << 20
"""Files that need more than this to be decompressed are refused: `xz -9` asks for an eighth of it."""
LZMA_HEADER = 13
"""Bytes in front of the data of a .lzma file, which has no other mark."""

ENDINGS = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".tgz": "gzip",
    ".bz2": "bzip2",
    ".tbz": "bzip2",
    ".tbz2": "bzip2",
    ".xz": "xz",
    ".txz": "xz",
    ".lzma": "lzma",
    ".zlib": "zlib",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".tzst": "zstd",
}
_BEGINNINGS = (
    (b"\x1f\x8b", "gzip", ".gz"),
    (b"BZh", "bzip2", ".bz2"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
    (b"\x28\xb5\x2f\xfd", "zstd", ".zst"),
    (b"\x78\x01", "zlib", ".zlib"),
    (b"\x78\x9c", "zlib", ".zlib"),
    (b"\x78\xda", "zlib", ".zlib"),
    (b"PK\x03\x04", "zip", ""),
    (b"7z\xbc\xaf\x27\x1c", "7z", ""),
    (b"Rar!", "rar", ""),
    (b"\x04\x22\x4d\x18", "lz4", ""),
)
CHECKED_BY = {"zlib": "pigz"}
"""Programs that check files of a kind, where they are called otherwise."""
_ZERO_PADDED = ("gzip", "xz")
"""Kinds behind whose streams bytes of zero may follow, as tapes and `tar` leave them."""


class _Decoder(Protocol):
    """What bz2's and lzma's decompressors have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _GzipStream:
    """zlib's decompressor of one stream, in the form of the others."""

    def __init__(self, window_bits: int) -> None:
        self._stream = zlib.decompressobj(window_bits)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        held = self._stream.unconsumed_tail
        return self._stream.decompress(held + data if held else data, max_length)


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gzip": lambda: _GzipStream(GZIP_BITS),
    "zlib": lambda: _GzipStream(zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    # Told apart by the name: nothing but zeros would be an empty file of the old kind.
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY),
    "lzma": lambda: lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=XZ_MEMORY),
}


class _Streams:
    """The decompressed bytes of one or several streams of a kind, `read` piece by piece."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        self._file, self._kind = file, kind
        self._decoder = _DECODERS[kind]()
        self._held = b""
        """Read, and not given to a decoder yet."""
        self._has_started = False
        """The decoder has been given something."""
        self.taken = 0
        """Compressed bytes that went into `read`."""

    def read(self, count: int) -> bytes:
        """Return 1 to `count` bytes; none at the end of the last stream."""
        while True:
            if self._decoder.eof and not self._next():
                return b""
            wanted = self._decoder.needs_input
            data = self._input() if wanted else b""
            ended = wanted and not data
            out = self._decoder.decompress(data, count)
            if out:
                return out
            if ended and not self._decoder.eof:
                raise EOFError(
                    "the file ends before its compressed data does" if self._has_started else "it has no bytes"
                )

    def _input(self) -> bytes:
        """Return what the decoder is given next; nothing at the end of the file."""
        data = self._more()
        if self._kind == "lzma" and not self._has_started and data.startswith(bytes(LZMA_HEADER)):
            raise lzma.LZMAError("its header is nothing but zeros")
        self._has_started = self._has_started or bool(data)
        return data

    def _more(self) -> bytes:
        data, self._held = self._held or self._file.read(INPUT_BYTES), b""
        self.taken += len(data)
        return data

    def _next(self) -> bool:
        """Begin with the stream behind the one that has ended; False if there is none."""
        left, padding = self._decoder.unused_data, 0
        # What lies behind the stream was read with it, and counts when it is given to a decoder.
        self.taken -= len(left)
        while True:
            if self._kind in _ZERO_PADDED:
                stripped = left.lstrip(b"\0")
                padding += len(left) - len(stripped)
                left = stripped
            if left:
                break
            left = self._file.read(INPUT_BYTES)
            if not left:
                break
        self.taken += padding
        if self._kind == "xz" and padding % 4:
            raise lzma.LZMAError(f"{padding} bytes of zero follow its data, which is no multiple of four")
        if not left:
            return False
        self._decoder, self._held = _DECODERS[self._kind](), left
        return True


class _Zstandard:
    """The decompressed bytes of a zstd file, which pyarrow reads."""

    def __init__(self, file: BinaryIO) -> None:
        import pyarrow as pa  # which takes long, and few files are of this kind

        self._file, self._any, self._broken = file, False, pa.ArrowException
        self._stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    @property
    def taken(self) -> int:
        return self._file.tell()

    def read(self, count: int) -> bytes:
        try:
            out: bytes = self._stream.read(count)
        except self._broken as error:
            raise OSError(str(error)) from error
        # pyarrow takes a file of no bytes for an empty stream, which the other kinds refuse.
        if not out and not self._any and self._file.tell() == 0:
            raise EOFError("it has no bytes")
        self._any = True
        return out


class _Checked(io.RawIOBase):
    """Decompresses, and turns what libraries raise into errors that name the file."""

    def __init__(self, path: str, kind: str, version: str) -> None:
        super().__init__()
        self._path, self._kind = path, kind
        self.offset = 0
        """Decompressed bytes that were read."""
        self._file = open_stream(path, version=version)
        self._plain = _Zstandard(self._file) if kind == "zstd" else _Streams(self._file, kind)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        try:
            data = self._plain.read(len(target))
        # What the storage says of itself is no damage of the file.
        except PecanError:
            raise
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            raise CorruptSourceError(
                f"{self._path} is broken or cut off after {self.offset} decompressed bytes: {error}. "
                f"Check it with `{CHECKED_BY.get(self._kind, self._kind)} -t` and copy it again.",
                path=self._path,
                offset=self.offset,
            ) from error
        target[: len(data)] = data
        self.offset += len(data)
        return len(data)

    def taken(self) -> int:
        """Return how many bytes of the file have been read."""
        return self._plain.taken

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def compression_of(path: str) -> str | None:
    """Return how a file is compressed, by the end of its name in any case; None: it is not."""
    name = path.rpartition("/")[2].lower()
    return ENDINGS.get("." + name.rpartition(".")[2])


@contextmanager
def opened(split: Split, begin: int | None = None, *, listed: bool = True) -> Iterator[BinaryIO]:
    """Open a split's file, decompressed, at the split's first byte or at `begin`.

    `listed`: the file is known to reach to the split's end.

    What fails inside names the file.  A CorruptSourceError from inside is told how much of the split had been read,
    as a share of its bytes (`share_read`), and what the file is if it looks compressed and is not called so.
    """
    kind = compression_of(split.path)
    checked = None if kind is None else _Checked(split.path, kind, split.version)
    if checked is None:
        at = split.start if begin is None else begin
        stream = open_stream(split.path, at, split.stop, version=split.version, at_least=(listed and split.stop) or 0)
    else:
        stream = cast(BinaryIO, io.BufferedReader(checked, OUTPUT_BYTES))
    with stream:
        try:
            yield stream
        except SourceReplacedError:
            raise  # what is there now tells nothing of what was listed
        except CorruptSourceError as error:
            if checked is None:
                check_not_compressed(split.path, error)
            error.fields["share_read"] = _share_read(split, error.fields.get("offset"), checked)
            raise
        except PecanError:
            raise
        except OSError as error:
            raise SourceError(f"Cannot read {split.path}: {error}.", path=split.path) from error


def reader_up_to(stream: BinaryIO) -> Callable[[int], bytes]:
    """Return what reads so many bytes of what `opened` has opened, and fewer of a compressed file before its damage."""
    # `read` asks until it has all bytes, and an error on the way takes those along that it has.
    if isinstance(stream, io.BufferedReader) and isinstance(stream.raw, _Checked):
        return stream.read1
    return stream.read


def unpacked_ratio(stream: BinaryIO) -> float:
    """Return how many bytes each byte of a compressed file that `opened` has opened becomes, by what was read of it."""
    checked = cast(io.BufferedReader, stream).raw
    assert isinstance(checked, _Checked), "a file that is not compressed"
    return checked.offset / max(1, checked.taken())


def _share_read(split: Split, offset: int | None, checked: _Checked | None) -> float | None:
    """Return which share of a split lies before an offset (of a compressed file: about); None: that is not known."""
    if offset is None:
        return None
    if checked is None:
        return None if not split.stop else min(1.0, (offset - split.start) / max(split.stop - split.start, 1))
    with open_random(split.path) as file:
        size = file.seek(0, io.SEEK_END)
    in_all = checked.offset * size / max(checked.taken(), 1)
    return min(1.0, offset / in_all) if in_all else 0.0


def check_not_compressed(path: str, found: CorruptSourceError | None = None) -> None:
    """Raise CorruptSourceError for a file that begins as compressed ones do, and is not called so."""
    begin = read_range(path, 0, 8)
    for magic, kind, ending in _BEGINNINGS:
        if begin.startswith(magic):
            cure = f"Let its name end in {ending}" if ending else "Unpack it, or compress it as .gz, .bz2, .xz or .zst"
            fields = {"path": path} if found is None else found.fields
            raise CorruptSourceError(
                f"{path} begins as {kind} files do, and is not named as one. {cure}.", **fields
            ) from found
