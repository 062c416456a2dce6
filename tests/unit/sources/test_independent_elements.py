"""Where bad elements are skipped, a bad line, file or row group costs itself alone."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pecan_ray as pecan
from pecan_ray.engines.contract import BadElement
from pecan_ray.errors import CorruptSourceError, SourceNotFoundError
from pecan_ray.plan.splits import END, OUTPUT_BITS, Lease, Source
from pecan_ray.sources import Csv, Files, ImageFolder, JsonLines, Parquet, TextLines
from tests.long_form import examples
from tests.source_contract import elements_of
from tests.unit.engines.engine_leases import ListedLeases, run_engine

GOOD = {JsonLines: b'{"n": %d}', Csv: b"%d", TextLines: b"%d"}
BAD = {
    JsonLines: [b'{"n":', b"[1]", b"\xff", b'{"n": 1, "n": 2}', b'{"n": 1e999}', b"x" * 200],
    Csv: [b"1,2", b'"1', b"\xff,", b'"1"2', b"x" * 200],
    TextLines: [b"\xff", b"\xc3", b"x" * 200],
}


def read(source: Source, leases: list[Lease] | None = None) -> tuple[list[int], list[BadElement]]:
    """Return the numbers that a job would get, and what it would be told of the others."""
    pipe = pecan.PecanPipeline(source).batch(7)
    produced = run_engine(pipe, None if leases is None else ListedLeases(leases), on_error="skip")
    columns = [batch.columns for batch in produced if batch.rows]
    return [int(n) for one in columns for n in next(iter(one.values()))], [bad for one in produced for bad in one.bad]


@pytest.mark.parametrize("kind", [JsonLines, Csv, TextLines])
@given(data=st.data())
@examples(60)
def test_each_bad_line_costs_itself(
    tmp_path_factory: pytest.TempPathFactory, kind: type[JsonLines | Csv | TextLines], data: st.DataObject
) -> None:
    bad = data.draw(st.sets(st.integers(0, 39), max_size=40))
    lines = [data.draw(st.sampled_from(BAD[kind])) if n in bad else GOOD[kind] % n for n in range(40)]
    content = (b"n\n" if kind is Csv else b"") + b"\n".join(lines) + b"\n" * data.draw(st.integers(0, 1))
    ending, split_bytes = data.draw(st.sampled_from([("", 1 << 20), ("", 50), (".gz", 1 << 20)]))
    path = tmp_path_factory.mktemp("lines") / f"a.lines{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    options = {"types": {"n": "int64"}} if kind is Csv else {}
    source = kind(path, split_bytes=split_bytes, max_record_bytes=100, **options)  # type: ignore[arg-type]
    if kind is Csv and len(bad) == 40:
        with pytest.raises(CorruptSourceError):
            list(source.splits())
        return
    got, told = read(source)
    assert sorted(got) == [n for n in range(40) if n not in bad]
    assert len(told) == len(bad) == len({one.identity for one in told})
    assert all(one.elements_left_out == 1 and "byte" in one.error and str(path) in one.error for one in told)
    if bad:
        with pytest.raises(CorruptSourceError):
            elements_of(source)


def test_what_is_left_of_a_split_is_read_past_errors_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' if n % 3 else "{\n" for n in range(30)))
    (split,) = JsonLines(tmp_path).splits()
    ranges = ((3, 5), (9, 10), (20, END >> OUTPUT_BITS))
    spans = tuple((begin << OUTPUT_BITS, end << OUTPUT_BITS) for begin, end in ranges)
    got, told = read(JsonLines(tmp_path), [Lease(0, split, spans)])
    assert got == [4, *(n for n in range(20, 30) if n % 3)]
    assert [one.first.element for one in told if one.first] == [3, 9, 21, 24, 27]


def test_a_line_or_a_quote_without_an_end_ends_its_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"1\n" + b"x" * (1 << 20) + b"\n3\n")
    got, told = read(TextLines(tmp_path / "a.txt", max_record_bytes=100))
    assert got == [1] and "has more than max_record_bytes=100" in told[0].error
    got, told = read(TextLines(tmp_path / "a.txt", max_record_bytes=1 << 17, split_bytes=1000))
    assert got == [1, 3] and len(told) == 1, "it has an end, and belongs to one range alone"
    (tmp_path / "a.csv").write_text('n\n1\n"x"y\n3\n')
    got, told = read(Csv(tmp_path / "a.csv", types={"n": "int64"}, newlines_in_values=True))
    assert got == [1] and len(told) == 1
    (tmp_path / "a.csv").write_text('n\n1\n"x\n3\n')  # types are those of what comes before it
    got, told = read(Csv(tmp_path / "a.csv", newlines_in_values=True))
    assert got == [1] and len(told) == 1 and "never closed" in told[0].error


@pytest.mark.parametrize("missing", [{0}, {5}, {0, 1, 2, 9}, set(range(10))])
def test_a_missing_image_costs_itself(tmp_path: Path, missing: set[int]) -> None:
    names = [tmp_path / "cat" / f"{n}.jpg" for n in range(10)]
    names[0].parent.mkdir()
    for n, name in enumerate(names):
        name.write_bytes(b"%d" % n)
    source = ImageFolder(tmp_path)
    leases = [Lease(0, split) for split in source.splits()]
    for n in missing:
        names[n].unlink()
        names[n].symlink_to("nowhere.jpg" if n % 2 else names[n].name)
    for some in (None, leases):  # links that lead nowhere, and then nothing at all
        got, told = read(source, some)
        assert got == [n for n in range(10) if n not in missing]
        assert [one.where for one in told] == [str(names[n]) for n in sorted(missing)]
        assert all(one.elements_left_out == 1 and one.where in one.error for one in told)
        for n in missing:
            names[n].unlink(missing_ok=True)


def test_a_link_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.jpg").symlink_to("nowhere.jpg")
    for source in (ImageFolder(tmp_path), Files(tmp_path), Files(f"{tmp_path}/*/*.jpg"), TextLines(tmp_path)):
        with pytest.raises(SourceNotFoundError, match=r"0\.jpg is a link to nowhere\.jpg, which leads to no file"):
            elements_of(source)
    (tmp_path / "dog").symlink_to("elsewhere")
    with pytest.raises(SourceNotFoundError, match="dog is a link to elsewhere"):
        ImageFolder(tmp_path).classes  # noqa: B018 - a property that lists


def test_a_broken_row_group_costs_its_rows(tmp_path: Path) -> None:
    path, how = tmp_path / "a.parquet", {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"n": list(range(100))}), path, row_group_size=10, **how)
    data = bytearray(path.read_bytes())
    for group in (3, 4, 9):
        data[data.index((group * 10 + 5).to_bytes(8, "little"))] ^= 0x40
    path.write_bytes(data)
    got, told = read(Parquet(tmp_path))
    assert got == [n for n in range(100) if n // 10 not in (3, 4, 9)]
    assert [one.elements_left_out for one in told] == [10, 10, 10]
    assert [f"row group {n}" in one.error for n, one in zip((3, 4, 9), told, strict=True)] == [True] * 3
