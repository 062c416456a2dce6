"""CSV files with a header row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pyarrow import csv as pacsv

from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError
from pecan_ray.plan.splits import Columns, Element, Split
from pecan_ray.sources.arrow import columns_of, rows_of
from pecan_ray.sources.files import SPLIT_BYTES, Paths, byte_ranges, check_positive, identity_of, patterns_of
from pecan_ray.sources.text import TextLine, bad_line, lines_of
from pecan_ray.storage import list_files

SAMPLE_BYTES = 1 << 20
CHUNK_LINES = 4096


@dataclass(frozen=True)
class Csv:
    """The rows of CSV files, whose first line names the columns.

    Types are inferred from the first MiB of the first file, once for all splits, as int64, float64, bool or
    str; a column of integers with empty cells there is read as float64.  Empty cells (also ``NA``,
    ``null``, ``nan``) are NaN in columns of floats, None in those of integers and booleans, and stay text
    in those of text.  `types` overrides: ``{"price": "float32", "zip": "string"}`` (names of Arrow types).
    Empty lines are not elements.

    Uncompressed files are cut into byte ranges of about `split_bytes`, aligned to line ends; elements are
    counted from 0 within a split.  Where quoted values hold line ends, say ``newlines_in_values=True``:
    every file is then one split.  Raises ColumnError for unknown columns and for files whose header has
    other names than the first one's, CorruptSourceError with its line for a row that does not fit.
    """

    paths: Paths = field(hash=False)
    columns: Sequence[str] | None = field(default=None, kw_only=True)
    types: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    delimiter: str = field(default=",", kw_only=True)
    newlines_in_values: bool = field(default=False, kw_only=True)
    split_bytes: int = field(default=SPLIT_BYTES, kw_only=True)
    patterns: tuple[str, ...] = field(init=False, repr=False)

    sequential: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_positive(split_bytes=self.split_bytes)
        object.__setattr__(self, "patterns", patterns_of(self.paths))
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))
        if len(self.delimiter) != 1:
            raise PlanError(f"delimiter must be one character, but got {self.delimiter!r}.")
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
        records = self._records(split)
        if split.start == 0:
            next(records, None)
        records = islice(records, start, None)
        number = start
        while chunk := list(islice(records, CHUNK_LINES)):
            try:
                table = self._parse(chunk, names, split.payload)
            except pa.ArrowInvalid:
                place, problem = self._first_bad(chunk, names, split.payload)
                if place:
                    yield columns_of(self._parse(chunk[:place], names, split.payload))
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

    def _records(self, split: Split) -> Iterator[TextLine]:
        """Yield the lines that are not empty; with `newlines_in_values`, those of one record joined."""
        held: TextLine | None = None
        for line in lines_of(split):
            if held is not None:
                line = TextLine(held.number, held.offset, held.data + b"\n" + line.data)
            if self.newlines_in_values and line.data.count(b'"') % 2:
                held = line
                continue
            held = None
            if line.data:
                yield line
        if held is not None:
            bad_line(split, held, 0, "a quote is opened and never closed")

    def _header(self, path: str, version: str) -> list[str]:
        """Return the names of a file's columns."""
        # Whoever reads one line must not make an object store fetch the rest.
        first = next(self._records(Split(index=0, path=path, stop=1, version=version)), None)
        if first is None:
            raise CorruptSourceError(f"{path} is empty: it has no header line.", path=path, offset=0, element=0)
        names = next(csv.reader([first.data.decode("utf-8", "replace")], delimiter=self.delimiter))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ColumnError(f"The header of {path} names {', '.join(twice)} twice.", path=path, columns=tuple(names))
        return names

    def _infer(self, path: str, version: str) -> Any:
        """Return the Arrow schema of the wanted columns."""
        names = self._header(path, version)
        for asked in (self.columns or (), self.types):
            missing = [name for name in asked if name not in names]
            if missing:
                raise ColumnError(
                    f"{path} has no column {', '.join(map(repr, missing))}. It has: {', '.join(names)}.",
                    path=path,
                    columns=tuple(names),
                )
        whole = Split(index=0, path=path, stop=None if self.newlines_in_values else SAMPLE_BYTES, version=version)
        sample: list[TextLine] = []
        for line in islice(self._records(whole), 1, None):
            if line.offset >= SAMPLE_BYTES:
                break
            sample.append(line)
        given = {name: _arrow_type(name, kind) for name, kind in self.types.items()}
        try:
            table = self._parse(sample, names, None, given) if sample else None
        except pa.ArrowInvalid:
            place, problem = self._first_bad(sample, names, None, given)
            bad_line(whole, sample[place], place, problem)
        kinds = {name: given.get(name) or (_simple(table.column(name)) if table else pa.string()) for name in names}
        return pa.schema(list(kinds.items()))

    def _parse(
        self, lines: list[TextLine], names: list[str], schema: Any, types: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the table of some lines; raise ArrowInvalid if one does not fit."""
        data = b"\n".join(line.data for line in lines) + b"\n"
        table = pacsv.read_csv(
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
        if table.num_rows != len(lines):
            raise pa.ArrowInvalid("a quoted value goes on in the next line; say newlines_in_values=True")
        return table

    def _first_bad(
        self, lines: list[TextLine], names: list[str], schema: Any, types: Mapping[str, Any] | None = None
    ) -> tuple[int, str]:
        """Return the first line that does not fit, and why."""
        good, bad, problem = 0, len(lines), ""
        while good < bad:
            middle = (good + bad) // 2
            try:
                self._parse(lines[good : middle + 1], names, schema, types)
                good = middle + 1
            except pa.ArrowInvalid as error:
                bad, problem = middle, str(error)
        return good, problem.rstrip(".")


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
            f"The header of {path} is {', '.join(names)}, but the first file has {', '.join(expected)}.",
            path=path,
            columns=tuple(names),
        )
