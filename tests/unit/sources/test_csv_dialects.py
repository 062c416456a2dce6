"""Csv(names=, header=, quote=, escape=, comment=, encoding=), and what a dialect does not allow."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError
from pecan_ray.sources import Csv, JsonLines, TextLines
from tests.source_contract import check_contract, elements_of


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
