"""CSV files of numbers, booleans and text, and the values that Python makes of their cells."""

from __future__ import annotations

import csv
import io
import math
import random
from pathlib import Path
from typing import Any

from tests.fuzz.formats import Reading, csv_reference

TYPES = {"i": "int64", "f": "float64", "b": "bool", "s": "string"}
NULLS = frozenset(
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan"),
        *("1.#IND", "1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"),
    ]
)
"""What Arrow, and pandas, take for no value."""


def typed_file(rng: random.Random) -> bytes:
    """Return a column of each type, now and then with empty cells, or with one that is of another type."""
    cells = (
        ("0", "-7", "007", str(2**53 - 1), *("",) * (rng.random() < 0.2)),
        ("0.5", "-1e300", "1e-320", ".5", "3", "inf", *("", "NA", "nan") * (rng.random() < 0.4)),
        ("true", "false", "True", "FALSE", *("",) * (rng.random() < 0.2)),
        ("x", "é", "12", "1.50", "a,b", 'say "so"', "", "NA", "true", "2024-01-01"),
    )
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=rng.choice(("\n", "\r\n")))
    writer.writerow(TYPES)
    for _ in range(rng.randrange(30)):
        row = [rng.choice(column) for column in cells]
        if rng.random() < 0.02:
            row[rng.randrange(3)] = rng.choice(
                ("1.5", "x", str(2**63), "2", "yes", "1e400", "-1e999", "0x1F", " 4 ", "1_0")
            )
        writer.writerow(row)
    return text.getvalue().encode()


def typed_tokens(rng: random.Random, data: bytes) -> bytes:
    """Insert or replace what changes a number, or the cell that it stands in."""
    at = rng.randrange(len(data) + 1)
    token = rng.choice((b"-", b".", b"e", b"0", b"9" * 20, b"e999", b",", b"\n", b'"', b" ", b"+", b"x", b"\0", b"_"))
    return data[:at] + token + data[at + rng.randrange(2) :]


def inferred_reference(path: Path) -> Reading:
    reading = csv_reference(path)
    return Reading([tuple(map(value_of, row)) for row in reading.elements], reading.problem)


def typed_reference(path: Path) -> Reading:
    """Read in the same way, up to a number of the column of floats that is more than a float holds."""
    reading = inferred_reference(path)
    for at, row in enumerate(csv_reference(path).elements):
        value = reading.elements[at][1] if len(row) > 1 else None
        if isinstance(value, float) and math.isinf(value) and any(one.isdigit() for one in row[1]):
            return Reading(reading.elements[:at], f"{row[1]} is more than a float holds")
    return reading


def value_of(cell: Any) -> Any:
    """Return the value of a cell, as text or as we give it: None, a number (also for a boolean), or a text."""
    if isinstance(cell, str):
        cell = _number(cell)
    if cell is None or isinstance(cell, str):
        return cell
    number = float(cell)
    return None if math.isnan(number) else number


def _number(text: str) -> Any:
    """Return the number that a cell writes; None for no value, the text if it is neither."""
    bare = text.strip(" \t")
    if bare in NULLS:
        return None
    if bare.lower() in ("true", "false"):
        return float(bare.lower() == "true")
    try:
        return float(int(bare, 16)) if bare[:2].lower() == "0x" else float(bare)
    except ValueError:
        return text
