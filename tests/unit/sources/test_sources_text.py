"""TextLines, JsonLines and Csv: splits, types, headers of several files; dialects and refusals are in test_readings."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import ColumnError, CorruptSourceError
from pecan_ray.plan.splits import Element, Split
from pecan_ray.sources import Csv, JsonLines, TextLines
from pecan_ray.sources.lines import BadLines, lines_of
from tests.long_form import examples
from tests.source_contract import check_contract, elements_of


@pytest.mark.parametrize(
    ("kind", "head", "line"),
    [(TextLines, "", "{}\n"), (JsonLines, "", '{{"n": "{}"}}\n'), (Csv, "n\n", "{}\n")],
    ids=["text", "json", "csv"],
)
def test_what_can_be_decompressed_of_a_file_that_is_cut_off_comes_before_the_error(
    tmp_path: Path, kind: type[TextLines | JsonLines | Csv], head: str, line: str
) -> None:
    rows = [f"r{number * 7919 % 10007:05}{number}" for number in range(60_000)]
    packed = gzip.compress((head + "".join(map(line.format, rows))).encode())
    cut = packed[: len(packed) * 9 // 10]
    (tmp_path / "cut.gz").write_bytes(cut)
    whole_lines = zlib.decompressobj(31).decompress(cut).count(b"\n") - len(head) // 2
    assert 50_000 < whole_lines < len(rows)
    source, found = kind(str(tmp_path / "cut.gz")), list[object]()
    (split,) = source.splits()
    with pytest.raises(CorruptSourceError, match="the file ends before its compressed data does"):
        found.extend(value for element in source.read(split) for value in element.values())
    assert found == rows[:whole_lines]


@given(
    lines=st.lists(st.text("ab\u00e9", max_size=5), max_size=20),
    split_bytes=st.integers(1, 12),
    end=st.booleans(),
)
@examples(60)
def test_byte_ranges_hold_every_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], split_bytes: int, end: bool
) -> None:
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    text = "\n".join(lines) + ("\n" if end else "")
    path.write_text(text, encoding="utf-8")
    got = [element["text"] for element in elements_of(TextLines(str(path), split_bytes=split_bytes))]
    assert got == (text.removesuffix("\n").split("\n") if text else [])


@pytest.mark.parametrize(("stop", "read"), [(4, 4), (5, 12), (6, 6)])
def test_no_more_is_read_than_the_last_line_of_a_range_takes(stop: int, read: int) -> None:
    stream = io.BytesIO(b"a\nb\nc\n" + b"d\n" * 3)
    split = Split(0, "lines", 0, stop)
    assert [line.data for line in lines_of(stream, BadLines(split, 100, past_errors=False))] == [b"a", b"b", b"c"][
        : (stop + 1) // 2
    ]
    assert stream.tell() == read


def test_json_objects(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "ä", "vector": [1.5, 2.5], "ok": True},
        {"id": 2, "matrix": [[1, 2], [3, 4]], "ragged": [[1], [2, 3]], "words": ["a", "b"], "nested": {"x": None}},
    ]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    expected = [{**rows[0], "vector": np.array([1.5, 2.5])}, {**rows[1], "matrix": np.array([[1, 2], [3, 4]])}]
    check_contract(JsonLines(str(tmp_path)), expected, splits=1)


def write_csv(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_csv_types_are_those_of_the_first_block_in_all_splits(tmp_path: Path) -> None:
    rows = [[n, n / 4 if n % 5 else "", f"name, {n}", n % 2 == 0, "" if n == 3 else n] for n in range(60)]
    path = write_csv(tmp_path / "a.csv", [["id", "price", "name", "even", "holes"], *rows])

    def row_of(n: int) -> Element:
        price, holes = np.float64(n / 4 if n % 5 else "nan"), np.float64("nan" if n == 3 else n)
        return {"id": np.int64(n), "price": price, "name": f"name, {n}", "even": np.bool_(n % 2 == 0), "holes": holes}

    splits = -(-path.stat().st_size // 300)
    assert splits > 4
    check_contract(Csv(str(path), split_bytes=300), [row_of(n) for n in range(60)], splits=splits)


def test_csv_columns_and_types_can_be_chosen_and_files_be_packed_or_empty(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [["zip", "n", "x"], ["01234", 5, 1.5], ["56789", "", 2.5]])
    write_csv(tmp_path / "b.csv", [["x", "zip", "n"], [9.5, "00000", 7]])
    source = Csv(str(tmp_path), columns=["zip", "n"], types={"zip": "string", "n": "int32"})
    cells = (("01234", np.int32(5)), ("56789", None), ("00000", np.int32(7)))
    check_contract(source, [{"zip": zip, "n": n} for zip, n in cells], splits=2)
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(b"a;b\n1;x\n"))
    check_contract(Csv(tmp_path / "c.csv.gz", delimiter=";"), [{"a": np.int64(1), "b": "x"}], splits=1)
    (tmp_path / "d.csv").write_text("a,b\n")
    check_contract(Csv(str(tmp_path / "d.csv")), [], splits=1)


def test_a_csv_row_that_does_not_fit_is_named(tmp_path: Path) -> None:
    good = "".join(f"{n},{n}\n" for n in range(200_000))
    for bad, problem in (("7,seven\n", "seven"), ("1,2,3\n", "Expected 2 columns")):
        (tmp_path / "a.csv").write_text("a,b\n" + good + bad + "8,8\n")
        source, got = Csv(str(tmp_path)), list[Element]()
        (split,) = source.splits()
        with pytest.raises(CorruptSourceError, match=f"line 200002 of .*{problem}") as caught:
            got.extend(source.read(split, 199_990))
        assert [int(row["a"]) for row in got] == list(range(199_990, 200_000)), "what comes before is delivered"
        assert (caught.value.element, caught.value.offset) == (200_000, 4 + len(good))


def test_files_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    content = "".join(f"{n},x{n}\n" for n in range(20))
    path.write_text(content)
    expected = [{"n": np.int64(n), "x": f"x{n}"} for n in range(20)]
    check_contract(Csv(path, names=["n", "x"], split_bytes=30), expected, splits=-(-len(content) // 30))
    assert Csv(path, names=["n", "x"]).identity() != Csv(path, names=["n", "y"]).identity()


def test_types_are_those_of_the_first_file_with_rows_and_headers_must_agree(tmp_path: Path) -> None:
    for name, content in (("0.csv", "n,x\n"), ("1.csv", "\n\nn,x\n\n"), ("2.csv", "n,x\n1,0.5\n"), ("3.csv", "n,x\n")):
        (tmp_path / name).write_text(content)
    assert elements_of(Csv(tmp_path)) == [{"n": np.int64(1), "x": np.float64(0.5)}]
    assert elements_of(Csv(tmp_path / "[013].csv")) == []
    (tmp_path / "2.csv").write_text("n,y\n1,0.5\n")
    with pytest.raises(ColumnError, match=r"header of .*2\.csv is n, y, but the first file has n, x"):
        elements_of(Csv(tmp_path))


def test_a_packed_file_has_the_dialect_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "b.csv.gz"
    path.write_bytes(gzip.compress("'a'\t'b'\n'x\t''y'\t'\"\nz'\n".encode("utf-8-sig")))
    source = Csv(path, quote="'", delimiter="\t", encoding="utf-8-sig", newlines_in_values=True)
    assert elements_of(source) == [{"a": "x\t'y", "b": '"\nz'}]
