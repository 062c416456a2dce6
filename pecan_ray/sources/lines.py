"""Lines of text files, cut into byte ranges."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, NamedTuple, NoReturn

from pecan_ray.errors import CorruptSourceError
from pecan_ray.plan.splits import Split
from pecan_ray.sources.compressed import opened

BLOCK_BYTES = 1 << 18
"""So much is read at a time."""
TAIL_BYTES = 1 << 16
"""So much is read at a time behind the end of a range, where its last line ends."""
MOST_EMPTY = 1 << 20
"""So many lines in a row may be empty where these are not elements."""

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


def opened_for_lines(split: Split, *, listed: bool = True) -> AbstractContextManager[BinaryIO]:
    """Open a split's file for `lines_of`: at the byte before its range, which tells whether a line begins there."""
    return opened(split, max(split.start - 1, 0), listed=listed)


def lines_of(stream: BinaryIO, split: Split, max_record_bytes: int, end: bytes = b"\r") -> Iterator[TextLine]:
    r"""Yield the lines that begin in a split's byte range (of a compressed file: all lines).

    Their final ``\n``, and `end` before it, are taken off.  Raises CorruptSourceError for one of more than
    `max_record_bytes`.
    """
    offset, stop = max(split.start - 1, 0), sys.maxsize if split.stop is None else split.stop
    # The line that the byte before the range belongs to is the business of the split before.
    number = -1 if split.start else 0
    for block in _blocks(stream, split, max_record_bytes):
        for data in block:
            number += 1
            if number:
                if offset >= stop:
                    return
                body = data.removesuffix(end)
                yield TextLine(number, offset, body.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else body)
            offset += len(data) + 1


def _blocks(stream: BinaryIO, split: Split, max_record_bytes: int) -> Iterator[list[bytes]]:
    r"""Yield, some at a time, what lies between the ``\n`` of a stream, and behind the last one if it is not empty."""
    at, stop = max(split.start - 1, 0), split.stop
    held: list[bytes] = []
    held_bytes = 0
    while True:
        # Behind the range no more is read than the end of its last line takes: a store would fetch it for nothing.
        count = BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - at) if at < stop else TAIL_BYTES
        block = stream.read(count)
        if not block:
            break
        at += len(block)
        lines = block.split(b"\n")
        held_bytes += len(lines[0])
        if held_bytes > max_record_bytes:
            _endless(split, at - len(block) + len(lines[0]) - held_bytes, max_record_bytes)
        held.append(lines[0])
        if len(lines) == 1:
            continue
        lines[0] = b"".join(held)
        held = [lines.pop()]
        held_bytes = len(held[0])
        if max_record_bytes < BLOCK_BYTES:
            yield from _bounded(lines, split, at - held_bytes, max_record_bytes)
        else:
            yield lines
    last = b"".join(held)
    if last and not (last == _BYTE_ORDER_MARK and at == len(last)):
        yield [last]


def _bounded(lines: list[bytes], split: Split, end: int, max_record_bytes: int) -> Iterator[list[bytes]]:
    """Yield lines that end before byte `end`, up to the first one that is too long."""
    offset = end - sum(map(len, lines)) - len(lines)
    for number, line in enumerate(lines):
        if len(line) > max_record_bytes:
            yield lines[:number]
            _endless(split, offset, max_record_bytes)
        offset += len(line) + 1
    yield lines


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


def bad_line(split: Split, line: TextLine, element: int, problem: str) -> NoReturn:
    """Raise the CorruptSourceError that shows the line and says what is wrong with it."""
    shown = line.data[:80].decode("utf-8", "replace") + ("..." if len(line.data) > 80 else "")
    raise CorruptSourceError(
        f"Element {element}, {line.where(split)}: {problem}. The line reads: {shown!r}.",
        path=split.path,
        offset=line.offset,
        element=element,
        line=line.number,
    )


def _endless(split: Split, offset: int, max_record_bytes: int) -> NoReturn:
    raise CorruptSourceError(
        f"The line at byte {offset} of {split.path} has more than max_record_bytes={max_record_bytes} bytes. Check "
        "that it is a file of lines, or raise the bound.",
        path=split.path,
        offset=offset,
    )


def shortened(text: str, most: int = 40) -> str:
    """Return a number for a message, the first digits of a long one."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} digits)"
