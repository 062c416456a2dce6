"""Columns that folders name; what stands for nulls, and parts of structures, is in test_readings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray.errors import ColumnError, SourceError
from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords
from tests.sample_files import example, framed
from tests.source_contract import check_columns, elements_of, plain

ROWS = [("cat", "05"), ("a/b c", "06"), (None, "07")]


def in_folders(root: Path) -> None:
    """Write a row to each of three folders, as Hive does, in the formats whose sources know of them."""
    for row, (label, month) in enumerate(ROWS):
        name = "__HIVE_DEFAULT_PARTITION__" if label is None else label.replace("/", "%2F").replace(" ", "%20")
        folder = root / f"label={name}" / f"month={month}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [row, row]}), folder / "a.parquet")
        (folder / "a.csv").write_text(f"x\n{row}\n{row}\n")
        (folder / "a.jsonl").write_text(f'{{"x": {row}}}\n' * 2)
        (folder / "a.tfrecord").write_bytes(framed(example(x=[row])) * 2)


SOURCES = {
    "parquet": Parquet,
    "csv": Csv,
    "jsonl": JsonLines,
    "tfrecord": lambda path, **how: TFRecords(path, parse=True, **how),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_folders_that_name_columns_are_columns(tmp_path: Path, kind: str) -> None:
    in_folders(tmp_path)
    source: Any = SOURCES[kind]
    expected = [{"x": row, "label": label, "month": month} for row, (label, month) in enumerate(ROWS) for _ in range(2)]

    def by_x(source: Any) -> list[Any]:
        return sorted(plain(elements_of(source)), key=lambda element: element["x"])

    assert by_x(source(f"{tmp_path}/**/*.{kind}")) == expected
    files = [str(path) for path in sorted(tmp_path.rglob(f"*.{kind}"))]
    assert by_x(source(files)) == expected
    typed = source(f"{tmp_path}/label=cat/*/*.{kind}", partitions={"month": "int8"})
    assert plain(elements_of(typed)) == [{"x": 0, "month": 5}] * 2 and elements_of(typed)[0]["month"].dtype == np.int8
    for one in (source(files[0]), source(f"{tmp_path}/**/*.{kind}", partitions=False)):
        assert all(set(element) == {"x"} for element in elements_of(one))
    with pytest.raises(ColumnError, match=r"folder label=.* of .* is no int8"):
        elements_of(source(f"{tmp_path}/*/*/*.{kind}", partitions={"label": "int8"}))
    with pytest.raises(ColumnError, match=r"No folder of .* says 'year'"):
        elements_of(source(files, partitions={"year": "int8"}))
    (tmp_path / f"b.{kind}").write_bytes(Path(files[0]).read_bytes())
    with pytest.raises(ColumnError, match=r"The folders of .* name .*'label', 'month'.*partitions=False"):
        elements_of(source([*files, f"{tmp_path}/b.{kind}"]))


def test_columns_of_folders_can_be_named_and_a_files_own_comes_first(tmp_path: Path) -> None:
    in_folders(tmp_path)
    csv = Csv(f"{tmp_path}/**/*.csv", columns=["month"])
    texts = TextLines(f"{tmp_path}/**/*.csv")
    source = Parquet(f"{tmp_path}/**/*.parquet", columns=["month"])
    for one, rows in ((csv, 2), (source, 2), (texts, 3)):
        found = elements_of(one)
        assert sorted(element["month"] for element in found) == sorted(["05", "06", "07"] * rows)
        assert set(found[0]) == ({"text", "label", "month"} if one is texts else {"month"})
        for split in one.splits():
            check_columns(one, split, list(one.read(split)))
    for name in (Path(split.path) for split in source.splits()):
        pq.write_table(pa.table({"month": [1], "x": [2]}), name)
    own = elements_of(Parquet(f"{tmp_path}/**/*.parquet", columns=["month", "x"]))
    assert plain(own) == [{"month": 1, "x": 2}] * 3
    with pytest.raises(ColumnError, match=r"no column 'year'. It has: month, x, label"):
        elements_of(Parquet(f"{tmp_path}/**/*.parquet", columns=["year", "label"]))


def test_lines_beside_a_bad_one_have_the_columns_of_their_folder(tmp_path: Path) -> None:
    (tmp_path / "m=1").mkdir()
    (tmp_path / "m=1" / "a.txt").write_bytes(b"a\n\xff\nb\n")
    source = TextLines(f"{tmp_path}/*/*.txt")
    (split,) = source.splits()
    first, bad, last = source.read_past_errors(split)
    assert isinstance(bad, SourceError) and plain([first, last]) == [{"text": "a", "m": "1"}, {"text": "b", "m": "1"}]


def test_a_mask_that_is_called_like_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m=1").mkdir()
    (tmp_path / "m=1" / "a.csv").write_text("n\n1\n")
    (tmp_path / "m=1" / "a.jsonl").write_text('{"n": 1}\n')
    for clashing in (JsonLines(f"{tmp_path}/*/*.jsonl", mask={"n": "m"}), Csv(f"{tmp_path}/*/*.csv", mask={"n": "m"})):
        with pytest.raises(ColumnError, match="a folder is called m="):
            elements_of(clashing)


def test_options_count_for_the_identity(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps({"x": 1}))
    path = str(tmp_path / "a")
    options: list[dict[str, Any]] = [{}, {"types": {"x": "int8"}}, {"fill": {"x": 1}}, {"partitions": False}]
    options.append({"mask": {"x": "y"}})
    assert len({JsonLines(path, **how).identity() for how in options}) == len(options)
    of_parquet: list[dict[str, Any]] = [{}, {"mask": {"x": "y"}}, {"int96_unit": "ns"}, {"columns": ["x"]}]
    assert len({Parquet(path, **how).identity() for how in of_parquet}) == len(of_parquet)
