"""CSV files with a header row."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, BinaryIO, ClassVar, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError
from pecan_ray.plan.exact_arrays import EXACT_BELOW
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.arrow import columns_of, rows_of
from pecan_ray.sources.files import (
    MAX_RECORD_BYTES,
    SPLIT_BYTES,
    Paths,
    byte_ranges,
    check_positive,
    identity_of,
    patterns_of,
)
from pecan_ray.sources.lines import TextLine, bad_line, filled, lines_of, opened_for_lines, shortened
from pecan_ray.storage import list_files
from pecan_ray.storage.options import storage_options

SAMPLE_BYTES = 1 << 20
CHUNK_LINES = 4096
CHUNK_BYTES = 16 << 20
"""So many bytes of lines are parsed at a time, or one line more."""
MOST_LINES = 1 << 20
"""Lines of the longest record, whose quoted values hold line ends."""
MOST_RECORD_BYTES = 1 << 30
"""Largest bound on a record: Arrow counts the bytes of a block with 31 bits."""


@dataclass(frozen=True)
class Csv:
    """The rows of CSV files, whose first line names the columns.

    Types are inferred from the first MiB of the first file, once for all splits, as int64, float64, bool or
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
    CorruptSourceError with its line for a row that does not fit, or has more than `max_record_bytes`.
    """

    paths: Paths = field(hash=False)
    columns: Sequence[str] | None = field(default=None, kw_only=True)
    types: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    delimiter: str = field(default=",", kw_only=True)
    newlines_in_values: bool = field(default=False, kw_only=True)
    split_bytes: int = field(default=SPLIT_BYTES, kw_only=True)
    max_record_bytes: int = field(default=MAX_RECORD_BYTES, kw_only=True)
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True, hash=False)
    """Of the storage, in fsspec's words; secrets as `Env`."""
    patterns: tuple[str, ...] = field(init=False, repr=False)

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_positive(split_bytes=self.split_bytes, max_record_bytes=self.max_record_bytes)
        if self.max_record_bytes > MOST_RECORD_BYTES:
            raise PlanError(f"max_record_bytes must be {MOST_RECORD_BYTES} at most, but got {self.max_record_bytes}.")
        object.__setattr__(self, "patterns", patterns_of(self.paths))
        object.__setattr__(self, "storage_options", storage_options(self.storage_options, self.patterns))
        if self.columns is not None:
            names = (self.columns,) if isinstance(self.columns, str) else tuple(self.columns)
            object.__setattr__(self, "columns", names)
            if not names:
                raise PlanError("Csv(columns=...) names no column, which is no element: name one, or leave it out.")
        if len(self.delimiter) != 1 or not self.delimiter.isascii() or self.delimiter in '"\r\n\0':
            raise PlanError(f"delimiter must be one ASCII character, no quote or line end, but got {self.delimiter!r}.")
        for name, kind in self.types.items():
            _arrow_type(name, kind)

    def splits(self) -> Iterator[Split]:
        """Yield byte ranges of the files, each with the schema that the first file's beginning gave."""
        schema: Any = None
        for split in byte_ranges(self.patterns, self.split_bytes, whole=self.newlines_in_values):
            if schema is None:
                schema = self._infer(split.path, split.version)
            yield replace(split, payload=schema)

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield rows from number `start` on; the lines before are read, but not parsed."""
        for columns in self.read_columns(split, start):
            yield from rows_of(columns)

    def read_columns(self, split: Split, start: int = 0) -> Iterator[Columns]:
        """Yield the columns of some thousand rows at a time."""
        names = self._header(split.path, split.version)
        _check_same(split.path, names, split.payload.names)
        number = start
        with opened_for_lines(split) as stream:
            records = self._records(stream, split)
            if split.start == 0:
                next(records, None)
            for chunk in _chunks(islice(records, start, None)):
                try:
                    table = self._parse(chunk, names, split.payload)
                except _RoundedError as rounded:
                    self._refuse_rounding(rounded, chunk[rounded.row].where(split), split.path)
                except pa.ArrowException:
                    place, problem, before = self._first_bad(chunk, names, split.payload)
                    for table in before:
                        yield columns_of(table)
                    bad_line(split, chunk[place], number + place, problem)
                yield columns_of(table)
                number += len(chunk)

    def num_elements(self) -> None:
        """Return None: rows are not counted without reading."""
        return

    def identity(self) -> str:
        """Return a digest of the options and of every file's path, size and version."""
        options = (
            self.columns,
            sorted(self.types.items()),
            self.delimiter,
            self.newlines_in_values,
            self.split_bytes,
        )
        return identity_of("Csv", options, list_files(self.patterns))

    def _records(self, stream: BinaryIO, split: Split) -> Iterator[TextLine]:
        """Yield the lines that are not empty; with `newlines_in_values`, those of one record joined."""
        if not self.newlines_in_values:
            return filled(lines_of(stream, split, self.max_record_bytes), split, _is_empty)
        # The carriage return at a line's end may stand inside a value: Arrow tells.
        return filled(self._joined(lines_of(stream, split, self.max_record_bytes, end=b""), split), split, _is_empty)

    def _joined(self, lines: Iterator[TextLine], split: Split) -> Iterator[TextLine]:
        """Yield lines, those joined in whose midst a quote is open."""
        held: list[bytes] = []
        first: TextLine | None = None
        size = 0
        element = -1  # the header is none
        for line in lines:
            closes = line.data.count(b'"') % 2 == 1
            if first is None and not closes:
                element += bool(line.data) and not _is_empty(line.data)
                yield line
                continue
            if first is None:
                first, size, closes = line, 0, False
            held.append(line.data)
            size += len(line.data) + 1
            if size > self.max_record_bytes or len(held) > MOST_LINES:
                within = f"max_record_bytes={self.max_record_bytes} and {MOST_LINES} lines"
                bad_line(split, first, max(element, 0), f"its quote is not closed within {within}")
            if closes:
                element += 1
                yield first._replace(data=b"\n".join(held))
                held, first = [], None
        if first is not None:
            bad_line(split, first, max(element, 0), "a quote is opened and never closed")

    def _header(self, path: str, version: str) -> list[str]:
        """Return the names of a file's columns."""
        # Whoever reads one line must not make an object store fetch the rest.
        split = Split(index=0, path=path, stop=1, version=version)
        with opened_for_lines(split, listed=False) as stream:
            first = next(self._records(stream, split), None)
            if first is None:
                raise CorruptSourceError(f"{path} is empty: it has no header line.", path=path, offset=0, element=0)
            names = self._names(split, first)
        counts = Counter(names)
        if len(counts) < len(names):
            twice = sorted(name for name, count in counts.items() if count > 1)
            raise ColumnError(f"The header of {path} names {_shown(twice)} twice.", path=path, columns=tuple(names))
        return names

    def _names(self, split: Split, line: TextLine) -> list[str]:
        """Return the values of a header line."""
        try:
            (names,) = csv.reader(
                [line.data.removesuffix(b"\r").decode("utf-8")], delimiter=self.delimiter, strict=True
            )
        except (csv.Error, ValueError) as error:
            bad_line(split, line, 0, f"it cannot be read as a header ({error})")
        return names

    def _infer(self, path: str, version: str) -> Any:
        """Return the Arrow schema of the wanted columns."""
        names = self._header(path, version)
        for asked in (self.columns or (), self.types):
            missing = [name for name in asked if name not in names]
            if missing:
                raise ColumnError(
                    f"{path} has no column {', '.join(map(repr, missing))}. It has: {_shown(names)}.",
                    path=path,
                    columns=tuple(names),
                )
        whole = Split(index=0, path=path, stop=None if self.newlines_in_values else SAMPLE_BYTES, version=version)
        given = {name: _arrow_type(name, kind) for name, kind in self.types.items()}
        with opened_for_lines(whole, listed=False) as stream:
            lines = islice(self._records(stream, whole), 1, None)
            sample = list(takewhile(lambda line: line.offset < SAMPLE_BYTES, lines))
            try:
                table = self._parse(sample, names, None, given) if sample else None
            except pa.ArrowNotImplementedError as error:
                raise PlanError(f"types={dict(self.types)}: {error}.") from error
            except pa.ArrowException:
                place, problem, _ = self._first_bad(sample, names, None, given)
                if not place:
                    bad_line(whole, sample[place], place, problem)
                # Whoever reads the split meets the bad line, and knows what to do with it.
                table = self._parse(sample[:place], names, None, given)
        kinds = {name: given.get(name) or (_simple(table.column(name)) if table else pa.string()) for name in names}
        schema = pa.schema(list(kinds.items()))
        if table:
            try:
                self._check_sizes(
                    _as_floats(table, schema, self.columns), _joined_lines(sample[: table.num_rows]), names
                )
            except _RoundedError as rounded:
                self._refuse_rounding(rounded, sample[rounded.row].where(whole), path)
            except pa.ArrowInvalid:  # whoever reads the split meets what is too large
                pass
        return schema

    def _refuse_rounding(self, rounded: _RoundedError, where: str, path: str) -> NoReturn:
        name, value = rounded.column, int(rounded.text)
        kind = "int64" if -(1 << 63) <= value < 1 << 63 else "uint64" if 0 <= value < 1 << 64 else "string"
        raise PlanError(
            f"{shortened(rounded.text)} in column {name!r} would be rounded, {where}: the column is read as float64, "
            "because of empty cells, of numbers with a point, or of numbers beyond int64 in the file's beginning. Say "
            f"Csv(..., types={{{name!r}: {kind!r}}}); 'string' if others have a point; 'float64' if it may be rounded.",
            path=path,
            column=name,
        ) from None

    def _parse(
        self, lines: list[TextLine], names: list[str], schema: Any, types: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the table of some lines; raise ArrowInvalid if one does not fit."""
        data = _joined_lines(lines)
        table = self._table(data, names, schema, types)
        if table.num_rows < len(lines):
            raise pa.ArrowInvalid("a quoted value goes on in the next line; say newlines_in_values=True")
        # Arrow takes a lone carriage return for a line end, which could make up for a line that is joined to another.
        if b"\r" in data and any(b"\r" in part for line in lines for part in _outside_quotes(line)):
            raise pa.ArrowInvalid("a carriage return stands inside the line, outside of quotes")
        if table.num_rows > len(lines):
            raise pa.ArrowInvalid("it holds several rows")
        if schema is not None:  # while types are inferred it is open whether these are numbers
            self._check_sizes(table, data, names)
        if b'"' in lines[-1].data:
            # Arrow takes the end of the data for the end of an open quote: what follows tells whether it is.
            empty = self.delimiter.encode() * (len(names) - 1) or b"x"
            strings = dict.fromkeys(names, pa.string())
            if self._table(lines[-1].data + b"\n" + empty + b"\n", names, None, strings).num_rows < 2:
                raise pa.ArrowInvalid("a quote is opened and not closed in the line")
        return table

    def _check_sizes(self, table: Any, data: bytes, names: list[str]) -> None:
        """Raise ArrowInvalid for a number that its column's type cannot hold, of which Arrow makes infinity.

        Raises _RoundedError for an integer in a column of floats that is none of them, unless the type is the user's.
        """
        for column, kind in zip(table.column_names, table.schema.types, strict=True):
            if not pa.types.is_floating(kind):
                continue
            infinite = pc.is_inf(table.column(column))
            large = pc.greater_equal(pc.abs(table.column(column)), float(EXACT_BELOW))
            if not pc.any(infinite).as_py() and (column in self.types or not pc.any(large).as_py()):
                continue
            texts = self._table(data, names, None, dict.fromkeys(names, pa.string())).column(column)
            # Infinity itself is written in letters.
            written = pc.filter(texts, pc.and_kleene(infinite, pc.match_substring_regex(texts, "[0-9]")))
            if len(written):
                shown, wider = shortened(written[0].as_py()), "string" if kind == pa.float64() else "float64"
                raise pa.ArrowInvalid(
                    f"{shown} in column {column!r} is more than a {kind} holds; say types={{{column!r}: {wider!r}}}"
                )
            if column not in self.types:
                _check_whole(column, table.column(column), texts, large)

    def _table(self, data: bytes, names: list[str], schema: Any, types: Mapping[str, Any] | None) -> Any:
        """Return the table that Arrow makes of some bytes."""
        return pacsv.read_csv(
            io.BytesIO(data),
            read_options=pacsv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=self.newlines_in_values, ignore_empty_lines=False
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=schema if schema is not None else types,
                include_columns=list(self.columns) if self.columns is not None and schema is not None else None,
            ),
        )

    def _first_bad(
        self, lines: list[TextLine], names: list[str], schema: Any, types: Mapping[str, Any] | None = None
    ) -> tuple[int, str, list[Any]]:
        """Return the first line that does not fit, why, and the lines before it as tables."""
        good, bad, problem = 0, len(lines) - 1, "it does not fit to the lines before"
        before: list[Any] = []
        while good < bad:
            middle = (good + bad) // 2
            try:
                before.append(self._parse(lines[good : middle + 1], names, schema, types))
                good = middle + 1
            except pa.ArrowException as error:
                bad, problem = middle, str(error)
        try:
            self._parse(lines[good : good + 1], names, schema, types)
        except pa.ArrowException as error:
            problem = str(error)
        problem = problem.rstrip(".")
        if lines[good].data.count(b'"') % 2 and not self.newlines_in_values:
            problem += " (it opens a quote: say newlines_in_values=True if values hold line ends)"
        return good, problem, before


class _RoundedError(Exception):
    """An integer of a file would be rounded; no reader meets it."""

    def __init__(self, row: int, column: str, text: str) -> None:
        super().__init__(row, column, text)
        self.row, self.column, self.text = row, column, text


def _check_whole(name: str, floats: Any, texts: Any, large: Any) -> None:
    """Raise _RoundedError for the first large float of a column that is not the integer that is written."""
    written = pc.and_kleene(large, pc.match_substring_regex(texts, r"^\s*[+-]?[0-9]+\s*$"))
    for row in pc.indices_nonzero(pc.fill_null(written, False)).to_pylist():
        if int(texts[row].as_py()) != floats[row].as_py():
            raise _RoundedError(row, name, texts[row].as_py().strip())


def _as_floats(table: Any, schema: Any, wanted: Sequence[str] | None) -> Any:
    """Return the wanted columns of a table that are read as float64, as such."""
    floats = [name for name in table.column_names if schema.field(name).type == pa.float64()]
    names = [name for name in floats if wanted is None or name in wanted]
    return pa.table({name: table.column(name).cast(pa.float64(), safe=False) for name in names})


def _joined_lines(lines: Sequence[TextLine]) -> bytes:
    return b"\n".join(line.data for line in lines) + b"\n"


def _is_empty(data: bytes) -> bool:
    return data == b"\r"


def _outside_quotes(line: TextLine) -> list[bytes]:
    return line.data.removesuffix(b"\r").split(b'"')[::2]


def _chunks(lines: Iterator[TextLine]) -> Iterator[list[TextLine]]:
    """Yield lines as many at a time as are parsed together."""
    chunk: list[TextLine] = []
    first = 0
    for line in lines:
        if not chunk:
            first = line.offset
        chunk.append(line)
        if len(chunk) == CHUNK_LINES or line.offset - first + len(line.data) >= CHUNK_BYTES:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _shown(names: Sequence[str], most: int = 100) -> str:
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
            f"The header of {path} is {_shown(names)}, but the first file has {_shown(expected)}.",
            path=path,
            columns=tuple(names),
        )
