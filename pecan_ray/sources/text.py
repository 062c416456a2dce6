"""Files of lines: text and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

from pecan_ray.errors import SourceError
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.arrow import objects
from pecan_ray.sources.file_sources import LineFiles, LinesByColumns, NullableColumns
from pecan_ray.sources.files import data_files, identity_of
from pecan_ray.sources.filling import add_null_mask
from pecan_ray.sources.json_values import array_or_list, check_filled_types, json_types, with_types
from pecan_ray.sources.lines import (
    UTF_8,
    BadLines,
    TextLine,
    cut_text,
    filled,
    in_chunks,
    line_ranges,
    lines_of,
    opened_for_lines,
)
from pecan_ray.sources.partitions import (
    add_partitions,
    check_new_columns,
    partition_values,
    selected_values,
    with_equal_columns,
    with_partitions,
)
from pecan_ray.storage import list_files

# Lines that are decoded in one call: a call costs as much as decoding some short lines.
CHUNK_LINES = 512


@dataclass(frozen=True)
class TextLines(LinesByColumns):
    """The lines of text files, empty ones too, without line ends: column ``text``.

    Compressed files (``.gz``, ``.bz2``, ``.xz``, ``.zst``) are one split each, other ones are cut into byte ranges of
    about `split_bytes`, aligned to line ends; elements are counted from 0 within a split.  Raises
    CorruptSourceError for a line that is not in the `encoding`, and for one of more than `max_record_bytes`; where
    bad elements are skipped, that line alone is left out.
    """

    def splits(self) -> Iterator[Split]:
        """Yield byte ranges of the files."""
        return with_equal_columns(
            line_ranges(list_files(self.patterns), self.split_bytes), self.patterns, self.partitions
        )

    def _columns(self, start: int, bad: BadLines) -> Iterator[Columns | SourceError]:
        number, told = start, selected_values(bad.split.path, self, None, ("text",))
        with opened_for_lines(bad.split) as stream:
            for chunk in in_chunks(islice(lines_of(stream, bad), start, None), CHUNK_LINES):
                texts = None if bad.rejected else self._decoded(chunk)
                if texts is None:
                    for part in self._one_by_one(chunk, number, bad):
                        yield part if isinstance(part, SourceError) else with_partitions(part, told, len(part["text"]))
                else:
                    yield with_partitions({"text": objects(texts)}, told, len(texts))
                number += len(chunk)

    def _decoded(self, chunk: Sequence[TextLine]) -> list[str] | None:
        """Return the texts of lines; None if one is not in the encoding."""
        try:
            # One call for all: in encodings that `line_encoding` lets pass a line feed is no part of another
            # character.
            return b"\n".join([line.data for line in chunk]).decode(self.encoding).split("\n")
        except UnicodeDecodeError:
            return None

    def _one_by_one(self, chunk: Sequence[TextLine], number: int, bad: BadLines) -> Iterator[Columns | SourceError]:
        """Yield the good lines of a chunk, some at a time, and the errors of bad ones."""
        texts: list[str] = []
        for place, line in enumerate(chunk):
            problem = bad.rejected.pop(line.number, "")
            if not problem:
                try:
                    texts.append(line.data.decode(self.encoding))
                    continue
                except UnicodeDecodeError as error:
                    problem = f"it is not {self.encoding.upper()} ({error})"
            if texts:
                yield {"text": objects(texts)}
                texts = []
            yield bad.error(line, number + place, problem)
        if texts:
            yield {"text": objects(texts)}

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        return identity_of("TextLines", _options(self), list_files(self.patterns))


def _options(source: TextLines | JsonLines) -> object:
    """Return what an identity holds of a source's options."""
    return source.split_bytes, None if source.encoding == UTF_8 else source.encoding, source.partitions


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raises ValueError where a name stands for two values, of which one would be lost."""
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is named twice")
    return named


def finite(text: str) -> float:
    """Return a number of JSON; raises ValueError for one that is more than a float holds, of which infinity is made."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {cut_text(text)} is more than a float64 holds: write it as a text")
    return number


# Made once: `json.loads` with a hook makes a decoder for each line.
OBJECTS = json.JSONDecoder(object_pairs_hook=named_once, parse_float=finite)


@dataclass(frozen=True)
class JsonLines(LineFiles, NullableColumns):
    """The objects of files with one JSON object a line ; empty lines are not elements.

    Regular lists of numbers become arrays, where a type holds all of them exactly; other lists and nested objects stay
    as they are; null becomes None, or what `fill` has for the column. `types` fixes what a column is: ``{"ids":
    "list<int32>"}`` (numbers, bool, string, and lists of these), with the values that `Parquet` gives.

    Compressed files (``.gz``, ``.bz2``, ``.xz``, ``.zst``) are one split each, other ones are cut into byte ranges of
    about `split_bytes`, aligned to line ends; elements count from 0 within a split.  Raises CorruptSourceError for
    a line that is not a JSON object, names something twice, or holds a number that is more than a float64 holds
    (``1e400``) or a value that is none of its column's type, and for one of more than `max_record_bytes`; where bad
    elements are skipped, that line alone is left out.
    """

    types: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_filled_types(json_types(self.types), self.fill or {})

    def splits(self) -> Iterator[Split]:
        """Yield byte ranges of the files."""
        files = data_files(self.patterns)
        return with_equal_columns(line_ranges(files, self.split_bytes), self.patterns, self.partitions)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield objects from number `start` on; the lines before are read, but not parsed."""
        bad = BadLines(split, self.max_record_bytes, past_errors=False)
        return cast("Iterator[Element]", self._objects(start, bad))

    def read_past_errors(self, split: Split, start: int = 0) -> Iterator[Element | SourceError]:
        """Yield objects as `read` does, and the errors of bad lines in their place."""
        return self._objects(start, BadLines(split, self.max_record_bytes, past_errors=True))

    def _objects(self, start: int, bad: BadLines) -> Iterator[Element | SourceError]:
        told = partition_values(bad.split.path, self.patterns, self.partitions)
        check_new_columns(told, (self.mask or {}).values())
        types, fill = json_types(self.types), dict(self.fill or {})
        fixes, rejected = bool(types or fill), bad.rejected
        with opened_for_lines(bad.split) as stream:
            lines = filled(lines_of(stream, bad), bad.split, bytes.isspace)
            for number, line in enumerate(islice(lines, start, None), start=start):
                if line.number in rejected:
                    yield bad.error(line, number, rejected.pop(line.number))
                    continue
                try:
                    read = OBJECTS.decode(self._text(line.data))
                    value = with_types(read, types, fill) if fixes and type(read) is dict else read
                except (ValueError, RecursionError) as error:
                    yield bad.error(line, number, f"it is not JSON that can be read ({error})")
                    continue
                if not isinstance(value, dict):
                    problem = f"it holds a {type(value).__name__}, not an object with named values"
                    yield bad.error(line, number, problem)
                    continue
                element = _with_arrays(value, types)
                if self.mask:
                    add_null_mask(element, read, self.mask, bad.split.path)
                yield add_partitions(element, told) if told else element

    def _text(self, data: bytes) -> str:
        if self.encoding != UTF_8:
            return data.decode(self.encoding)
        if data[:1] == b"{" and data[1:2] > b"\0":  # as Python's own look at the first bytes tells, in less time
            return data.decode("utf-8", "surrogatepass")
        return data.decode(json.detect_encoding(data), "surrogatepass")

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        options = _options(self), sorted(self.types.items()), self.fill
        return identity_of("JsonLines", (*options, self.mask) if self.mask else options, data_files(self.patterns))


def _with_arrays(value: dict[str, Any], types: Mapping[str, Any]) -> Element:
    """Return an object's values, lists as arrays where they are alike and no type was said."""
    return {
        name: array_or_list(held) if type(held) is list and name not in types else held for name, held in value.items()
    }
