"""Files of lines: text, JSON and the lines that CSV is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Literal, NamedTuple, NoReturn

from pecan_ray.errors import CorruptSourceError
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.arrow import array_or_list, objects
from pecan_ray.sources.compressed import open_gzip
from pecan_ray.sources.files import (
    SPLIT_BYTES,
    Paths,
    byte_ranges,
    check_positive,
    identity_of,
    is_gzip,
    patterns_of,
)
from pecan_ray.storage import list_files, open_stream

CHUNK_LINES = 512

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


def lines_of(split: Split) -> Iterator[TextLine]:
    """Yield the lines that begin in a split's byte range (of a compressed file: all lines)."""
    begin = max(split.start - 1, 0)
    stop = split.stop
    version = split.version
    opened = (
        open_gzip(split.path, version) if is_gzip(split.path) else open_stream(split.path, begin, stop, version=version)
    )
    with opened as stream:
        # The line that the byte before the range belongs to is the business of the split before.
        offset = begin + (len(stream.readline()) if split.start else 0)
        for number, data in enumerate(stream, start=1):
            if stop is not None and offset >= stop:
                return
            body = data.removesuffix(b"\n").removesuffix(b"\r")
            yield TextLine(number, offset, body.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else body)
            offset += len(data)


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


@dataclass(frozen=True)
class TextLines:
    """The lines of text files (UTF-8, maybe ``.gz``), empty ones too, without line ends: column ``text``.

    Uncompressed files are cut into byte ranges of about `split_bytes`, aligned to line ends; elements are
    counted from 0 within a split.  Raises CorruptSourceError for a line that is no UTF-8.
    """

    paths: Paths = field(hash=False)
    split_bytes: int = field(default=SPLIT_BYTES, kw_only=True)
    patterns: tuple[str, ...] = field(init=False, repr=False)

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_positive(split_bytes=self.split_bytes)
        object.__setattr__(self, "patterns", patterns_of(self.paths))

    def splits(self) -> Iterator[Split]:
        """Yield byte ranges of the files."""
        return byte_ranges(self.patterns, self.split_bytes)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield lines from number `start` on; those before are read, but not decoded."""
        for columns in self.read_columns(split, start):
            for text in columns["text"]:
                yield {"text": text}

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield some hundred lines at a time."""
        lines = islice(lines_of(split), start, None)
        number = start
        while chunk := list(islice(lines, CHUNK_LINES)):
            texts: list[str] = []
            for line in chunk:
                try:
                    texts.append(line.data.decode("utf-8"))
                except UnicodeDecodeError as error:
                    if texts:
                        yield {"text": objects(texts)}
                    bad_line(split, line, number + len(texts), f"it is not UTF-8 ({error})")
            yield {"text": objects(texts)}
            number += len(texts)

    def num_elements(self) -> None:
        """Return None: lines are not counted without reading."""
        return

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        return identity_of("TextLines", self.split_bytes, list_files(self.patterns))


@dataclass(frozen=True)
class JsonLines:
    """The objects of files with one JSON object a line (maybe ``.gz``); empty lines are not elements.

    Regular lists of numbers become arrays; other lists and nested objects stay as they are; null becomes
    None. Uncompressed files are cut into byte ranges of about `split_bytes`, aligned to line ends; elements
    are counted from 0 within a split.  Raises CorruptSourceError for a line that is not a JSON object.
    """

    paths: Paths = field(hash=False)
    split_bytes: int = field(default=SPLIT_BYTES, kw_only=True)
    patterns: tuple[str, ...] = field(init=False, repr=False)

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_positive(split_bytes=self.split_bytes)
        object.__setattr__(self, "patterns", patterns_of(self.paths))

    def splits(self) -> Iterator[Split]:
        """Yield byte ranges of the files."""
        return byte_ranges(self.patterns, self.split_bytes)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield objects from number `start` on; the lines before are read, but not parsed."""
        filled = (line for line in lines_of(split) if line.data.strip())
        for number, line in enumerate(islice(filled, start, None), start=start):
            try:
                value = json.loads(line.data)
            except ValueError as error:
                bad_line(split, line, number, f"it is not JSON ({error})")
            if not isinstance(value, dict):
                bad_line(split, line, number, f"it holds a {type(value).__name__}, not an object with named values")
            yield {name: array_or_list(held) if isinstance(held, list) else held for name, held in value.items()}

    def num_elements(self) -> None:
        """Return None: objects are not counted without reading."""
        return

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        return identity_of("JsonLines", self.split_bytes, list_files(self.patterns))
