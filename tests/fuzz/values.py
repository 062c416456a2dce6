"""Whole files of random types and values: pyarrow and Python say which values a file holds."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from tests.fuzz.formats import Reading, each_line
from tests.unit.sources.test_every_type import COUNTED, LEAVES, NS, worded

MOST_ROWS = 30


def as_it_is(rng: random.Random, data: bytes) -> bytes:
    """Damage nothing."""
    return data


# --- tables of Arrow -------------------------------------------------------------------------------------------


def parquet_table(rng: random.Random) -> bytes:
    """Return a Parquet file of columns of random types, some in lists; tests/unit/sources has those that are nested."""
    how = {
        "row_group_size": rng.choice((7, 100)),
        "compression": rng.choice(("none", "zstd", "snappy", "gzip")),
        "use_dictionary": rng.random() < 0.5,
        "data_page_version": rng.choice(("1.0", "2.0")),
        "version": rng.choice(("1.0", "2.4", "2.6")),
        "write_page_checksum": rng.random() < 0.7,
        "store_schema": rng.random() < 0.7,
        "use_compliant_nested_type": rng.random() < 0.7,
    }
    rows = rng.randrange(1, MOST_ROWS)
    columns: dict[str, Any] = {}
    written = b""
    while len(columns) < 3:
        name, out = f"c{len(columns)}", io.BytesIO()
        try:
            pq.write_table(pa.table({**columns, name: (column := _column(rng, rows))}), out, **how)
            pq.read_table(io.BytesIO(out.getvalue()), use_threads=False)
        except pa.ArrowException:  # Parquet does not hold it
            continue
        columns[name], written = column, out.getvalue()
    return written


def _column(rng: random.Random, rows: int) -> Any:
    """Return values of a random type or lists of these, one in six null."""
    kind, values = rng.choice([*LEAVES, *COUNTED])
    drawn = [np.float16(one) for one in values] if kind == pa.float16() else values

    def draw() -> Any:
        return rng.choice(drawn) if drawn and rng.random() > 1 / 6 else None

    if rng.random() < 0.5:
        return pa.array([draw() for _ in range(rows)], kind)
    return pa.array([[draw() for _ in range(rng.randrange(4))] for _ in range(rows)], pa.list_(kind))


def _words(scalar: Any) -> Any:
    """Return a scalar of Arrow in the words of `worded`: counts in nanoseconds, None for NaN."""
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(kind):
        return scalar.value * NS[getattr(kind, "unit", "D" if kind == pa.date32() else "ms")]
    if pa.types.is_struct(kind):
        return {field.name: _words(scalar[field.name]) for field in kind}
    if pa.types.is_map(kind):
        return [(_words(one["key"]), _words(one["value"])) for one in scalar.values]
    if kind.num_fields:
        return [_words(one) for one in scalar.values]
    value = scalar.as_py()
    return (None if value != value else float(value)) if pa.types.is_floating(kind) else value


def _rows(table: Any) -> list[str]:
    rows = zip(*table.columns, strict=True)
    return [repr({name: _words(value) for name, value in zip(table.schema.names, row, strict=True)}) for row in rows]


def parquet_values(path: Path) -> Reading:
    """Read with pyarrow, all at once."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        groups = [file.read_row_group(number, use_threads=False) for number in range(file.num_row_groups)]
        table = pa.concat_tables(groups) if groups else file.read()  # dictionaries within are read by groups alone
        table.validate(full=True)
        if len(set(table.schema.names)) < len(table.schema.names):
            return Reading(problem="a name comes twice")
        return Reading(_rows(table), None if table.num_rows == file.metadata.num_rows else "rows are missing")
    except Exception as error:
        return Reading(problem=repr(error))


def worded_row(row: dict[str, Any]) -> str:
    """Return a row in the words of the references."""
    return repr({name: worded(value) for name, value in row.items()})


# --- JSON ------------------------------------------------------------------------------------------------------


def json_values(rng: random.Random) -> bytes:
    """Return objects of numbers of all sizes, texts of all planes, and lists and objects of these."""
    numbers = (0, 1, -1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 0.5, 1e308, 5e-324, -0.0, 1e16)

    def text() -> str:
        return "".join(chr(rng.choice((0, 9, 10, 0x22, 0x5C, 0x85, 0x2028, 0xE9, 0xFEFF, 0x1F600))) for _ in range(3))

    def value(depth: int) -> Any:
        kind = rng.randrange(6 if depth else 4)
        if kind < 4:
            return (rng.choice(numbers), rng.choice(numbers), text(), rng.choice((None, True)))[kind]
        return {text(): value(depth - 1)} if kind == 4 else [value(depth - 1) for _ in range(rng.randrange(4))]

    rows = [{f"c{n}": value(2) for n in range(rng.randrange(1, 4))} for _ in range(rng.randrange(1, MOST_ROWS))]
    written = (json.dumps(row, ensure_ascii=rng.random() < 0.5) for row in rows)
    return "".join(row + rng.choice(("\n", "\n", "\r\n", "\n\n", "\n \n")) for row in written).encode()


def json_worded(row: dict[str, Any]) -> str:
    """Return an object with the numbers of Python: whole ones beside fractions in a list are what they are."""
    return repr(_floats_where_mixed(worded(row)))


def json_values_reference(path: Path) -> Reading:
    """Read with Python's json, which takes a line of spaces for nothing."""

    def take(line: bytes) -> str:
        value = json.loads(line) if line.strip() else None
        if not isinstance(value, dict) and line.strip():
            raise ValueError("no object")
        return repr(_floats_where_mixed(value))

    reading = each_line(path.read_bytes(), take)
    return Reading([row for row in reading.elements if row != "None"], reading.problem)


def _floats_where_mixed(value: Any) -> Any:
    """Return a value in which lists of numbers with fractions are of floats, where these hold them exactly."""
    if isinstance(value, dict):
        return {name: _floats_where_mixed(one) for name, one in value.items()}
    if not isinstance(value, list):
        return value
    return [float(one) if type(one) is int and float(one) == one else _floats_where_mixed(one) for one in value]
