"""Values come as they are stored, or are refused in words: dates beyond 64 bits of nanoseconds, large integers."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import pecan_ray as pecan
from pecan_ray.errors import BatchShapeError, OutputTypeError, PlanError
from pecan_ray.sources import Arrays, Csv, Items, JsonLines, Parquet, csv_table
from tests.source_contract import elements_of, plain

FAR = [datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1), datetime.datetime(2024, 5, 6, 7, 8, 9, 10), None]
ARROW = int(pa.__version__.partition(".")[0])
NANOSECONDS = 1_714_953_600_123_456_789


def int96(path: Path, columns: dict[str, Any]) -> str:
    """Write a table with moments as INT96, several row groups of two rows."""
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True, row_group_size=2)
    return str(path)


def far_columns() -> dict[str, Any]:
    """Far moments: flat, nested once and twice."""
    kind = pa.timestamp("us")
    return {
        "t": pa.array(FAR, kind),
        "n": pa.array(range(4), pa.int64()),
        "list": pa.array([FAR, [], None, FAR[:1]], pa.list_(kind)),
        "struct.s": pa.array([{"a": one, "b": 1} for one in FAR], pa.struct([("a", kind), ("b", pa.int8())])),
        "deep": pa.array([[{"a": one}] for one in FAR], pa.list_(pa.struct([("a", kind)]))),
        "map": pa.array([[("x", one)] for one in FAR], pa.map_(pa.string(), kind)),
    }


def test_far_moments_of_int96_are_those_that_are_stored(tmp_path: Path) -> None:
    path = int96(tmp_path / "a.parquet", far_columns())
    held = {name: column.to_pylist() for name, column in far_columns().items()}
    rows = plain(elements_of(Parquet(path)))
    assert rows == [{name: held[name][n] for name in held} for n in range(len(FAR))]
    some = plain(elements_of(Parquet(path, columns=["struct.s", "n"], batch_rows=1)))
    assert some == [{"struct.s": {"a": one, "b": 1}, "n": n} for n, one in enumerate(FAR)]
    assert plain(elements_of(Parquet(path, columns=["struct.s.a"]))) == [{"struct.s": {"a": one}} for one in FAR]
    for name in held.keys() - {"n"}:
        with pytest.raises(PlanError, match=rf"'{name}' of .*a\.parquet \(INT96\).*9999-12-31.*int96_unit='us'"):
            elements_of(Parquet(path, columns=[name], int96_unit="ns"))


def test_nanoseconds_of_int96_are_refused_as_microseconds(tmp_path: Path) -> None:
    early = [-1] if ARROW >= 23 else []  # Arrow 21 and before reads microseconds before 1970 as some in 2554: refused
    moments = pa.array([NANOSECONDS, *early, None, 0], pa.timestamp("ns"))
    path = int96(tmp_path / "a.parquet", {"t": moments})
    with pytest.raises(PlanError, match=r"'t' of .*2024-05-06T00:00:00\.123456.*int96_unit='ns'"):
        elements_of(Parquet(path))
    found = np.array([row["t"] for row in elements_of(Parquet(path, int96_unit="ns"))])
    assert found.dtype == "M8[ns]" and found.tolist() == [NANOSECONDS, *early, None, 0]
    with pytest.raises(PlanError, match="int96_unit must be one of"):
        Parquet(path, int96_unit="ms")  # type: ignore[arg-type]  # what a user may write


BIG = 2**63 + 1


def integers(value: Any) -> list[int]:
    """All integers of a value, whatever holds them."""
    return [int(one) for one in np.asarray(value, object).ravel()]


@pytest.mark.parametrize(
    ("kind", "lists"),
    [
        (np.uint64, [[BIG, 7], [[BIG, 7], [2**63 + 3, 9]]]),
        (np.int64, [[[1, 2], [3, 2**53 + 1]]]),
        (np.float64, [[2**53, 0.5], []]),
        (list, [[-1, 2**64 - 1], [2**64, 1], [2**53 + 1, 0.5], [[1.5, 2], [3, 2**53 + 1]], [True, 2], [[1], [True]]]),
    ],
)
def test_lists_of_json_keep_their_numbers(tmp_path: Path, kind: Any, lists: list[Any]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"v": written}) + "\n" for written in lists))
    for row, written in zip(elements_of(JsonLines(str(tmp_path / "a.jsonl"))), lists, strict=True):
        value, found = row["v"], plain(row["v"])
        assert type(value) is list if kind is list else value.dtype == kind
        assert found == written and (repr(found) == repr(written) or kind is np.float64)


@pytest.mark.parametrize(
    ("cells", "refused", "remedy"),
    [
        (["9007199254740993", "", "5"], "9007199254740993", "int64"),
        (["5", "9223372036854775809"], "9223372036854775809", "uint64"),
        (["-5", "-9223372036854775809"], "-9223372036854775809", "string"),
        (["0.5", "9007199254740993"], "9007199254740993", "int64"),
    ],
)
def test_an_integer_of_csv_that_would_be_rounded_is_refused(
    tmp_path: Path, cells: list[str], refused: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,n\n" + "".join(f"{cell},{n}\n" for n, cell in enumerate(cells)))
    with pytest.raises(PlanError, match=rf"^{refused} in column 'id' would be rounded, .*\.csv.*{{'id': '{remedy}'}}"):
        list(Csv(str(path)).splits())
    if "0.5" not in cells:
        rows = elements_of(Csv(str(path), types={"id": remedy}))
        assert [str("" if row["id"] is None else row["id"]) for row in rows] == cells
    assert [row["n"] for row in elements_of(Csv(str(path), columns=["n"]))] == list(range(len(cells)))
    assert len(elements_of(Csv(str(path), types={"id": "float64"}))) == len(cells)
    monkeypatch.setattr(csv_table, "SAMPLE_BYTES", 1000)
    path.write_text("id\n\n1.0\n" + "3\n" * 1000 + "9007199254740992\n9007199254740993\n")
    with pytest.raises(PlanError, match=r"^9007199254740993 in column 'id' would be rounded, line 1005 of"):
        elements_of(Csv(str(path)))  # behind the sample


def test_an_array_of_a_list_keeps_its_integers_and_texts() -> None:
    array = Arrays(x=[BIG, 7]).arrays["x"]
    assert array.dtype == np.uint64 and array.tolist() == [BIG, 7]
    with pytest.raises(PlanError, match=f"no array can be made of x: the integer {2**53 + 1} would be rounded"):
        Arrays(x=[2**53 + 1, 0.5])
    for texts in ([b"a\0", b"b"], ["a\0", "b"], [1, "a"], ["a", b"b"], [None, "a"]):
        assert [row["x"] for row in elements_of(Arrays(x=texts))] == texts
    assert Arrays(x=["a", "bc"]).arrays["x"].dtype == "U2"


def test_moments_of_several_units_do_not_wrap_around() -> None:
    near, far = np.datetime64(0, "ns"), np.datetime64("9999-01-01", "s")
    for rows in ([near, far], [far, near]):
        with pytest.raises(PlanError, match=r"datetime64\[ns\] does not hold all of its values"):
            Arrays(x=rows)
        pipe = pecan.PecanPipeline(Items([{"x": one} for one in rows]), config=pecan.Config(reorder="off")).batch(2)
        with pytest.raises(BatchShapeError, match="Convert elements to one dtype"):
            list(pipe.iter_batches(debug=True))
    day = np.datetime64("2020-01-01", "D")
    assert Arrays(x=[day, near]).arrays["x"].astype("M8[D]").tolist() == [day.item(), near.astype("M8[D]").item()]
    with pytest.raises(PlanError, match="timedelta64"):
        Arrays(x=[np.timedelta64(1, "s"), 5])


def test_lists_in_a_batch_keep_their_integers() -> None:
    def batches(operator: str, rows: list[Any], *given: Any, **how: Any) -> list[Any]:
        pipe = pecan.PecanPipeline(Items([{"v": held} for held in rows]), config=pecan.Config(reorder="off"))
        return list(getattr(pipe, operator)(*given, **how).iter_batches(debug=True))

    for operator in ("batch", "padded_batch"):
        (batch,) = batches(operator, [[BIG, 7], [BIG, 9]], 2)
        assert integers(batch["v"]) == [BIG, 7, BIG, 9]
    mixed = [[2**53 + 1, 0.5], [2**53 + 3, 0.5]]
    assert [column.tolist() for column in batches("batch", mixed, 2)[0]["v"]] == [[2**53 + 1, 2**53 + 3], [0.5, 0.5]]
    with pytest.raises(BatchShapeError, match=f"the integer {2**53 + 1} would be rounded"):
        batches("padded_batch", mixed, 2)
    with pytest.raises(OutputTypeError, match="pack: no type of whole numbers holds tokens of int64, uint64"):
        batches("pack", [np.array([-1]), np.array([BIG], np.uint64)], 4, on="v")
