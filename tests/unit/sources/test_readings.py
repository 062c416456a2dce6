"""What small files are read as, or refused with, written down: a change to a source shows what it changes for users.

Damage of files is tried at random in tests/fuzz, types of Arrow in test_every_type, and large files beside each source.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import lzma
import math
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray.errors import PecanError
from pecan_ray.sources import Csv, JsonLines, Parquet, TextLines, TFRecords, WebDataset
from tests.sample_files import example, framed, sequence, tar_of

WRITTEN = Path(__file__).with_name("readings.txt")
"""A paragraph for each file; `python -m tests.unit.sources.test_readings` writes all anew."""
MOST_SHOWN = 6
"""Elements of a file that are written down."""
BEGINS = (
    r"In CSV column|CSV parse error|'\S+' codec can't|Expecting |Invalid |unexpected end|new-line char|field larger"
)
OF_LIBRARIES = re.compile(rf"({BEGINS}).*?(?=\)\. |\. The line| \(it opens)", re.DOTALL)
"""Words of Arrow and Python, which differ with their versions."""


class Case(NamedTuple):
    """A file and how it is read; a name says what is in a file that is not text."""

    kind: Any
    content: bytes
    options: dict[str, Any]
    name: str = ""
    ending: str = ""

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        content = self.name or (repr(self.content) if len(self.content) < 200 else f"{self.content[:60]!r}...")
        return f"{self.kind.__name__}({said}) of {content}{self.ending and f', {self.ending}'}"


def csv(*contents: str | bytes, **options: Any) -> Iterator[Case]:
    for content in contents:
        yield Case(Csv, content if isinstance(content, bytes) else content.encode(), options)


def lines(*contents: str | bytes, kind: Any = JsonLines, **options: Any) -> Iterator[Case]:
    for content in contents:
        yield Case(kind, content if isinstance(content, bytes) else content.encode(), options)


def headers() -> Iterator[Case]:
    """Files with a header, without one, and with one that is perhaps none."""
    for names, header in ((["n", "x"], True), (["n"], True), (["n", "x", "y"], None)):
        yield from csv("a,b\n1,2\n", names=names, header=header)
    for first in ("5.1,3.5,setosa", "7,12", "1e5", "0,0,1", "-1,2", "0,1,2", "1,2", "id,1990,1991", "v1.0"):
        names = [f"c{n}" for n in range(first.count(",") + 1)]
        yield from csv(f"{first}\n{first}\n")
        yield from csv(f"{first}\n{first}\n", names=names)
        yield from csv(f"{first}\n{first}\n", header=True)
    for other in "\t;|":
        yield from csv(f"a{other}b\n1{other}2\n")
        yield from csv(f"a{other}b\n1{other}2\n", delimiter=other)
        yield from csv(f"a{other}b\n1\n", header=True)
    yield from csv("", "\n\nn,x\n\n", "n,x\n", "n,x\n1,0.5", "n,n\n1,2\n", "n,\n1,2\n", b"a,\xff\n1,2\n", b"a,b\rc,d\n")
    yield from csv("a," + "x" * 200_000 + "\n", 'a,"b\n1,2\n', "\ufeffa,b\n1,2\n", "x,y\n1,2\n")
    yield from csv("x,y\n1,2\n", columns=["y"])
    yield from csv("x,y\n1,2\n", columns=["z"])
    yield from csv("x,y\n1,2\n", types={"z": "int64"})
    yield from csv("x,y\n1,2\n", types={"x": "integer"})


def dialects() -> Iterator[Case]:
    """Quotes, escapes, comments, encodings, and line ends in values."""
    escaped: dict[str, Any] = {"escape": "\\", "names": ["text", "n"], "types": {"text": "string"}}
    quoted = (r'"say \"hi\""', r'"a\\"', r'"C:\temp, x"', r"C:\temp", r'"\\\""', '""', r'"\","', "5'", r'"a""b"')
    for newlines in (False, True):
        for line in (*quoted, r'"a"b', r'"a\"', r"a\,b"):
            yield from csv(f"{line},7\r\n", newlines_in_values=newlines, **escaped)
        for line in (r'"say \"hi\""', '"a"b', '"a" ', '"a,"b'):
            yield from csv(f'text,n\n"x",1\n{line},7\n"y",2\n', newlines_in_values=newlines)
        over_lines = ('a,b\n"x\ny",2\n', 'a,b\n1,"x\ny"\n', 'a,b\n1,2\n3,"x\ny"\n')
        yield from csv(*over_lines, newlines_in_values=newlines, types={"a": "string"})
        yield from csv('a,b\n\n1,"x\ny"\n\n2,z\n3,"x\n4,z\n', newlines_in_values=newlines)
    yield from csv('a,b\n3,"x\n4,z\n', newlines_in_values=True, max_record_bytes=10)
    yield from csv('a,b\n3,"x', 'a\n"x\n', "a\nx\n", quote='"')
    yield from csv('# made by "x\na,b\n#1,2\n3,4 # five\n', comment="#")
    commented = "".join(f"# comment {n}\n" for n in range(9)) + "a\n" + "".join(f"{n}\n#\n" for n in range(9))
    yield from csv(commented, comment="#", split_bytes=20)  # the header is in no first split
    yield from csv('#"\nname\n"a\n#b"\n#c\n', comment="#", newlines_in_values=True)
    for quote in (None, '"'):
        yield from csv('a,b\n"x,5"\n', '"a, b"\n1\n', '"a, b"\n1,1\n', b'a\n"x\ry"\n', quote=quote)
    yield from csv(b'a,b\n"x\ry",5\n"v","w\rz"\n', "a\n1\n\n2\n")
    tabs = "'a'\t'b'\n'x\t''y'''\t'\"\nz'\n".encode("cp1252")
    yield from csv(tabs, quote="'", delimiter="\t", encoding="cp1252", newlines_in_values=True)
    yield from csv("a,b\né,ü\n".encode("latin-1"), encoding="latin-1")
    yield from csv("a|b\n表|ソ\n".encode("cp932"), encoding="cp932", delimiter="|")
    yield from csv(b"a\n\x85\n", encoding="cp932")
    yield from lines('{"é": "ü"}\n'.encode("latin-1"), encoding="latin-1")
    yield from lines('{"é": "ü"}\n'.encode("latin-1"), kind=TextLines, encoding="latin-1")
    wrong: list[dict[str, Any]] = [{"quote": ","}, {"escape": "ab"}, {"comment": "\n"}, {"quote": "é"}, {"header": 1.5}]
    wrong += [{"encoding": name} for name in ("utf-16", "utf-7", "none", "rot13")]
    wrong += [{"names": names} for names in ([], ["a", "a"], "ab")]
    wrong += [{"header": False}, {"quote": None, "escape": "\\"}, {"columns": []}]
    wrong += [{"delimiter": delimiter} for delimiter in ("\n", "\0", "é", "", ",,")]
    for options in wrong:
        yield from csv("", **options)


def cells() -> Iterator[Case]:
    """Numbers that their type does not hold, or would round; nulls, and what stands for them."""
    for types, cell in (({}, "1e999"), ({"f": "float64"}, "-1e400"), ({"f": "float32"}, '"1e39"'), ({}, "1" * 50)):
        yield from csv(f"i,f,s\n1,0.5,1e999\n2,inf,x\n3,,x\n4,{cell},x\n5,1.5,x\n", types=types)
    yield from csv("f\n" + "\n".join(["1.7976931348623157e308", "-inf", "+INF", "Infinity", "nan", "1e-999"]))
    yield from csv("f\n1e999\n", types={"f": "string"})
    for kind in ("int16", "int8"):
        yield from csv('n\n0x7f\n-1\n""\n0xFF\n', types={"n": kind})
    for integer, remedy in ((2**53 + 1, "int64"), (2**63 + 1, "uint64"), (-(2**63) - 1, "string")):
        for types in ({}, {"id": remedy}, {"id": "float64"}):
            yield from csv(f"id,n\n{integer},0\n,1\n-5,2\n", f"id,n\n{integer},0\n,1\n5,2\n", types=types)
    yield from csv("id,n\n0.5,0\n9007199254740993,1\n")
    yield from csv("id,n\n9007199254740993,0\n\n,1\n", columns=["n"])
    yield from csv("b,d,t,s\ntrue,2024-05-06,2024-05-06 07:08:09,x\nfalse,,,\n", "b,n\n1,x\n1,2,3\n")
    yield from csv("n,f\n1,\n,0.5\n", types={"n": "int8"}, fill={"n": -1, "f": 2})
    yield from csv("n,f\n1,\n,0.5\n", types={"n": "int8"}, fill={"n": 0}, mask={"n": "no n", "f": "no f"})
    for options in ({"fill": {"m": 1}}, {"mask": {"x": "y"}}, {"mask": {"n": "f"}}, {"fill": {"n": "a"}}):
        yield from csv("n,f\n1,\n,0.5\n", **options)
    for mask in ("n", {"n": 1}, {"n": "m", "f": "m"}, {"n": "n"}):
        yield from csv("", mask=mask)
    for given in (1, "label", {"label": "text"}):
        yield from csv("", partitions=given)


LISTS = (
    (
        "[9223372036854775809, 7]",
        "[[9223372036854775809, 7], [9223372036854775811, 9]]",
        "[[1, 2], [3, 9007199254740993]]",
    ),
    ("[9007199254740992, 0.5]", "[]", "[[1], [2, 3]]", "[-1, 18446744073709551615]", "[18446744073709551616, 1]"),
    ("[9007199254740993, 0.5]", "[[1.5, 2], [3, 9007199254740993]]", "[true, 2]", "[[1], [true]]", '["a", null]'),
)
"""Lists of JSON, which are arrays as long as no number is changed by that."""
TYPED = (
    *("1.5 int8", "300 uint8", "-1 uint64", "true int64", "1 bool", "10 string", "1e39 float32", "null int8", "7 int8"),
    *('"a" list<string>', '[1, "a"] list<int64>', "[[1]] list<int64>", '{"a": 1} int64', "16777217 float32"),
    *("9007199254740993 float64", f"{10**400} float64"),
)
"""Values of JSON, and the types that their column is said to have."""


def objects() -> Iterator[Case]:
    yield from lines(
        b"\xff\n", "\ufefffirst\r\n\nthird é\nlast", "a\n" + "x" * 200, kind=TextLines, max_record_bytes=100
    )
    for line in (b'{"a": 1', b"[1, 2]", b'{"a": [{"deep": {"b": 1, "b": 2}}]}', b"\xff", b"NaN", b'{"a": 1e999}', b""):
        yield from lines(b'{"a": 0}\n' + line + b"\n")
    for values in LISTS:
        yield from lines("".join(f'{{"v": {value}}}\n' for value in values))
    for typed in TYPED:
        value, _, kind = typed.rpartition(" ")
        yield from lines(f'{{"x": null}}\n{{"x": {value}}}\n', types={"x": kind})
    yield from lines("", types=["x"])
    for no_type in (None, int, "float31", "float16", "list<>", "list<int8"):
        yield from lines("", types={"x": no_type})
    yield from lines("", types={"x": "uint8", "y": "string"}, fill={"x": 300, "z": 1})
    yield from lines('{"n": null, "m": null}\n{"n": 3}\n', fill={"n": 0}, types={"n": "uint8"})
    rows = '{"n": 1, "f": null}\n{"n": null, "f": 0.5}\n{"n": 3, "f": 1}\n{}\n'
    yield from lines(rows, types={"f": "float32"}, fill={"n": 0}, mask={"n": "no n", "f": "no f"})
    yield from lines(rows, split_bytes=20)
    yield from lines(rows, kind=TextLines, split_bytes=20)


def archives() -> Iterator[Case]:
    """Samples of archives: what would lose a member is refused."""
    pair = {"a.jpg": b"a", "a.cls": b"0", "b.jpg": b"b", "b.cls": b"1"}
    apart = {name: pair[name] for name in ("a.jpg", "b.jpg", "a.cls", "b.cls")}
    several = [{"0.jpg": b"a", "1.jpg": b"b", "1.JPG": b"c"}, {"set/0001": b"x", "set/2": b"y"}, {"set/__meta__": b"x"}]
    odd = {"0.jpg": b"a", "0.": b"b", "1.": b"c", "no dot": b"d", "set/1.seg.png": b"e", "ä.txt": b"f", "x.y/2.c": b"g"}
    for files in (pair, apart, *several, odd, {}):
        yield Case(WebDataset, tar_of(files), {}, f"{list(files)}")
    yield Case(WebDataset, tar_of(pair) + tar_of(pair), {}, "archives one behind the other may use keys again")
    info = tarfile.TarInfo("0.a").tobuf()
    for name, place, size in (
        ("mode", 100, 8),
        ("owner", 108, 8),
        ("group", 116, 8),
        ("size", 124, 12),
        ("time", 136, 12),
    ):
        for said, number in {"is empty": bytes(size), "begins as an empty one": b"\x001"}.items():
            header = bytearray(info[:148] + b" " * 8 + info[156:])
            header[place : place + len(number)] = number
            header[148:156] = b"%06o\0 " % sum(header)
            yield Case(WebDataset, bytes(header) + bytes(1024), {}, f"a header whose {name} {said}")
    for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z"):
        link = tarfile.TarInfo("0.a")
        link.type = kind
        yield Case(WebDataset, link.tobuf() + bytes(1024), {}, f"a member of the type {kind!r}")


PACKS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zlib": zlib.compress,
}


def packed() -> Iterator[Case]:
    """Compressed files, whole, cut off, and not called so."""
    record = framed(b"x" * 20)
    archive = tar_of({"0.a": b"x" * 20})
    several = ((TextLines, b"one\ntwo\n"), (TFRecords, record * 2 + record[:20]), (WebDataset, archive))
    for kind, content in several:
        for ending, pack in PACKS.items():
            yield Case(kind, pack(content), {}, f"{len(content)} bytes", ending)
            yield Case(kind, pack(content[: len(content) // 2]), {}, f"half of {len(content)} bytes", ending)
            yield Case(kind, pack(content)[:-9], {}, "a file that is cut off", ending)
            yield Case(kind, pack(content), {}, f"{len(content)} bytes, compressed as {ending}")


def records() -> Iterator[Case]:
    """Examples, parsed, and features that say what a column is."""
    steps: dict[str, Any] = {"frames": [[b"a"], [b"bb"]], "ids": [[1, 2], [3]], "none": [], "even": [[0.5], [1.5]]}
    fixed = {"frames": "list<binary>", "even": "list<float32>", "none": "list<list<int64>>", "label": "list<int64>"}
    several = (fixed, {"ids": "list<int64>"}, {"even": "list<int64>"}, {"label": "int32"}, {"label": int}, ["ids"])
    for features in several:
        yield Case(TFRecords, framed(sequence(steps, label=[3])), {"features": features}, f"steps of {sorted(steps)}")
    yield Case(TFRecords, framed(sequence(steps, label=[3])), {"parse": True}, f"steps of {sorted(steps)}")
    odd_steps: tuple[dict[str, Any], ...] = ({"label": [[1]]}, {"x": [[1], [0.5]]})
    for odd in odd_steps:
        yield Case(TFRecords, framed(sequence(odd, label=[3])), {"parse": True}, f"steps of {odd}")
    features = {"ids": "list<int64>", "label": "int64", "tags": "list<binary>"}
    several_of: list[dict[str, Any]] = [{"ids": [1], "label": [1], "tags": [b"a"]}, {"ids": [1], "label": [1, 2]}]
    several_of += [{"ids": [1]}, {"ids": [0.5], "label": [1]}, {"ids": [1, 2], "label": [2], "f": [0.5]}]
    for values in several_of:
        record = framed(example(**values))
        yield Case(TFRecords, record, {"features": features}, f"{values}")
        yield Case(TFRecords, record, {"parse": True}, f"{values}")
    unknown = {
        "example": b"\x1a\x01x",
        "its features": b"\x0a\x02\x12\x00",
        "a feature": b"\x0a\x09\x0a\x07\x0a\x01a\x12\x02\x22\x00",
    }
    for name, extra in unknown.items():
        record = framed(example(label=[3]) + extra)
        yield Case(TFRecords, record, {"parse": True}, f"an unknown field, in {name}")


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def tables() -> Iterator[Case]:
    """Columns of Parquet: chosen, filled, masked, and parts of structures."""
    nulls = {
        "n": pa.array([1, None, 3], pa.uint8()),
        "f": pa.array([0.5, None, math.nan], pa.float32()),
        "t": pa.array(["a", None, "c"]).dictionary_encode(),
        "d": pa.array([None, 0, 1], pa.timestamp("ms")),
        "l": pa.array([[1], None, []], pa.list_(pa.int8())),
    }
    filled = {"n": 255, "f": -1, "t": "", "d": datetime.datetime(2024, 5, 6)}
    several: list[dict[str, Any]] = [{}, {"columns": ["n", "t"]}, {"columns": ["x"]}, {"columns": []}]
    several += [{"columns": list(filled), "fill": filled}]
    several += [{"fill": {name: value}} for name, value in {"n": 256, "f": "a", "t": 1, "d": 1.5, "l": 1}.items()]
    several += [{"fill": {"n": [1]}}, {"fill": {"m": 1}}, {"mask": {"n": "f"}}, {"mask": {"x": "y"}}, {"mask": "n"}]
    several += [{"columns": ["n"], "mask": {"n": "m"}}, {"columns": ["n", "f"], "mask": {"f": "no f"}}]
    several += [{"int96_unit": "ms"}, {"batch_rows": 1, "columns": ["l"]}]
    for options in several:
        yield Case(Parquet, parquet(**nulls), options, f"columns {list(nulls)}")
    kind = pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.string(), "d": pa.int8()})})
    whole = pa.array([{"a": 1, "b": {"c": "x", "d": 2}}, None], kind)
    inner = {"s": whole, "l": [[{"a": 1, "b": 2}], []], "s.a": [7, 8]}
    for chosen in (["s.b.c", "l.list.element.b"], ["s.a"], ["s", "s.a"], ["s.b", "s.a"], ["s.b.x"], ["s.x"]):
        yield Case(Parquet, parquet(**inner), {"columns": chosen}, f"columns {list(inner)}")


Group = Callable[[], Iterator[Case]]
GROUPS: tuple[Group, ...] = (headers, dialects, cells, objects, archives, packed, records, tables)


def worded(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {worded(one)}" for name, one in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)} {worded(value.tolist())}"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value.item()!r}"
    return f"[{', '.join(map(worded, value))}]" if isinstance(value, list) else repr(value)


def reading(case: Case, folder: Path) -> str:
    """Return a paragraph: a case, how it is cut, what is read of it, also behind it, and what is told."""
    path = folder / f"file{case.ending}"
    path.write_bytes(case.content)
    elements, later, cut = list[Any](), list[Any](), list[str]()
    told = {False: "", True: ""}
    for behind in (False, True):
        try:
            source = case.kind(str(path), **case.options)
            for split in source.splits():
                if behind:
                    later.extend(source.read(split, len(elements) + 1))
                    continue
                before = len(elements)
                elements.extend(source.read(split))
                cut.append(f"bytes {split.start} to {split.stop}: {len(elements) - before}")
        except PecanError as error:
            text = f"{type(error).__name__}: {error}".replace(str(folder), "")
            told[behind] = OF_LIBRARIES.sub("...", text).replace("\n", "\\n")
    shown = [*map(worded, elements[:MOST_SHOWN]), *(f"behind the next: {worded(one)}" for one in later)]
    if told[True] != told[False]:
        shown.append(f"behind the next: {told[True] or 'nothing is told'}")
    return "\n  ".join(filter(None, [str(case), ", ".join(cut) if len(cut) > 1 else "", *shown, told[False]]))


def paragraphs(group: Group, folder: Path) -> list[str]:
    return [reading(case, folder) for case in group()]


@pytest.mark.parametrize("group", GROUPS, ids=[group.__name__ for group in GROUPS])
def test_what_is_read_and_what_is_told_is_what_is_written_down(tmp_path: Path, group: Group) -> None:
    written = WRITTEN.read_text().partition(f"# {group.__name__}\n\n")[2].partition("\n\n# ")[0]
    assert paragraphs(group, tmp_path) == written.strip().split("\n\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        parts = ("\n\n".join((f"# {group.__name__}", *paragraphs(group, Path(made)))) for group in GROUPS)
        WRITTEN.write_text("\n\n".join(parts) + "\n")
