"""Parquet files of few bytes that stand for many."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray.errors import CorruptSourceError
from pecan_ray.sources import Parquet, parquet_rows
from tests.source_contract import elements_of


def parquet_bomb(path: Path, column: Any, **options: Any) -> None:
    """Write a file of few bytes whose column is as large as it is."""
    small = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "store_schema": False, "write_batch_size": 16}
    pq.write_table(pa.table({"s": column}), path, **{**small, **options})


def repeated(value: Any, rows: int) -> Any:
    """Return a column that holds a value once for all rows."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value]))


LONG = "x" * (1 << 20)
PLAIN: dict[str, Any] = {"use_dictionary": False}
BOMBS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "one value of 1 MiB in 16,384 rows": (lambda: repeated(LONG, 1 << 14), {}),
    "rows as long as those before": (lambda: [LONG] * 900, PLAIN | {"column_encoding": {"s": "DELTA_BYTE_ARRAY"}}),
    "long rows among many empty ones": (lambda: [""] * 20_000 + [LONG] * 900 + [""] * 20_000, PLAIN),
}

READ_IT = """
import itertools, resource, sys
from pecan_ray.sources import Parquet
resource.setrlimit(resource.RLIMIT_DATA, (3 << 28, 3 << 28))
source = Parquet(sys.argv[1])
(split,) = source.splits()
print(sum(len(columns["s"]) for columns in itertools.islice(source.read_columns(split), int(sys.argv[2]))))
"""


@pytest.mark.parametrize("kind", BOMBS)
def test_few_bytes_of_parquet_do_not_fill_the_memory(tmp_path: Path, kind: str) -> None:
    make, options = BOMBS[kind]
    column = make()
    parquet_bomb(tmp_path / "a.parquet", column, **options)
    some = len(column) == 1 << 14  # all of its 16 GiB take half a minute
    most, rows = (4, 4 * 64) if some else (sys.maxsize, len(column))
    del column
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    command = [sys.executable, "-c", READ_IT, str(tmp_path / "a.parquet"), str(most)]
    read_it = subprocess.run(command, capture_output=True, text=True, check=False)
    assert read_it.stdout == f"{rows}\n", read_it.stderr[-3000:]


def test_lists_of_parquet_that_unpack_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet_bomb(tmp_path / "a.parquet", pa.ListArray.from_arrays([0, 1 << 12], repeated(LONG, 1 << 12)))
    with pytest.raises(CorruptSourceError, match=r"element 0 of .*group 0, from byte 4 on.*'s.list.*unpack to 42949"):
        elements_of(Parquet(tmp_path / "a.parquet"))
    monkeypatch.setattr(parquet_rows, "LISTS_BYTES", 1 << 24)
    parquet_bomb(tmp_path / "a.parquet", pa.ListArray.from_arrays([0, 1 << 22], pa.nulls(1 << 22, pa.int64())))
    with pytest.raises(CorruptSourceError, match=r"unpack to 33554432 bytes"):
        elements_of(Parquet(tmp_path / "a.parquet"))


@pytest.mark.parametrize("rows", [None, 1, 7])
def test_rows_of_parquet_beyond_the_bound_are_refused(tmp_path: Path, rows: int | None) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": ["x" * (2000 if n == 57 else 100) for n in range(100)]}), path, row_group_size=50)
    assert len(elements_of(Parquet(path, batch_rows=rows, max_record_bytes=2500))) == 100
    source = Parquet(path, batch_rows=rows, max_record_bytes=1500)
    (split,) = source.splits()
    for start in (0, 10, 40, 57):
        came: list[Any] = []
        with pytest.raises(CorruptSourceError, match=r"more than max_record_bytes=1500") as caught:
            came.extend(source.read(split, start))
        assert (caught.value.element, caught.value.path) == (57, str(path)) and len(came) == 57 - start
        assert caught.value.offset == pq.ParquetFile(path).metadata.row_group(1).column(0).dictionary_page_offset
