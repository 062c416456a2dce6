"""Values come as they are stored, or are refused in words: every type of Arrow, far dates, large integers.

For files see tests/fuzz.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import compute as pc
from pyarrow import parquet as pq

import pecan_ray as pecan
from pecan_ray.errors import BatchShapeError, CorruptSourceError, OutputTypeError, PlanError
from pecan_ray.sources import Arrays, Csv, Items, Parquet, csv_table
from pecan_ray.sources.arrow import column_of, columns_of, values_of
from tests.long_form import examples
from tests.source_contract import elements_of, plain, same

NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1, "D": 86_400 * 10**9}
DAY_NS = NS["D"]
UNITS = ("s", "ms", "us", "ns")
MOST = 2**63 - 1


def whole_numbers() -> Iterator[tuple[Any, list[Any]]]:
    for bits in (8, 16, 32, 64):
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        yield getattr(pa, f"int{bits}")(), [low, high, 0, max(low, -(2**53) - 1)]
        yield getattr(pa, f"uint{bits}")(), [0, 2 * high + 1, min(2**53 + 1, 2 * high)]


def counted() -> Iterator[tuple[Any, list[Any]]]:
    """Types that count a unit, and the counts."""
    for unit in UNITS:
        yield pa.timestamp(unit), [-MOST, MOST, 0]
        yield pa.timestamp(unit, "America/New_York"), [-MOST, MOST, 0]
        yield pa.duration(unit), [-MOST, MOST, 0]
        kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
        yield kind, [0, DAY_NS // NS[unit] - 1]
    yield pa.date32(), [-(2**31) + 1, 2**31 - 1, 0]
    yield pa.date64(), [-(2**31) * 86_400_000, (2**31 - 1) * 86_400_000]  # as Parquet holds them


def others() -> Iterator[tuple[Any, list[Any]]]:
    yield pa.bool_(), [True, False]
    floats = ((pa.float16(), 65504.0), (pa.float32(), 3.4028234663852886e38), (pa.float64(), 1.7976931348623157e308))
    for kind, most in floats:
        yield kind, [0.0, -0.0, 1.5, math.inf, -math.inf, most, -most]
    yield pa.decimal128(38), [decimal.Decimal(10**38 - 1), decimal.Decimal(-1)]
    yield pa.decimal256(76, 70), [decimal.Decimal(10**76 - 1).scaleb(-70, decimal.Context(76))]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        yield kind, ["", "a\0", "\U0001f600", "x" * 300]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield kind, [b"", b"\0\xff", b"x" * 300]
    yield pa.binary(3), [b"\0\0\0", b"\xff\xfe\xfd"]
    yield pa.null(), []


LEAVES = [*whole_numbers(), *others()]
COUNTED = list(counted())
NESTS = ("list", "large", "view", "fixed", "struct", "map", "runs")


RUNS = [pa.bool_(), pa.float64(), pa.string(), pa.timestamp("us"), *(kind for kind, _ in whole_numbers())]
"""Types of which runs are tried."""


@st.composite
def stored(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """Return an array of Arrow, the flat one in it, and what it holds in Python's words; counts in nanoseconds."""
    kind, extremes = draw(st.sampled_from([*LEAVES, *COUNTED]))
    held = draw(st.lists(st.sampled_from([*extremes, None]), max_size=8))
    if (kind, extremes) in COUNTED:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        flat = pa.array(held, width).cast(kind)
        unit = getattr(kind, "unit", "D" if kind == pa.date32() else "ms")
        held = [one if one is None else one * NS[unit] for one in held]
    else:
        as_halves = [one if one is None else np.float16(one) for one in held] if kind == pa.float16() else held
        flat = pa.array(as_halves, kind)
    array = flat
    for nest in draw(st.lists(st.sampled_from(NESTS), max_size=2)):
        array, held = nested(nest, array, held, draw)
    return array, flat, held


def nested(nest: str, array: Any, held: list[Any], draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """Return an array of values that hold those of another one, and what they are."""
    count = len(held)
    if nest == "runs":
        return pc.run_end_encode(array) if array.type in RUNS else array, held
    if nest == "struct":
        missing = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        numbers = pa.array(range(count), pa.uint8())
        made = pa.StructArray.from_arrays([array, numbers], ["a", "b"], mask=pa.array(missing, pa.bool_()))
        rows = enumerate(zip(held, missing, strict=True))
        return made, [None if gone else {"a": one, "b": n} for n, (one, gone) in rows]
    if nest == "fixed":
        pairs = [held[n : n + 2] for n in range(0, count - 1, 2)]
        return pa.FixedSizeListArray.from_arrays(array[: count // 2 * 2], 2), pairs
    ends = sorted(draw(st.lists(st.integers(0, count), max_size=4)))
    offsets = [0, *ends]
    lists = [held[start:end] for start, end in zip(offsets, ends, strict=False)]
    if nest == "map":
        keys = pa.array(range(count), pa.int8())
        entries = [list(enumerate(one, start)) for one, start in zip(lists, offsets, strict=False)]
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, array), entries
    if nest == "view":
        sizes = pa.array(map(len, lists), pa.int32())
        return pa.ListViewArray.from_arrays(pa.array(offsets[:-1], pa.int32()), sizes, array), lists
    kind, width = (pa.LargeListArray, pa.int64()) if nest == "large" else (pa.ListArray, pa.int32())
    return kind.from_arrays(pa.array(offsets, width), array), lists


def worded(value: Any) -> Any:
    """Return a value in Python's words; counts in nanoseconds, None for what stands for a null."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        unit = np.datetime_data(value.dtype)[0]
        return None if np.isnat(value) else int(value.astype(np.int64)) * NS[unit]
    if isinstance(value, datetime.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000
    if isinstance(value, dict):
        return {name: worded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(worded, value))
    if isinstance(value, np.ndarray):
        return [worded(one) for one in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and math.isnan(value) else value


def dtypes_in(value: Any) -> set[Any]:
    """Return the dtypes of numbers in a value; the numbers beside (keys of maps, parts b) are left out."""
    if isinstance(value, dict):
        return dtypes_in(value["a"])
    if isinstance(value, tuple):
        return dtypes_in(value[1])
    if isinstance(value, list):
        return set().union(*map(dtypes_in, value))
    return {value.dtype} if isinstance(value, (np.ndarray, np.generic)) else set()


def check_values(values: list[Any], flat: Any, held: list[Any]) -> None:
    found = [worded(value) for value in values]
    assert repr(found) == repr(held)  # 0.0 is not -0.0, and 1 not True
    alone = column_of(flat)
    scalars = {alone.dtype} if alone.dtype != object else {one.dtype for one in alone if isinstance(one, np.generic)}
    assert dtypes_in(values) <= (scalars or dtypes_in(values)), "nested numbers have another width"


@given(stored())
@examples(600)
def test_every_type_comes_as_it_is_stored(drawn: tuple[Any, Any, list[Any]]) -> None:
    array, flat, held = drawn
    check_values(values_of(column_of(array)), flat, held)
    middle = len(held) // 2
    check_values(values_of(column_of(array.slice(middle))), flat, held[middle:])
    for row, value in enumerate(values_of(column_of(array))):  # not changed by the rows beside it
        assert same(value, values_of(column_of(array.slice(row, 1)))[0])


# Older versions of Arrow give whole numbers for some counts.


@pytest.mark.parametrize("nest", [pa.list_, lambda kind: pa.struct({"a": kind}), lambda kind: pa.map_(pa.int8(), kind)])
def test_dictionaries_inside_of_several_row_groups_are_read_together(tmp_path: Path, nest: Any) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    words = pa.array([{"a": word} if pa.types.is_struct(nest(kind)) else [] for word in "abcab"], nest(kind))
    pq.write_table(pa.table({"words": words}), tmp_path / "a.parquet", row_group_size=2)
    want = [{"words": one} for one in words.to_pylist()]
    assert elements_of(Parquet(tmp_path, batch_rows=5)) == want


@pytest.mark.skipif(not hasattr(pa, "bool8"), reason="an older Arrow")
def test_booleans_of_a_byte_are_booleans() -> None:
    flat = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 2], pa.int8()))
    assert column_of(flat).tolist() == [True, False, True]
    assert column_of(pa.ListArray.from_arrays([0, 3], flat))[0].dtype == np.bool_


@pytest.mark.parametrize("nest", [False, True])
def test_what_no_value_holds_is_refused_with_its_column(tmp_path: Path, nest: bool) -> None:
    for kind, bad in ((pa.timestamp("us"), -(2**63)), (pa.duration("ns"), -(2**63)), (pa.time64("us"), DAY_NS // 1000)):
        array = pa.array([0, 1, 2, bad, 4], pa.int64()).cast(kind)
        column = pa.StructArray.from_arrays([array], ["part"]) if nest else array
        with pytest.raises(ValueError, match=r"column 'when' \("):
            columns_of(pa.table({"when": column}))
        pq.write_table(pa.table({"n": range(5), "when": column}), tmp_path / "a.parquet")
        source = Parquet(str(tmp_path / "a.parquet"))
        (split,) = source.splits()
        rows = source.read(split)
        assert [next(rows)["n"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(CorruptSourceError, match=r"element 3 of .*a\.parquet.*column 'when'"):
            next(rows)


# --- moments and integers beyond what others hold -------------------------------------------------------------------

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
    return [int(one) for one in np.asarray(value, object).ravel()]


def test_an_integer_of_csv_that_would_be_rounded_is_refused_behind_the_sample_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "SAMPLE_BYTES", 1000)
    (tmp_path / "a.csv").write_text("id\n\n1.0\n" + "3\n" * 1000 + "9007199254740992\n9007199254740993\n")
    with pytest.raises(PlanError, match=r"^9007199254740993 in column 'id' would be rounded, line 1005 of"):
        elements_of(Csv(str(tmp_path / "a.csv")))


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
