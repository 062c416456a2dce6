"""What stands beside records, or in parts of them that few have, is yielded or refused."""

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

from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError
from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords
from tests.source_contract import check_columns, elements_of, plain
from tests.unit.sources.test_sources_tfrecord import framed

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


def example(**features: Any) -> Any:
    tf = pytest.importorskip("tensorflow")
    made = tf.train.Example()
    for name, values in features.items():
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        getattr(made.features.feature[name], kind).value.extend(values)
    return made


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


@pytest.mark.parametrize("given", [1, "label", {"label": "text"}, None])
def test_partitions_that_mean_nothing_are_refused(given: Any) -> None:
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
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), path)
    day = datetime.datetime(2024, 5, 6)
    first, second = elements_of(Parquet(path, columns=list("nftd"), fill={"n": 255, "f": -1, "t": "", "d": day}))
    assert plain([first, second]) == [
        {"n": 1, "f": 0.5, "t": "a", "d": day},
        {"n": 255, "f": -1.0, "t": "", "d": datetime.datetime(1970, 1, 1)},
    ]
    assert (second["n"].dtype, second["f"].dtype) == (np.uint8, np.float32)
    for name, value in {"n": 256, "f": "a", "t": 1, "d": 1.5, "l": 1}.items():
        with pytest.raises(PlanError, match=rf"fill\['{name}'\] = .* is no value of column '{name}' of .*a\.parquet"):
            elements_of(Parquet(path, fill={name: value}))
    with pytest.raises(PlanError, match=r"fill\['n'\] must be"):
        Parquet(path, fill={"n": [1]})
    with pytest.raises(ColumnError, match=r"no column .m. among those that are read"):
        elements_of(Parquet(path, fill={"m": 1}))
    (tmp_path / "a.csv").write_text("n,f\n1,\n,0.5\n")
    assert plain(elements_of(Csv(str(tmp_path / "a.csv"), types={"n": "int8"}, fill={"n": -1, "f": 2}))) == [
        {"n": 1, "f": 2.0},
        {"n": -1, "f": 0.5},
    ]
    with pytest.raises(ColumnError, match="no column 'm'"):
        elements_of(Csv(str(tmp_path / "a.csv"), fill={"m": 1}))
    (tmp_path / "a.jsonl").write_text('{"n": null, "m": null}\n{"n": 3}\n')
    filled = elements_of(JsonLines(str(tmp_path / "a.jsonl"), fill={"n": 0}, types={"n": "uint8"}))
    assert filled == [{"n": 0, "m": None}, {"n": 3}] and filled[0]["n"].dtype == np.uint8


def test_masks_tell_where_nulls_were(tmp_path: Path) -> None:
    mask = {"n": "no n", "f": "no f"}
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [1, None, 3], "f": [None, 0.5, math.nan], "t": "abc"}), path)
    want = {"n": [1, 0, 3], "no n": [False, True, False], "no f": [True, False, False]}
    (tmp_path / "a.csv").write_text("n,f\n1,\n,0.5\n3,1\n")
    (tmp_path / "a.jsonl").write_text('{"n": 1, "f": null}\n{"n": null, "f": 0.5}\n{"n": 3, "f": 1}\n{}\n')
    for source in (
        Parquet(path, columns=["n", "f"], fill={"n": 0}, mask=mask, batch_rows=2),
        Csv(str(tmp_path / "a.csv"), types={"n": "int8"}, fill={"n": 0}, mask=mask),
        JsonLines(str(tmp_path / "a.jsonl"), types={"f": "float32"}, fill={"n": 0}, mask=mask),
    ):
        rows = plain(elements_of(source))
        assert {name: [row[name] for row in rows[:3]] for name in want} == want
        assert rows[3:] == [{}] * (type(source) is JsonLines)
    assert plain(elements_of(Parquet(path, columns=["n"], mask={"n": "m"})))[1] == {"n": None, "m": True}
    for wrong in ({"n": "f"}, {"x": "y"}):
        with pytest.raises(ColumnError, match="mask= "):
            elements_of(Parquet(path, mask=wrong))
    (tmp_path / "m=1").mkdir()
    (tmp_path / "a.jsonl").rename(tmp_path / "m=1" / "a.jsonl")
    (tmp_path / "a.csv").rename(tmp_path / "m=1" / "a.csv")
    for clashing in (
        JsonLines(tmp_path / "*" / "*.jsonl", mask={"n": "m"}),
        Csv(tmp_path / "*" / "*.csv", mask={"n": "m"}),
    ):
        with pytest.raises(ColumnError, match="a folder is called m="):
            elements_of(clashing)
    for broken in ("n", {"n": 1}, {"n": "m", "f": "m"}, {"n": "n"}):
        with pytest.raises(PlanError, match="mask must"):
            Parquet(path, mask=broken)  # type: ignore[arg-type]  # what a user may write


def test_parts_of_structures_are_read_alone(tmp_path: Path) -> None:
    kind = pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.string(), "d": pa.int8()})})
    rows = [{"a": 1, "b": {"c": "x", "d": 2}}, None]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"s": pa.array(rows, kind), "l": pa.array([[{"a": 1, "b": 2}], []]), "s.a": [7, 8]}), path)
    read = plain(elements_of(Parquet(path, columns=["s.b.c", "l.list.element.b"])))
    assert read == [{"s": {"b": {"c": "x"}}, "l": [{"b": 2}]}, {"s": None, "l": []}]
    with pytest.raises(ColumnError, match=r"no column 's.x'"):
        elements_of(Parquet(path, columns=["s.x"]))


def test_a_column_that_is_called_like_a_part_of_a_structure_comes_first(tmp_path: Path) -> None:
    path = str(tmp_path / "a.parquet")
    held = {"s": [{"a": 1, "b": 2}], "s.a": [7], "m": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), "s.b.c": [8]}
    pq.write_table(pa.table(held), path)
    rows = {"s": {"a": 1, "b": 2}, "s.a": 7, "s.b.c": 8}
    for columns in (["s.a"], ["s"], ["s", "s.a"], ["s.b.c"]):
        assert plain(elements_of(Parquet(path, columns=columns))) == [{name: rows[name] for name in columns}]
    assert plain(elements_of(Parquet(path, columns=["s.b", "s.a"]))) == [{"s": {"b": 2}, "s.a": 7}]
    with pytest.raises(ColumnError, match=r"no column 's.b.x'"):
        elements_of(Parquet(path, columns=["s.b.x"]))


def sequence(steps: dict[str, list[list[Any]]], **context: Any) -> bytes:
    tf = pytest.importorskip("tensorflow")
    made = tf.train.SequenceExample(context=example(**context).features)
    for name, values in steps.items():
        for one in values:
            feature = made.feature_lists.feature_list[name].feature.add()
            kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(one[0])] if one else "int64_list"
            getattr(feature, kind).value.extend(one)
        made.feature_lists.feature_list[name].SetInParent()
    return bytes(made.SerializeToString())


def parsed(path: Path, *records: bytes, **how: Any) -> list[Any]:
    path.write_bytes(b"".join(map(framed, records)))
    return elements_of(TFRecords(str(path), parse=True, **how))


def test_feature_lists_are_lists_of_lists(tmp_path: Path) -> None:
    steps: dict[str, list[list[Any]]] = {
        "frames": [[b"a"], [b"bb"]],
        "ids": [[1, 2], [3]],
        "even": [[0.5], [1.5]],
        "none": [],
    }
    (element,) = parsed(tmp_path / "a", sequence(steps, label=[3]))
    assert plain(element) == {**steps, "label": 3}
    assert element["even"].dtype == np.float32 and element["ids"][1].dtype == np.int64
    features = {"frames": "list<binary>", "even": "list<float32>", "none": "list<list<int64>>", "label": "list<int64>"}
    (fixed,) = parsed(tmp_path / "a", sequence(steps, label=[3]), features=features)
    assert plain(fixed) == {**steps, "frames": [b"a", b"bb"], "even": [0.5, 1.5], "label": [3]}
    assert fixed["none"].shape == (0, 0) and fixed["none"].dtype == np.int64
    for bad, said in (({"ids": "list<int64>"}, "other numbers of values"), ({"even": "list<int64>"}, "of float32")):
        with pytest.raises(CorruptSourceError, match=rf"element 0 of .*{said}"):
            parsed(tmp_path / "a", sequence(steps), features=bad)
    with pytest.raises(CorruptSourceError, match="'label' is a feature of the context, and"):
        parsed(tmp_path / "a", sequence({"label": [[1]]}, label=[3]))
    with pytest.raises(CorruptSourceError, match="steps of 'x' are of different types"):
        parsed(tmp_path / "a", sequence({"x": [[1], [0.5]]}))


UNKNOWN = {
    "example": b"\x1a\x01x",
    "features": b"\x0a\x02\x12\x00",
    "feature": b"\x0a\x09\x0a\x07\x0a\x01a\x12\x02\x22\x00",
}


@pytest.mark.parametrize("extra", UNKNOWN.values(), ids=UNKNOWN)
def test_examples_with_unknown_fields_are_refused(tmp_path: Path, extra: bytes) -> None:
    good = example(label=[3]).SerializeToString()
    with pytest.raises(CorruptSourceError, match=r"element 1 of .*fields that Examples have not.*parse=False"):
        parsed(tmp_path / "a", good, good + extra)


def test_features_fix_what_a_column_is(tmp_path: Path) -> None:
    features = {"ids": "list<int64>", "label": "int64", "tags": "list<binary>"}
    records = [example(ids=[1], label=[1], tags=[b"a"]), example(ids=[1, 2], label=[2], more=[0.5])]
    first, second = parsed(tmp_path / "a", *(one.SerializeToString() for one in records), features=features)
    assert [first["ids"].tolist(), second["ids"].tolist()] == [[1], [1, 2]]
    assert [first["tags"].tolist(), second["tags"].tolist()] == [[b"a"], []] and second["more"] == 0.5
    assert elements_of(TFRecords(str(tmp_path / "a"), features=features))[0]["label"] == 1  # parses without being told
    for bad in (example(ids=[1]), example(ids=[0.5], label=[1]), example(ids=[1], label=[1, 2])):
        with pytest.raises(CorruptSourceError, match=r"element 0 of .*features="):
            parsed(tmp_path / "a", bad.SerializeToString(), features=features)
    for given in ({"ids": "int32"}, {"ids": int}, ["ids"]):
        with pytest.raises(PlanError, match="features"):
            TFRecords("/nowhere", features=given)  # type: ignore[arg-type]  # what a user may write


def test_options_count_for_the_identity(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(json.dumps({"x": 1}))
    path = str(tmp_path / "a")
    options: list[dict[str, Any]] = [{}, {"types": {"x": "int8"}}, {"fill": {"x": 1}}, {"partitions": False}]
    options.append({"mask": {"x": "y"}})
    assert len({JsonLines(path, **how).identity() for how in options}) == len(options)
