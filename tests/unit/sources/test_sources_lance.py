"""Tables of Lance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pecan_ray.errors import ColumnError, SourceNotFoundError
from pecan_ray.sources import Lance
from tests.source_contract import check_contract

lance = pytest.importorskip("lance")

ROWS = 25


def row_of(n: int) -> dict[str, Any]:
    """A row as it is read."""
    return {"n": np.int64(n), "text": f"text {n}", "vector": np.array([n, n + 0.5], np.float32)}


EXPECTED = [row_of(n) for n in range(ROWS)]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three fragments."""
    table = pa.table(
        {
            "n": pa.array(range(ROWS), pa.int64()),
            "text": [one["text"] for one in EXPECTED],
            "vector": pa.array([one["vector"].tolist() for one in EXPECTED], pa.list_(pa.float32(), 2)),
        }
    )
    lance.write_dataset(table, str(tmp_path / "rows.lance"), max_rows_per_file=10, max_rows_per_group=10)
    return str(tmp_path / "rows.lance")


def test_fragments_are_splits(uri: str) -> None:
    source = Lance(uri, batch_rows=4)
    check_contract(source, EXPECTED, splits=3)
    assert source.num_elements() == ROWS


def test_a_version_stays_what_it_was_while_rows_are_deleted_and_added(uri: str) -> None:
    source = Lance(uri, ["n"])
    before, identity = list(source.splits()), source.identity()
    table = lance.dataset(uri)
    table.delete("n = 3 or n >= 20")
    assert source.identity() != identity
    assert [row["n"] for row in source.read(before[0])] == list(range(10))
    left = [n for n in range(20) if n != 3]
    check_contract(source, [{"n": np.int64(n)} for n in left], splits=2)
    check_contract(Lance(uri, ["n"], version=1), [{"n": np.int64(n)} for n in range(ROWS)], splits=3)


def test_a_column_that_is_not_there_and_a_table_that_is_none_are_named(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ColumnError, match=r"rows.lance has no column 'label'; there are \['n', 'text', 'vector'\]"):
        list(Lance(uri, "label").splits())
    with pytest.raises(SourceNotFoundError, match="cannot be opened as a table of Lance"):
        list(Lance(str(tmp_path / "none.lance")).splits())
