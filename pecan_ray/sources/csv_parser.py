"""From lines of a CSV file to tables of Arrow, and what is wrong with a line of which none can be made."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from pecan_ray.errors import PlanError
from pecan_ray.plan.exact_arrays import EXACT_BELOW
from pecan_ray.sources.csv_dialect import CsvDialect
from pecan_ray.sources.lines import BadLines, TextLine, cut_text


@dataclass(frozen=True)
class CsvParser:
    """Makes tables of the lines of one file."""

    dialect: CsvDialect
    names: list[str]
    """Of all of its columns."""
    columns: Sequence[str] | None
    """Those that are wanted; None: all."""
    types: Mapping[str, Any]
    """Arrow's types of some columns, as the user has given them."""
    newlines_in_values: bool

    def raise_precision_loss(self, rounded: PrecisionLossError, where: str, path: str) -> NoReturn:
        """Raise PlanError for an integer that would be rounded, with the type to write."""
        name, value = rounded.column, int(rounded.text)
        kind = "int64" if -(1 << 63) <= value < 1 << 63 else "uint64" if 0 <= value < 1 << 64 else "string"
        raise PlanError(
            f"{cut_text(rounded.text)} in column {name!r} would be rounded, {where}: the column is read as float64, "
            "because of empty cells, of numbers with a point, or of numbers beyond int64 in the file's beginning. Say "
            f"Csv(..., types={{{name!r}: {kind!r}}}); 'string' if others have a point; 'float64' if it may be rounded.",
            path=path,
            column=name,
        ) from None

    def _parse(self, lines: list[TextLine], schema: Any) -> Any:
        """Return the table of some lines; raise ArrowInvalid if one does not fit."""
        data = joined_lines(lines)
        table = self.table(data, schema)
        if table.num_rows < len(lines):
            raise pa.ArrowInvalid("a quoted value goes on in the next line; say newlines_in_values=True")
        # Arrow takes a lone carriage return for a line end, which could make up for a line that is joined to another.
        if b"\r" in data and any(
            b"\r" in part for line in lines for part in self.dialect.parts_without_quote(line.data)
        ):
            raise pa.ArrowInvalid("a carriage return stands inside the line, outside of quotes")
        if table.num_rows > len(lines):
            raise pa.ArrowInvalid("it holds several rows")
        if problem := self.dialect.mismatches(data, lines):
            raise pa.ArrowInvalid(problem)
        if schema is not None:  # while types are inferred it is open whether these are numbers
            self.check_sizes(table, data)
        return table

    def check_sizes(self, table: Any, data: bytes) -> None:
        """Raise ArrowInvalid for a number that its column's type cannot hold, of which Arrow makes another one.

        That is infinity, or of a hexadecimal number a negative one.
        Raises PrecisionLossError for an integer in a column of floats that is none of them, unless the user has named
        the type.
        """
        hexadecimal = b"0x" in data or b"0X" in data
        for column, kind in zip(table.column_names, table.schema.types, strict=True):
            if hexadecimal and pa.types.is_signed_integer(kind):
                _check_hex_overflow(column, table.column(column), self._texts(data).column(column))
            if not pa.types.is_floating(kind):
                continue
            infinite = pc.is_inf(table.column(column))
            large = pc.greater_equal(pc.abs(table.column(column)), float(EXACT_BELOW))
            if not pc.any(infinite).as_py() and (column in self.types or not pc.any(large).as_py()):
                continue
            texts = self._texts(data).column(column)
            # Infinity itself is written in letters.
            written = pc.filter(texts, pc.and_kleene(infinite, pc.match_substring_regex(texts, "[0-9]")))
            if len(written):
                shown, wider = cut_text(written[0].as_py()), "string" if kind == pa.float64() else "float64"
                raise pa.ArrowInvalid(
                    f"{shown} in column {column!r} is more than a {kind} holds; say types={{{column!r}: {wider!r}}}"
                )
            if column not in self.types:
                _check_whole(column, table.column(column), texts, large)

    def table(self, data: bytes, schema: Any, types: Mapping[str, Any] | None = None) -> Any:
        """Return the table that Arrow makes of some bytes."""
        return pacsv.read_csv(
            io.BytesIO(data),
            # In one block: Arrow infers types by the first block alone.
            read_options=pacsv.ReadOptions(column_names=self.names, use_threads=False, block_size=len(data) + 1),
            parse_options=pacsv.ParseOptions(
                delimiter=self.dialect.delimiter,
                quote_char=self.dialect.quote or False,
                newlines_in_values=self.newlines_in_values,
                ignore_empty_lines=False,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types=schema if schema is not None else types or self.types,
                include_columns=list(self.columns) if self.columns is not None and schema is not None else None,
            ),
        )

    def _texts(self, data: bytes) -> Any:
        """Return all columns of some bytes as texts."""
        return self.table(data, None, dict.fromkeys(self.names, pa.string()))

    def parts(self, lines: list[TextLine], schema: Any, bad: BadLines) -> Iterator[Any]:
        """Yield the tables of lines, and a BadLine for each that does not fit.

        Lines that cannot be parsed together are halved until the bad ones are alone.
        """
        if bad.rejected and any(line.number in bad.rejected for line in lines):
            for rejected, run in groupby(lines, key=lambda line: line.number in bad.rejected):
                if rejected:
                    yield from (BadLine(line, bad.rejected[line.number]) for line in run)
                else:
                    yield from self.parts(list(run), schema, bad)
            return
        try:
            table = self._parse(lines, schema)
        except PrecisionLossError as rounded:
            self.raise_precision_loss(rounded, lines[rounded.row].where(bad.split), bad.split.path)
        # No line is to blame: Arrow reads no such type from texts.
        except pa.ArrowNotImplementedError:
            raise
        except pa.ArrowException as error:
            if len(lines) == 1:
                yield BadLine(lines[0], self._add_quote_hint(_arrow_message(error), lines[0].data))
                return
            middle = len(lines) // 2
            yield from self.parts(lines[:middle], schema, bad)
            yield from self.parts(lines[middle:], schema, bad)
        else:
            yield table

    def _add_quote_hint(self, problem: str, line: bytes) -> str:
        if self.dialect.changes_quote_state(line) and not self.newlines_in_values:
            return f"{problem} (it opens a quote: say newlines_in_values=True if values hold line ends)"
        return problem


def _arrow_message(error: Exception) -> str:
    """Return what Arrow says, without the row, which it counts from where it has begun to parse."""
    return re.sub(r"^(CSV parse error: )Row #\d+: ", r"\1", str(error)).rstrip(".")


class BadLine(NamedTuple):
    """A line that cannot be parsed."""

    line: TextLine
    message: str


class PrecisionLossError(Exception):
    """An integer of a file would be rounded; no reader meets it."""

    def __init__(self, row: int, column: str, text: str) -> None:
        super().__init__(row, column, text)
        self.row, self.column, self.text = row, column, text


def _check_hex_overflow(name: str, numbers: Any, texts: Any) -> None:
    """Raise ArrowInvalid for a hexadecimal number that is too large for a column of integers with signs."""
    unsigned = pc.match_substring_regex(texts, r"^\s*0[xX]")
    wrapped = pc.filter(texts, pc.and_(pc.fill_null(pc.less(numbers, 0), False), unsigned))
    if len(wrapped):
        raise pa.ArrowInvalid(
            f"{cut_text(wrapped[0].as_py())} in column {name!r} is more than an {numbers.type} holds; say "
            f"types={{{name!r}: 'u{numbers.type}'}}, or 'string'"
        )


def _check_whole(name: str, floats: Any, texts: Any, large: Any) -> None:
    """Raise PrecisionLossError for the first large float of a column that is not the integer that is written."""
    written = pc.and_kleene(large, pc.match_substring_regex(texts, r"^\s*[+-]?[0-9]+\s*$"))
    for row in pc.indices_nonzero(pc.fill_null(written, False)).to_pylist():
        if int(texts[row].as_py()) != floats[row].as_py():
            raise PrecisionLossError(row, name, texts[row].as_py().strip())


def as_floats(table: Any, schema: Any, wanted: Sequence[str] | None) -> Any:
    """Return the wanted columns of a table that are read as float64, as such."""
    floats = [name for name in table.column_names if schema.field(name).type == pa.float64()]
    names = [name for name in floats if wanted is None or name in wanted]
    return pa.table({name: table.column(name).cast(pa.float64(), safe=False) for name in names})


def joined_lines(lines: Sequence[TextLine]) -> bytes:
    return b"\n".join(line.data for line in lines) + b"\n"
