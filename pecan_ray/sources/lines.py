"""Lines of text files, cut into byte ranges."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from itertools import islice
from statistics import median
from typing import BinaryIO, NamedTuple

from pecan_ray.errors import CorruptSourceError, PlanError, SourceError
from pecan_ray.plan.splits import Split
from pecan_ray.sources.compressed import check_not_compressed, compression_of, opened, reader_up_to
from pecan_ray.sources.files import split_bytes_of
from pecan_ray.sources.packed_estimate import PackedEstimate
from pecan_ray.storage import FileInfo, is_remote, open_random

BLOCK_BYTES = 1 << 18
"""Bytes that are read at a time: they stay in a processor's cache while they are cut into lines."""
TAIL_BYTES = 1 << 16
"""Bytes that are read at a time behind the end of a range, where its last line ends: few lines are longer."""
# docs/decisions/sources.md#28-what-counts-as-a-loss
MOST_EMPTY = 1 << 20
"""Lines in a row that may be empty where these are not elements."""

SAMPLES, SAMPLE_BYTES = 9, 1 << 13
"""The number of samples of the first file, and the bytes of each.  Their median tells how long lines are, because a
file may begin with many that are empty."""

UTF_8 = "utf-8"
SHOWN_BYTES = 80
"""Bytes of a bad line that are shown in its error: a line of a terminal."""
# docs/decisions/sources.md#130-damage-costs-only-its-unit
ENDLESS_RATIO = 16
"""A line of more than so many times `max_record_bytes` has no end: it ends its split, because all of it is read."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextLine(NamedTuple):
    """One line, without its end."""

    number: int
    """Counted from 1 at the split's first line."""
    offset: int
    """First byte, in the file as decompressed."""
    data: bytes

    def where(self, split: Split) -> str:
        """Say in words where the line is."""
        behind = f" behind byte {split.start}" if split.start else ""
        return f"line {self.number}{behind} of {split.path} (byte {self.offset})"


class LongLine(NamedTuple):
    """A line of too many bytes, of which only the first are held."""

    preview: bytes
    nbytes: int
    """Bytes that have been read."""


class BadLines:
    """Decides what becomes of the lines of a split that cannot be read.

    Either the first one raises its error, or each error comes in its line's place.
    """

    def __init__(self, split: Split, max_record_bytes: int, *, past_errors: bool) -> None:
        self.split, self.max_record_bytes, self.past_errors = split, max_record_bytes, past_errors
        self.rejected: dict[int, str] = {}
        """By their numbers, what is wrong with lines that need not be looked into."""
        self._any = False

    def error(self, line: TextLine, element: int, problem: str) -> CorruptSourceError:
        """Return the error of a line for its place, or raise it."""
        error = line_error(self.split, line, element, problem)
        if not self.past_errors:
            raise error
        # What is no file of lines at all ends the split at its first error.
        if not self._any and compression_of(self.split.path) is None:
            check_not_compressed(self.split.path, error)
        self._any = True
        return error


def line_ranges(files: Iterable[FileInfo], split_bytes: int, *, whole: bool = False) -> Iterator[Split]:
    """Yield byte ranges of about equal size, none longer than `split_bytes`; compressed files are not cut.

    Those of files of this machine are shorter, and tell about how many lines they have.  `whole`: no file is cut.
    """
    index, line_bytes, packed = 0, 0.0, PackedEstimate(_mean_line_bytes)
    for file in files:
        if compression_of(file.path):
            yield packed.split(index, file)
            index += 1
            continue
        remote = is_remote(file.path)
        if not remote:
            line_bytes = line_bytes or _line_bytes(file)
        if whole:
            about = None if remote else max(1, round(file.size / max(1.0, line_bytes)))
            yield Split(index, file.path, version=file.version, about=about, whole=True)
            index += 1
            continue
        pieces = max(1, -(-file.size // split_bytes_of(file.path, split_bytes)))
        for piece in range(pieces):
            # In whole numbers, so that the end of one piece is the beginning of the next.
            start, stop = file.size * piece // pieces, file.size * (piece + 1) // pieces
            about = None if remote else max(1, round((stop - start) / max(1.0, line_bytes)))
            yield Split(index, file.path, start, stop, version=file.version, about=about)
            index += 1


def _line_bytes(file: FileInfo) -> float:
    """Return how many bytes a line of a file has, in the median of some places; 0: nothing is known."""
    # Whoever reads it tells why a file cannot be opened.
    with suppress(OSError, SourceError), open_random(file.path, version=file.version) as stream:
        means = []
        for place in range(SAMPLES):
            stream.seek(max(0, file.size - SAMPLE_BYTES) * place // (SAMPLES - 1))
            means.append(_mean_line_bytes(stream))
        return median(means)
    return 0.0


def _mean_line_bytes(stream: BinaryIO) -> float:
    """Return how many bytes a line has in what comes next of a stream."""
    sample = stream.read(SAMPLE_BYTES)
    return len(sample) / max(1, sample.count(b"\n"))


def opened_for_lines(split: Split, *, listed: bool = True) -> AbstractContextManager[BinaryIO]:
    """Open a split's file for `lines_of`: at the byte before its range, which tells whether a line begins there."""
    return opened(split, max(split.start - 1, 0), listed=listed)


def lines_of(stream: BinaryIO, bad: BadLines, end: bytes = b"\r") -> Iterator[TextLine]:
    r"""Yield the lines that begin in a split's byte range (of a compressed file: all lines).

    Their final ``\n``, and `end` before it, are taken off.  One of more than `max_record_bytes` raises
    CorruptSourceError, or is noted in `bad` and yielded with its first bytes.
    """
    split = bad.split
    offset, stop = max(split.start - 1, 0), sys.maxsize if split.stop is None else split.stop
    # The line that the byte before the range belongs to is the business of the split before.
    number = -1 if split.start else 0
    made = tuple.__new__  # a fifth of the time of a line goes where TextLine(...) calls it in Python
    for block in _blocks(stream, bad):
        if isinstance(block, LongLine):
            number += 1
            if number:
                if offset >= stop:
                    return
                if not bad.past_errors:
                    raise _endless(split, offset, bad.max_record_bytes)
                bad.rejected[number] = f"it {_too_long(bad.max_record_bytes)}"
                yield TextLine(number, offset, block.preview + b"...")  # never empty: it is an element
            offset += block.nbytes + 1
            continue
        for data in block:
            number += 1
            if number:
                if offset >= stop:
                    return
                body = data.removesuffix(end)
                if offset == 0:
                    body = body.removeprefix(_BYTE_ORDER_MARK)
                yield made(TextLine, (number, offset, body))
            offset += len(data) + 1


def _blocks(stream: BinaryIO, bad: BadLines) -> Iterator[list[bytes] | LongLine]:
    r"""Yield, some at a time, what lies between the ``\n`` of a stream, and behind the last one if it is not empty."""
    split, most = bad.split, bad.max_record_bytes
    at, stop = max(split.start - 1, 0), sys.maxsize if split.stop is None else split.stop
    open_line, read = _OpenLine(most, belongs_to_split=split.start == 0), reader_up_to(stream)
    while True:
        # Behind the range no more is read than the end of its last line takes: a store would fetch it for nothing.
        block = read(min(BLOCK_BYTES, stop - at) if at < stop else TAIL_BYTES)
        if not block:
            break
        at += len(block)
        lines = block.split(b"\n")
        open_line.add(lines[0])
        if open_line.is_too_long and (not bad.past_errors or open_line.nbytes > ENDLESS_RATIO * most):
            raise _endless(split, at - len(block) + len(lines[0]) - open_line.nbytes, most)
        if len(lines) == 1:
            if not open_line.in_split and at >= stop:
                return  # no line begins in the range
            continue
        tail = lines.pop()
        yield from _with_whole_first(lines, open_line, most)
        if at - len(tail) >= stop:
            return
        open_line = _OpenLine(most)
        open_line.add(tail)
    yield from _last_line(open_line, at, most)


def _with_whole_first(lines: list[bytes], first: _OpenLine, most: int) -> Iterator[list[bytes] | LongLine]:
    """Yield lines of which the first one began in an earlier block."""
    if first.nbytes > most:
        yield first.as_long()
        del lines[0]
    else:
        lines[0] = first.whole()
    # Lines that lie within one block cannot break a larger bound.
    if most < BLOCK_BYTES:
        yield from _bounded(lines, most)
    else:
        yield lines


def _last_line(open_line: _OpenLine, at: int, most: int) -> Iterator[list[bytes] | LongLine]:
    """Yield what lies behind the last line's end of a stream that ends at `at`, if it is not empty."""
    if open_line.nbytes > most:
        yield open_line.as_long()
    # A file of nothing but a byte order mark has no lines.
    elif (last := open_line.whole()) and not (last == _BYTE_ORDER_MARK and at == len(last)):
        yield [last]


class _OpenLine:
    """A line of which the end has not been read yet."""

    def __init__(self, most: int, *, belongs_to_split: bool = True) -> None:
        self._most, self.in_split = most, belongs_to_split
        self._pending_chunks: list[bytes] = []
        self.nbytes = 0

    def add(self, piece: bytes) -> None:
        """Add what was read next; of a line that is too long only the beginning is held."""
        self.nbytes += len(piece)
        if self.nbytes <= self._most:
            self._pending_chunks.append(piece)
        else:
            self._pending_chunks = [
                b"".join(held[:SHOWN_BYTES] for held in (*self._pending_chunks, piece))[:SHOWN_BYTES]
            ]

    @property
    def is_too_long(self) -> bool:
        """Return whether it has more bytes than it may, and is no line of the split before."""
        return self.in_split and self.nbytes > self._most

    def whole(self) -> bytes:
        """Return its bytes."""
        return b"".join(self._pending_chunks)

    def as_long(self) -> LongLine:
        """Return its beginning."""
        return LongLine(self.whole()[:SHOWN_BYTES], self.nbytes)


def _bounded(lines: list[bytes], most: int) -> Iterator[list[bytes] | LongLine]:
    """Yield lines, those of more than `most` bytes by their beginnings."""
    begin = 0
    for number, line in enumerate(lines):
        if len(line) > most:
            yield lines[begin:number]
            yield LongLine(line[:SHOWN_BYTES], len(line))
            begin = number + 1
    yield lines[begin:]


def filled(lines: Iterable[TextLine], split: Split, is_empty: Callable[[bytes], bool]) -> Iterator[TextLine]:
    """Yield the lines that are not empty; raise CorruptSourceError where nothing but empty ones come."""
    empty = 0
    for line in lines:
        if line.data and not is_empty(line.data):
            empty = 0
            yield line
        else:
            empty += 1
            if empty > MOST_EMPTY:
                raise CorruptSourceError(
                    f"{line.where(split)} is the last of {empty} empty lines in a row. Check the file.",
                    path=split.path,
                    offset=line.offset,
                    line=line.number,
                )


def in_chunks(lines: Iterator[TextLine], most: int) -> Iterator[list[TextLine]]:
    """Yield `most` lines at a time, and before an error what was read until there."""
    while True:
        chunk: list[TextLine] = []
        try:
            chunk.extend(islice(lines, most))
        except SourceError:
            if chunk:
                yield chunk
            raise
        if not chunk:
            return
        yield chunk


def line_error(split: Split, line: TextLine, element: int, problem: str) -> CorruptSourceError:
    """Return the error that shows the line and says what is wrong with it."""
    beginning = line.data[:SHOWN_BYTES].decode("utf-8", "replace")
    shown = beginning + ("..." if len(line.data) > SHOWN_BYTES else "")
    return CorruptSourceError(
        f"Element {element}, {line.where(split)}: {problem}. The line reads: {shown!r}.",
        path=split.path,
        offset=line.offset,
        element=element,
        line=line.number,
    )


def _endless(split: Split, offset: int, max_record_bytes: int) -> CorruptSourceError:
    return CorruptSourceError(
        f"The line at byte {offset} of {split.path} {_too_long(max_record_bytes)}.", path=split.path, offset=offset
    )


def _too_long(max_record_bytes: int) -> str:
    return (
        f"has more than max_record_bytes={max_record_bytes} bytes. Check that it is a file of lines, or raise the bound"
    )


def line_encoding(name: str) -> str:
    """Return the name of an encoding as Python has it; refuse one whose line ends and commas are not those of ASCII."""
    ascii_bytes = bytes(range(128))
    try:
        encoding = codecs.lookup(name).name
        fits = ascii_bytes.decode(encoding) == ascii_bytes.decode("ascii")
    except (LookupError, UnicodeError, TypeError, ValueError):
        encoding, fits = "", False
    if not fits:
        raise PlanError(
            f"encoding={name!r} is none that lines can be read in: Python must know it, and ASCII characters must be "
            "the bytes of ASCII, as in latin-1, cp1252, cp932 or gb18030. Convert the files: "
            "iconv -f OLD -t UTF-8."
        )
    # The mark at a file's beginning is taken off in any case.
    return UTF_8 if encoding == "utf-8-sig" else encoding


def cut_text(text: str, most: int = 40) -> str:
    """Return a number for a message, the first digits of a long one."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} digits)"
