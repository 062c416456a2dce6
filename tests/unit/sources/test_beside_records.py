"""Columns that folders name, what stands for nulls, and parts of structures."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray.errors import ColumnError, PlanError
from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords
from tests.sample_files import framed
from tests.source_contract import check_columns, elements_of, plain
from tests.unit.sources.test_sources_tfrecord import example

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
        (folder / "a.tfrecord").write_bytes(framed(example(x=[row]).SerializeToString()) * 2)


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


def test_partitions_that_mean_nothing_are_refused() -> None:
    wrong: list[Any] = [1, "label", {"label": "text"}, None]
    for given in wrong:
        with pytest.raises(PlanError, match="partitions"):
            Parquet("/nowhere", partitions=given)


def test_nulls_become_what_is_said(tmp_path: Path) -> None:
    columns = {
        "n": pa.array([1, None], pa.uint8()),
        "f": pa.array([0.5, None], pa.float32()),
        "t": pa.array(["a", None]).dictionary_encode(),
        "d": pa.array([None, 0], pa.timestamp("ms")),
        "l": pa.array([[1], None], pa.list_(pa.int8())),
    }
    path, cells, lines = (str(tmp_path / f"a.{ending}") for ending in ("parquet", "csv", "jsonl"))
    pq.write_table(pa.table(columns), path)
    Path(cells).write_text("n,f\n1,\n,0.5\n")
    Path(lines).write_text('{"n": null, "m": null}\n{"n": 3}\n')
    day, epoch = datetime.datetime(2024, 5, 6), datetime.datetime(1970, 1, 1)
    first, second = elements_of(Parquet(path, columns=list("nftd"), fill={"n": 255, "f": -1, "t": "", "d": day}))
    rows = [{"n": 1, "f": 0.5, "t": "a", "d": day}, {"n": 255, "f": -1.0, "t": "", "d": epoch}]
    assert plain([first, second]) == rows
    assert (second["n"].dtype, second["f"].dtype) == (np.uint8, np.float32)
    of_cells = plain(elements_of(Csv(cells, types={"n": "int8"}, fill={"n": -1, "f": 2})))
    assert of_cells == [{"n": 1, "f": 2.0}, {"n": -1, "f": 0.5}]
    filled = elements_of(JsonLines(lines, fill={"n": 0}, types={"n": "uint8"}))
    assert filled == [{"n": 0, "m": None}, {"n": 3}] and filled[0]["n"].dtype == np.uint8
    for name, value in {"n": 256, "f": "a", "t": 1, "d": 1.5, "l": 1}.items():
        with pytest.raises(PlanError, match=rf"fill\['{name}'\] = .* is no value of column '{name}' of .*a\.parquet"):
            elements_of(Parquet(path, fill={name: value}))
    with pytest.raises(PlanError, match=r"fill\['n'\] must be"):
        Parquet(path, fill={"n": [1]})
    for lacking in (Parquet(path, fill={"m": 1}), Csv(cells, fill={"m": 1})):
        with pytest.raises(ColumnError, match=r"no column .m."):
            elements_of(lacking)


def test_masks_tell_where_nulls_were(tmp_path: Path) -> None:
    mask = {"n": "no n", "f": "no f"}
    path, cells, lines = (str(tmp_path / f"a.{ending}") for ending in ("parquet", "csv", "jsonl"))
    pq.write_table(pa.table({"n": [1, None, 3], "f": [None, 0.5, math.nan], "t": "abc"}), path)
    want = {"n": [1, 0, 3], "no n": [False, True, False], "no f": [True, False, False]}
    Path(cells).write_text("n,f\n1,\n,0.5\n3,1\n")
    Path(lines).write_text('{"n": 1, "f": null}\n{"n": null, "f": 0.5}\n{"n": 3, "f": 1}\n{}\n')
    for source in (
        Parquet(path, columns=["n", "f"], fill={"n": 0}, mask=mask, batch_rows=2),
        Csv(cells, types={"n": "int8"}, fill={"n": 0}, mask=mask),
        JsonLines(lines, types={"f": "float32"}, fill={"n": 0}, mask=mask),
    ):
        rows = plain(elements_of(source))
        assert {name: [row[name] for row in rows[:3]] for name in want} == want
        assert rows[3:] == [{}] * (type(source) is JsonLines)
    assert plain(elements_of(Parquet(path, columns=["n"], mask={"n": "m"})))[1] == {"n": None, "m": True}
    for wrong in ({"n": "f"}, {"x": "y"}):
        with pytest.raises(ColumnError, match="mask= "):
            elements_of(Parquet(path, mask=wrong))
    for file in (cells, lines):
        (tmp_path / "m=1").mkdir(exist_ok=True)
        Path(file).rename(tmp_path / "m=1" / Path(file).name)
    for clashing in (JsonLines(f"{tmp_path}/*/*.jsonl", mask={"n": "m"}), Csv(f"{tmp_path}/*/*.csv", mask={"n": "m"})):
        with pytest.raises(ColumnError, match="a folder is called m="):
            elements_of(clashing)
    for broken in ("n", {"n": 1}, {"n": "m", "f": "m"}, {"n": "n"}):
        with pytest.raises(PlanError, match="mask must"):
            Parquet(path, mask=broken)  # type: ignore[arg-type]  # what a user may write


def test_parts_of_structures_are_read_alone_and_columns_that_are_called_like_one_come_first(tmp_path: Path) -> None:
    kind = pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.string(), "d": pa.int8()})})
    whole = [{"a": 1, "b": {"c": "x", "d": 2}}, None]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"s": pa.array(whole, kind), "l": pa.array([[{"a": 1, "b": 2}], []]), "s.a": [7, 8]}), path)
    read = plain(elements_of(Parquet(path, columns=["s.b.c", "l.list.element.b"])))
    assert read == [{"s": {"b": {"c": "x"}}, "l": [{"b": 2}]}, {"s": None, "l": []}]
    held = {"s": [{"a": 1, "b": 2}], "s.a": [7], "m": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), "s.b.c": [8]}
    pq.write_table(pa.table(held), path)
    rows = {"s": {"a": 1, "b": 2}, "s.a": 7, "s.b.c": 8}
    for columns in (["s.a"], ["s"], ["s", "s.a"], ["s.b.c"]):
        assert plain(elements_of(Parquet(path, columns=columns))) == [{name: rows[name] for name in columns}]
    assert plain(elements_of(Parquet(path, columns=["s.b", "s.a"]))) == [{"s": {"b": 2}, "s.a": 7}]
    for none in ("s.b.x", "s.x"):
        with pytest.raises(ColumnError, match=f"no column '{none}'"):
            elements_of(Parquet(path, columns=[none]))


def test_options_count_for_the_identity(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps({"x": 1}))
    path = str(tmp_path / "a")
    options: list[dict[str, Any]] = [{}, {"types": {"x": "int8"}}, {"fill": {"x": 1}}, {"partitions": False}]
    options.append({"mask": {"x": "y"}})
    assert len({JsonLines(path, **how).identity() for how in options}) == len(options)
    of_parquet: list[dict[str, Any]] = [{}, {"mask": {"x": "y"}}, {"int96_unit": "ns"}, {"columns": ["x"]}]
    assert len({Parquet(path, **how).identity() for how in of_parquet}) == len(of_parquet)
