"""The tables of types in docs/howto/sources.md say what is read: stored, in an element, in a batch."""

from __future__ import annotations

import datetime
import decimal
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import pecan_ray as pecan
from pecan_ray.errors import BatchShapeError
from pecan_ray.sources import Csv, JsonLines, Parquet, TFRecords
from tests.sample_files import example, framed, sequence
from tests.source_contract import elements_of

PAGE = Path(__file__).parents[3] / "docs/howto/sources.md"
WORDS = {**vars(pa), "datetime": datetime, "Decimal": decimal.Decimal, "null": None}


def array(values: list[Any], dtype: Any = None, shape: tuple[int, ...] = (-1,)) -> Any:
    """Return an array from what NumPy shows of it: of an empty one it shows the shape."""
    made = np.array(values, dtype)
    return made if made.size else made.reshape(shape)


SHOWN = {**vars(np), "np": np, "array": array, "datetime": datetime, "Decimal": decimal.Decimal}


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of a table, each without its quotes."""
    text = PAGE.read_text().partition(f"#### {heading}\n")[2].partition("\n#")[0]
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def parquet(path: Path, kind: str, value: str) -> Any:
    stored = pa.array([eval(value, dict(WORDS))] * 2, eval(kind, dict(WORDS)))
    pq.write_table(pa.table({"x": stored}), path)
    return Parquet(str(path))


def json_lines(path: Path, value: str, kind: str) -> Any:
    path.write_text(f'{{"x": {value}}}\n' * 2)
    return JsonLines(str(path), types={"x": kind} if kind else {})


def cells(path: Path, value: str, kind: str) -> Any:
    path.write_text("x,y\n" + "".join(f"{cell.strip()},1\n" for cell in value.split(";")))
    return Csv(str(path), types={"x": kind} if kind else {}, columns=["x"])


def tfrecords(path: Path, value: str, kind: str) -> Any:
    values = eval(value)
    in_steps = values and isinstance(values[0], list)
    record = sequence({"x": values}) if in_steps else example(x=values)
    path.write_bytes(framed(record) * 2)
    return TFRecords(str(path), parse=True, features={"x": kind} if kind else {})


FORMATS = {"Parquet, Lance": parquet, "JSON lines": json_lines, "CSV": cells, "TFRecords, parsed": tfrecords}


def described(column: Any) -> str:
    if isinstance(column, dict):
        return "{" + ", ".join(f"{name!r}: {described(one)}" for name, one in column.items()) + "}"
    if isinstance(column, tuple):
        return f"({', '.join(map(described, column))})"
    return f"{'objects' if column.dtype == object else column.dtype}{list(column.shape)}"


def batched(source: Any) -> str:
    pipe = pecan.PecanPipeline(source, config=pecan.Config(reorder="off")).batch(2)
    try:
        (batch,) = pipe.iter_batches(debug=True)
    except BatchShapeError:
        return "refused"
    return described(batch["x"])


@pytest.mark.parametrize(("heading", "cells"), [(name, row) for name in FORMATS for row in rows_of(name)], ids=str)
def test_types_are_what_the_documentation_says(tmp_path: Path, heading: str, cells: list[str]) -> None:
    first, second, element, batch = cells
    source = FORMATS[heading](tmp_path / "a", first, second)
    found = elements_of(source)
    # Evaluated, since releases of NumPy show values in their own ways.
    assert [repr(found[0]["x"]), batched(source)] == [repr(eval(element, dict(SHOWN))), batch]
    assert all(len(rows_of(name)) > 5 for name in FORMATS), "every format has a table"
