"""TextLines, JsonLines, and Csv with its dialects: names=, header=, quote=, escape=, comment=, encoding=."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError
from pecan_ray.plan.splits import Element
from pecan_ray.sources import Csv, JsonLines, TextLines
from tests.long_form import examples
from tests.source_contract import check_contract, elements_of


def test_lines_keep_empty_ones_and_lose_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufefffirst\r\n\nthird é\nlast".encode())
    expected = [{"text": text} for text in ("first", "", "third é", "last")]
    check_contract(TextLines(str(tmp_path / "a.txt")), expected, splits=1)


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


def test_json_objects(tmp_path: Path) -> None:
    rows = [
        {"id": 1, "text": "ä", "vector": [1.5, 2.5], "ok": True},
        {"id": 2, "matrix": [[1, 2], [3, 4]], "ragged": [[1], [2, 3]], "words": ["a", "b"], "nested": {"x": None}},
    ]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    expected = [{**rows[0], "vector": np.array([1.5, 2.5])}, {**rows[1], "matrix": np.array([[1, 2], [3, 4]])}]
    check_contract(JsonLines(str(tmp_path)), expected, splits=1)


@pytest.mark.parametrize(
    ("kind", "line", "problem"),
    [
        (TextLines, b"\xff", "UTF-8"),
        (JsonLines, b'{"a": 1', "not JSON"),
        (JsonLines, b"[1, 2]", "holds a list"),
        (JsonLines, b'{"a": [{"deep": {"b": 1, "b": 2}}]}', "'b' is named twice"),
    ],
)
def test_a_bad_line_is_named_and_shown(tmp_path: Path, kind: Any, line: bytes, problem: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 0}\n' + line + b"\n")
    with pytest.raises(CorruptSourceError, match=f"line 2 of .*a.jsonl.*{problem}") as caught:
        elements_of(kind(str(tmp_path)))
    assert (caught.value.offset, caught.value.element) == (9, 1)
    assert kind is TextLines or repr(line.decode()) in str(caught.value)


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


def test_unknown_csv_columns_are_answered_with_those_that_exist(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [["x", "y"], [1, 2]])
    with pytest.raises(ColumnError, match=r"no column 'z'. It has: x, y"):
        next(Csv(str(tmp_path), columns=["z"]).splits())
    with pytest.raises(ColumnError, match="no column 'z'"):
        next(Csv(str(tmp_path), types={"z": "int64"}).splits())
    with pytest.raises(PlanError, match="'integer'"):
        Csv(str(tmp_path), types={"x": "integer"})
    write_csv(tmp_path / "b.csv", [["x", "w"], [1, 2]])
    source = Csv(str(tmp_path))
    with pytest.raises(ColumnError, match=r"b.csv is x, w, but the first file has x, y"):
        list(source.read(list(source.splits())[1]))


# --- dialects of CSV ------------------------------------------------------------------------------------------


def rows(path: Path, content: str | bytes, **options: Any) -> list[list[Any]]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return [list(element.values()) for element in elements_of(Csv(path, **options))]


def test_files_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    content = "".join(f"{n},x{n}\n" for n in range(20))
    path.write_text(content)
    expected = [{"n": np.int64(n), "x": f"x{n}"} for n in range(20)]
    check_contract(Csv(path, names=["n", "x"], split_bytes=30), expected, splits=-(-len(content) // 30))
    assert Csv(path, names=["n", "x"]).identity() != Csv(path, names=["n", "y"]).identity()
    assert rows(path, "a,b\n1,2\n", names=["n", "x"], header=True) == [[1, 2]]
    with pytest.raises(ColumnError, match=r"names 1 columns, and the header of .* 2"):
        rows(path, "a,b\n1,2\n", names=["n"], header=True)
    with pytest.raises(CorruptSourceError, match="Expected 3 columns, got 2"):
        rows(path, "a,b\n1,2\n", names=["n", "x", "y"])


@pytest.mark.parametrize("first", ["5.1,3.5,setosa", "7,12", "1e5", "0,0,1", "-1,2", "0,1,2", "1,2"])
def test_a_first_row_of_numbers_does_not_vanish(tmp_path: Path, first: str) -> None:
    names = [f"c{n}" for n in range(first.count(",") + 1)]
    with pytest.raises(ColumnError, match="names="):
        rows(tmp_path / "a.csv", f"{first}\n{first}\n")
    assert len(rows(tmp_path / "a.csv", f"{first}\n{first}\n", names=names)) == 2
    if first != "0,0,1":
        assert len(rows(tmp_path / "a.csv", f"{first}\n{first}\n", header=True)) == 1
    for header in ("id,1990,1991", "v1.0"):
        rows(tmp_path / "a.csv", f"{header}\n")


def test_another_delimiter_is_not_taken_for_one_column(tmp_path: Path) -> None:
    for other in "\t;|":
        with pytest.raises(ColumnError, match=f"names one column, .*delimiter={re.escape(repr(other))}"):
            rows(tmp_path / "a.csv", f"a{other}b\n1{other}2\n")
        assert rows(tmp_path / "a.csv", f"a{other}b\n1{other}2\n", delimiter=other) == [[1, 2]]
        assert rows(tmp_path / "a.csv", f"a{other}b\n1\n", header=True) == [[1]]


def test_types_are_those_of_the_first_file_with_rows(tmp_path: Path) -> None:
    for name, content in (("0.csv", "n,x\n"), ("1.csv", "\n\nn,x\n\n"), ("2.csv", "n,x\n1,0.5\n"), ("3.csv", "n,x\n")):
        (tmp_path / name).write_text(content)
    assert elements_of(Csv(tmp_path)) == [{"n": np.int64(1), "x": np.float64(0.5)}]
    assert elements_of(Csv(tmp_path / "[013].csv")) == []
    (tmp_path / "2.csv").write_text("n,y\n1,0.5\n")
    with pytest.raises(ColumnError, match=r"header of .*2\.csv is n, y, but"):
        elements_of(Csv(tmp_path))


QUOTED: dict[str, str | None] = {
    r'"say \"hi\""': 'say "hi"',
    r'"a\\"': "a\\",
    r'"C:\temp, x"': r"C:\temp, x",
    r"C:\temp": r"C:\temp",
    r'"\\\""': '\\"',
    '""': "",
    r'"\","': '",',
    "5'": "5'",
    **dict.fromkeys((r'"a""b"', r'"a"b', r'"a\"', r"a\,b")),
}


@pytest.mark.parametrize("line", QUOTED)
def test_quotes_behind_backslashes(tmp_path: Path, line: str) -> None:
    path, options = tmp_path / "a.csv", {"escape": "\\", "names": ["text", "n"], "types": {"text": "string"}}
    for newlines in (False, True):
        if QUOTED[line] is None:
            with pytest.raises(CorruptSourceError):
                rows(path, f"x,1\n{line},7\n", newlines_in_values=newlines, **options)
        else:
            assert rows(path, f"{line},7\r\n", newlines_in_values=newlines, **options) == [[QUOTED[line], 7]]


@pytest.mark.parametrize("line", [r'"say \"hi\""', '"a"b', '"a" ', '"a,"b'])
def test_what_doubled_quotes_do_not_allow_is_refused(tmp_path: Path, line: str) -> None:
    for newlines in (False, True):
        with pytest.raises(CorruptSourceError, match=r"line 3 .*escape="):
            rows(tmp_path / "a.csv", f'text,n\n"x",1\n{line},7\n"y",2\n', newlines_in_values=newlines)


def test_comments_quotes_as_text_and_encodings(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    assert rows(path, '# made by "x\na,b\n#1,2\n3,4 # five\n', comment="#") == [[3, "4 # five"]]
    content = "".join(f"# comment {n}\n" for n in range(9)) + "a\n" + "".join(f"{n}\n#\n" for n in range(9))
    numbers = rows(path, content, comment="#", split_bytes=20)  # the header is in no first split
    assert numbers == [[n] for n in range(9)]
    assert rows(path, '#"\nname\n"a\n#b"\n#c\n', comment="#", newlines_in_values=True) == [["a\n#b"]]
    assert rows(path, 'a,b\n"x,5"\n', quote=None) == [['"x', '5"']]
    assert rows(path, b'a,b\n"x\ry",5\n"v","w\rz"\n') == [["x\ry", "5"], ["v", "w\rz"]]
    with pytest.raises(CorruptSourceError, match="carriage return"):
        rows(path, b'a\n"x\ry"\n', quote=None)
    for quote, names in ((None, ['"a', ' b"']), ('"', ["a, b"])):
        path.write_text('"a, b"\n' + ",".join("1" * len(names)) + "\n")
        assert [list(one) for one in elements_of(Csv(path, quote=quote))] == [names]
    quoted = "'a'\t'b'\n'x\t''y'''\t'\"\nz'\n"
    for packed in (False, True):
        data = gzip.compress(quoted.encode("utf-8-sig")) if packed else quoted.encode("cp1252")
        options = {"quote": "'", "delimiter": "\t", "encoding": "utf-8-sig" if packed else "cp1252"}
        named = tmp_path / f"b.csv{'.gz' * packed}"
        assert rows(named, data, newlines_in_values=True, **options) == [["x\t'y'", '"\nz']]
    assert rows(path, "a,b\né,ü\n".encode("latin-1"), encoding="latin-1") == [["é", "ü"]]
    assert rows(path, "a|b\n表|ソ\n".encode("cp932"), encoding="cp932", delimiter="|") == [["表", "ソ"]]
    with pytest.raises(CorruptSourceError, match=r"line 2 .*not CP932"):
        rows(path, b"a\n\x85\n", encoding="cp932")
    path.write_bytes('{"é": "ü"}\n'.encode("latin-1"))
    assert elements_of(TextLines(path, encoding="latin-1")) == [{"text": '{"é": "ü"}'}]
    assert elements_of(JsonLines(path, encoding="latin-1")) == [{"é": "ü"}]


@pytest.mark.parametrize(
    ("option", "values", "said"),
    [
        ("quote", [","], "different"),
        ("escape", ["ab"], "escape must be one ASCII"),
        ("comment", ["\n"], "comment must be one ASCII"),
        ("quote", ["é"], "quote must be one ASCII"),
        ("encoding", ["utf-16", "utf-7", "none", "rot13"], "iconv"),
        ("names", [[], ["a", "a"], "ab"], "list of different names"),
        ("header", [False], r"Say names=\[...\]"),
        ("header", [1.5], "True, False or None"),
    ],
)
def test_dialects_that_cannot_be(tmp_path: Path, option: str, values: list[Any], said: str) -> None:
    for value in values:
        with pytest.raises(PlanError, match=said):
            Csv(tmp_path, **{option: value})
    with pytest.raises(PlanError, match="needs a quote"):
        Csv(tmp_path, quote=None, escape="\\")
