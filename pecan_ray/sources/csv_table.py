"""CSV files, with a header row or with names that are given."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError, SourceError
from pecan_ray.plan.splits import Columns, Split
from pecan_ray.sources.arrow import columns_of
from pecan_ray.sources.csv_dialect import CsvDialect, is_only_line_end
from pecan_ray.sources.csv_parser import BadLine, CsvParser, PrecisionLossError, as_floats, joined_lines
from pecan_ray.sources.file_sources import LinesByColumns, NullableColumns
from pecan_ray.sources.files import data_files, identity_of
from pecan_ray.sources.filling import null_mask_columns, without_nulls
from pecan_ray.sources.lines import (
    UTF_8,
    BadLines,
    TextLine,
    line_error,
    line_ranges,
    lines_of,
    opened_for_lines,
)
from pecan_ray.sources.partitions import (
    selected_values,
    with_equal_columns,
    with_partitions,
)

# Bytes behind the header by which the columns' types are found.
SAMPLE_BYTES = 1 << 20
# Lines that are parsed at a time, unless they are long.
CHUNK_LINES = 4096
CHUNK_BYTES = 16 << 20
"""Bytes of lines that are parsed at a time, or one line more: long ones take memory several times over while they are
parsed."""
HEADER_STOPS = (1, 1 << 16, None)
"""A header is looked for in the lines that begin before these bytes: mostly it is the first one."""
MOST_LINES = 1 << 20
"""Lines of the longest record, whose quoted values hold line ends: a quote that is never closed must not hold the whole
file."""
MOST_RECORD_BYTES = 1 << 30
"""Largest bound on a record: Arrow counts the bytes of a block with 31 bits."""


@dataclass(frozen=True)
class Csv(LinesByColumns, NullableColumns):
    """The rows of CSV files, whose first line names the columns, unless `names` does.

    Types are inferred from the first MiB of the first file with rows, once for all splits, as int64, float64, bool or
    str; a column of integers with empty cells there, or beyond int64, is read as float64, and an integer that a float64
    would round raises PlanError, which says the type to write.  Empty cells (also ``NA``,
    ``null``, ``nan``) are NaN in columns of floats, None in those of integers and booleans, and stay text
    in those of text.  `types` overrides: ``{"price": "float32", "zip": "string"}`` (names of Arrow types).
    A number that is more than its column's type holds (``1e999``) is refused; ``inf`` is infinity.  Empty lines are
    not elements.

    Files that are not compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``) are cut into byte ranges of about
    `split_bytes`, aligned to line ends; elements are counted from 0 within a split.  Where quoted values hold
    line ends, say ``newlines_in_values=True``: every file is then one split.  Raises ColumnError for unknown
    columns and for files whose header has other names than the first one's or a name twice,
    CorruptSourceError with its line for a row that does not fit, or has more than `max_record_bytes`; where bad
    elements are skipped, that row alone is left out, and with `newlines_in_values` the rest of the file.
    """

    columns: Sequence[str] | None = field(default=None, kw_only=True)
    names: Sequence[str] | None = field(default=None, kw_only=True)
    """Of all columns: then the first line is data, unless `header` is True, and these stand in its place."""
    header: bool | None = field(default=None, kw_only=True)
    """Whether the first line is a header; None: it is one where no `names` are given."""
    types: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    delimiter: str = field(default=",", kw_only=True)
    quote: str | None = field(default='"', kw_only=True)
    """What stands around values that hold delimiters, and is doubled inside of them; None: quotes are text."""
    escape: str | None = field(default=None, kw_only=True)
    """What stands before a quote inside of a quoted value instead, as Spark's backslash."""
    comment: str | None = field(default=None, kw_only=True)
    """Lines that begin with it are not elements."""
    newlines_in_values: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_record_bytes > MOST_RECORD_BYTES:
            raise PlanError(f"max_record_bytes must be {MOST_RECORD_BYTES} at most, but got {self.max_record_bytes}.")
        if self.escape is not None and self.escape == self.quote:  # another word for doubled quotes
            object.__setattr__(self, "escape", None)
        self._dialect  # noqa: B018 - it is checked when it is made
        if self.columns is not None:
            names = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
            object.__setattr__(self, "columns", names)
            if not names:
                raise PlanError("Csv(columns=...) names no column, which is no element: name one, or leave it out.")
        if self.header not in (None, True, False):
            raise PlanError(f"Csv(header=...) must be True, False or None, but got {self.header!r}.")
        if self.names is not None:
            object.__setattr__(self, "names", _checked_names(self.names))
        elif self.header is False:
            raise PlanError("Csv(header=False): files without a header do not name their columns. Say names=[...].")
        for name, kind in self.types.items():
            _arrow_type(name, kind)

    @property
    def _dialect(self) -> CsvDialect:
        return CsvDialect(self.delimiter, self.quote, self.escape, self.comment, self.encoding)

    @property
    def _has_header(self) -> bool:
        return self.names is None if self.header is None else self.header

    def splits(self) -> Iterator[Split]:
        """Yield byte ranges of the files, each with the schema that the beginning of the first file with rows gave."""
        schema, has_rows = None, False
        pieces = line_ranges(data_files(self.patterns), self.split_bytes, whole=self.newlines_in_values)
        for split in with_equal_columns(pieces, self.patterns, self.partitions):
            # A file without rows tells names alone, so the next one is asked for types.
            if not has_rows and not split.start:
                before, (schema, has_rows) = schema, self._infer(split.path, split.version)
                _check_same(split.path, schema.names, (before or schema).names)
            yield replace(split, payload=schema)

    @property
    def reads_past_errors(self) -> bool:
        """Return whether the rows behind a bad one can be read; a lost quote changes them if values hold line ends."""
        return not self.newlines_in_values

    def _columns(self, start: int, bad: BadLines) -> Iterator[Columns | SourceError]:
        split = bad.split
        header = self._header(split.path, split.version)
        _check_same(split.path, header.names, split.payload.names)
        told = selected_values(split.path, self, self.columns, header.names)
        wanted = self.columns and [name for name in self.columns if name not in told]
        # Arrow takes no column for all of them.
        number, parser = start, self._parser(header.names, header.names[:1] if wanted == [] else wanted)
        with opened_for_lines(split) as stream:
            records = self._records(stream, bad)
            # Only the first range of a file has it.
            if header.is_in(split):
                next(records, None)
            for chunk in _chunks(islice(records, start, None)):
                for part in parser.parts(chunk, split.payload, bad):
                    if isinstance(part, BadLine):
                        yield bad.error(part.line, number, part.message)
                        number += 1
                    else:
                        held = {} if wanted == [] else self._columns_of(part, split.path)
                        yield with_partitions(held, told, part.num_rows)
                        number += part.num_rows
                # Their numbers do not come again.
                bad.rejected.clear()

    def _columns_of(self, table: Any, path: str) -> Columns:
        return {**columns_of(without_nulls(table, self.fill, path)), **null_mask_columns(table, self.mask, path)}

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        options = (
            self.columns,
            sorted(self.types.items()),
            self.delimiter,
            self.newlines_in_values,
            self.split_bytes,
            # Those that were added later are no part of the identity of sources that do not use them.
            *(option for option in self._later_options() if option[1] is not None),
        )
        return identity_of("Csv", options, data_files(self.patterns))

    def _later_options(self) -> Iterator[tuple[str, object]]:
        yield "fill", self.fill
        yield "mask", self.mask and f"mask={self.mask}"
        yield "partitions", None if self.partitions is True else f"partitions={self.partitions}"
        yield "names", self.names
        yield "header", self.header
        yield "quote", None if self.quote == '"' else f"quote={self.quote}"
        yield "escape", self.escape
        yield "comment", self.comment
        yield "encoding", None if self.encoding == UTF_8 else self.encoding

    def _records(self, stream: BinaryIO, bad: BadLines) -> Iterator[TextLine]:
        """Yield the lines that are not empty; with `newlines_in_values`, those of one record joined."""
        dialect = self._dialect
        # The carriage return at a line's end may stand inside a value that goes on: Arrow tells.
        lines = lines_of(stream, bad, end=b"" if self.newlines_in_values else b"\r")
        if dialect.encoding != UTF_8:
            lines = dialect.in_utf_8(lines, bad)
        if self.newlines_in_values:
            lines = self._joined(lines, bad.split)
        elif dialect.comment is not None:
            lines = (line for line in lines if not dialect.is_comment(line.data))
        return dialect.records(lines, bad)

    def _joined(self, lines: Iterator[TextLine], split: Split) -> Iterator[TextLine]:
        """Yield lines but comments, those joined in whose midst a quote is open."""
        dialect = self._dialect
        held: list[bytes] = []
        first: TextLine | None = None
        size = 0
        element = -1 if self._has_header else 0
        for line in lines:
            # Within a quoted value a line that begins so is text.
            if first is None and dialect.is_comment(line.data):
                continue
            closes = dialect.changes_quote_state(line.data)
            if first is None and not closes:
                element += not is_only_line_end(line.data)
                yield line
                continue
            if first is None:
                first, size, closes = line, 0, False
            held.append(line.data)
            size += len(line.data) + 1
            if size > self.max_record_bytes or len(held) > MOST_LINES:
                within = f"max_record_bytes={self.max_record_bytes} and {MOST_LINES} lines"
                raise line_error(split, first, max(element, 0), f"its quote is not closed within {within}")
            if closes:
                element += 1
                yield first._replace(data=b"\n".join(held))
                held, first = [], None
        if first is not None:
            raise line_error(split, first, max(element, 0), "a quote is opened and never closed")

    def _header(self, path: str, version: str) -> _Header:
        """Return the names of a file's columns, and where they stand."""
        if self.names is not None and not self._has_header:
            return _Header(list(self.names), -1)
        # Whoever reads one line must not make an object store fetch the rest.
        for stop in HEADER_STOPS:
            split = Split(index=0, path=path, stop=stop, version=version)
            bad = BadLines(split, self.max_record_bytes, past_errors=False)
            with opened_for_lines(split, listed=False) as stream:
                first = next(self._records(stream, bad), None)
                if first is None:
                    continue
                try:
                    if first.number in bad.rejected:
                        raise ValueError(bad.rejected[first.number])
                    header = self._dialect.fields(first.data)
                except (csv.Error, ValueError) as error:
                    raise line_error(split, first, 0, f"it cannot be read as a header ({error})") from error
            names = _checked_header(path, header, self.names, numbers_allowed=self.header is True)
            return _Header(names, first.offset)
        raise CorruptSourceError(f"{path} is empty: it has no header line.", path=path, offset=0, element=0)

    def _infer(self, path: str, version: str) -> tuple[Any, bool]:
        """Return the Arrow schema of the wanted columns."""
        header = self._header(path, version)
        names = header.names
        self._check_named(path, names)
        parser = self._parser(names, self.columns)
        sample, table, whole = self._good_lines(path, version, header.offset, parser)
        kinds = {
            name: parser.types.get(name) or (_simple(table.column(name)) if table else pa.string()) for name in names
        }
        schema = pa.schema(list(kinds.items()))
        if table:
            try:
                parser.check_sizes(as_floats(table, schema, self.columns), joined_lines(sample))
            except PrecisionLossError as rounded:
                parser.raise_precision_loss(rounded, sample[rounded.row].where(whole), path)
            except pa.ArrowInvalid:  # whoever reads the split meets what is too large
                pass
        return schema, bool(table)

    def _check_named(self, path: str, names: list[str]) -> None:
        """Raise ColumnError where options name a column that a file lacks."""
        held = {*names, *selected_values(path, self, self.columns, names)}
        missing = [name for name in self.columns or () if name not in held]
        missing = missing or [name for name in (*self.types, *(self.fill or ())) if name not in names]
        if missing:
            raise ColumnError(
                f"{path} has no column {', '.join(map(repr, missing))}. It has: {_join_names(names)}.",
                path=path,
                columns=tuple(names),
            )

    def _good_lines(
        self, path: str, version: str, header_offset: int, parser: CsvParser
    ) -> tuple[list[TextLine], Any, Split]:
        """Return the lines of a file's beginning that can be parsed, their table, and what they were read of.

        Whoever reads the split meets the others, and knows what to do with them.  Raises if there are bad ones alone.
        """
        end = max(header_offset, 0) + SAMPLE_BYTES
        split = Split(index=0, path=path, stop=None if self.newlines_in_values else end, version=version)
        bad = BadLines(split, self.max_record_bytes, past_errors=not self.newlines_in_values)
        with opened_for_lines(split, listed=False) as stream:
            lines = islice(self._records(stream, bad), int(self._has_header), None)
            sample = _before_open_quote(takewhile(lambda line: line.offset < end, lines))
        if not sample:
            return [], None, split
        try:
            parts = list(parser.parts(sample, None, bad))
        except pa.ArrowNotImplementedError as error:
            raise PlanError(f"types={dict(self.types)}: {error}.") from error
        failed = {part.line.number: part.message for part in parts if isinstance(part, BadLine)}
        if len(parts) == 1 and not failed:
            return sample, parts[0], split
        good = [line for line in sample if line.number not in failed]
        if not good:
            raise line_error(split, sample[0], 0, failed[sample[0].number])
        # Types that are inferred of several parts may differ: they are those of all good lines.
        return good, parser.table(joined_lines(good), None), split

    def _parser(self, names: list[str], wanted: Sequence[str] | None) -> CsvParser:
        types = {name: _arrow_type(name, kind) for name, kind in self.types.items()}
        return CsvParser(self._dialect, names, wanted, types, self.newlines_in_values)


class _Header(NamedTuple):
    """The names of a file's columns."""

    names: list[str]
    offset: int
    """First byte of their line, in the file as decompressed; -1: it has none."""

    def is_in(self, split: Split) -> bool:
        """Tell whether a split begins with this line, or with comments and empty lines before it."""
        return split.start <= self.offset and (split.stop is None or self.offset < split.stop)


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns that a user has given; raises PlanError for none, or one twice."""
    given = tuple(names) if not isinstance(names, str) else ()
    if not given or not all(isinstance(name, str) for name in given) or len(set(given)) < len(given):
        raise PlanError(f"Csv(names=...) must be a list of different names, one for each column, but got {names!r}.")
    return given


def _before_open_quote(lines: Iterator[TextLine]) -> list[TextLine]:
    """Return the lines before one whose quote stays open; raises CorruptSourceError where that is the first one."""
    found: list[TextLine] = []
    try:
        found.extend(lines)
    except CorruptSourceError:
        if not found:
            raise
    return found


def _checked_header(path: str, header: list[str], given: Sequence[str] | None, *, numbers_allowed: bool) -> list[str]:
    """Return the names of the columns of a file with a header; raises ColumnError for one that cannot be."""
    if given is not None and len(given) != len(header):
        raise ColumnError(
            f"Csv(names=...) names {len(given)} columns, and the header of {path} {len(header)}: "
            f"{_join_names(header)}.",
            path=path,
            columns=tuple(header),
        )
    without = "Say names=[...] if the file has no header."
    twice = sorted(name for name, count in Counter(header).items() if count > 1)
    if given is not None:
        return list(given)
    if twice:
        raise ColumnError(
            f"The header of {path} names {_join_names(twice)} twice. {without}", path=path, columns=tuple(header)
        )
    if not numbers_allowed:
        _check_is_header(path, header, without)
    return header


def _check_is_header(path: str, header: list[str], without: str) -> None:
    """Raise ColumnError for a first line that is no header, or one of another delimiter."""
    if _looks_like_data(header):
        raise ColumnError(
            f"The first line of {path} holds numbers: {_join_names(header)}. {without} Say header=True if these are "
            "the names of its columns.",
            path=path,
            columns=tuple(header),
        )
    if len(header) == 1 and (other := re.search("[\t;|]", header[0])):
        raise ColumnError(
            f"The first line of {path} names one column, {header[0]!r}. Say delimiter={other[0]!r} if it names "
            "several, and header=True if it does not.",
            path=path,
            columns=tuple(header),
        )


def _looks_like_data(header: Sequence[str]) -> bool:
    """Tell whether a header holds numbers that are no names: in all of its columns, or one with a point."""
    numbers = [name for name in header if re.fullmatch(r"\s*[+-]?[0-9]*\.?[0-9]+(e[+-]?[0-9]+)?\s*", name, re.I)]
    return len(numbers) == len(header) or any(not name.strip().lstrip("+-").isdigit() for name in numbers)


def _chunks(lines: Iterator[TextLine]) -> Iterator[list[TextLine]]:
    """Yield lines as many at a time as are parsed together, and before an error what was read until there."""
    chunk: list[TextLine] = []
    first = 0
    try:
        for line in lines:
            if not chunk:
                first = line.offset
            chunk.append(line)
            if len(chunk) == CHUNK_LINES or line.offset - first + len(line.data) >= CHUNK_BYTES:
                full, chunk = chunk, []
                yield full
    except SourceError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _join_names(names: Sequence[str], most: int = 100) -> str:
    """Return names for a message, the first ones of many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _arrow_type(name: str, kind: str) -> Any:
    try:
        return pa.type_for_alias(kind)
    except ValueError as error:
        raise PlanError(f"types[{name!r}] = {kind!r} is not the name of an Arrow type, such as float32.") from error


def _simple(column: Any) -> Any:
    """Return the type to read a column with, given its inferred values."""
    kind = column.type
    if pa.types.is_integer(kind):
        return pa.float64() if column.null_count else kind
    return kind if pa.types.is_floating(kind) or pa.types.is_boolean(kind) else pa.string()


def _check_same(path: str, names: list[str], expected: list[str]) -> None:
    if set(names) != set(expected):
        raise ColumnError(
            f"The header of {path} is {_join_names(names)}, but the first file has {_join_names(expected)}.",
            path=path,
            columns=tuple(names),
        )
