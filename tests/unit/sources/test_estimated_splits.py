"""Files whose elements are counted by reading alone: what splits tell before, and how parts of one are reached."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import tarfile
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pyarrow as pa
import pytest

from pecan_ray.errors import CorruptSourceError
from pecan_ray.job.row_order import runs_in_order
from pecan_ray.options import EngineName, IterOptions, Workers
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import plan_shape
from pecan_ray.plan.splits import Element, Source
from pecan_ray.runtime.session import ledger_shape
from pecan_ray.sources import Csv, JsonLines, TextLines, TFRecords, WebDataset, files
from pecan_ray.sources.files import LOCAL_SPLIT_BYTES, data_files
from tests.sample_files import framed, tar_of


def write_archive(path: Path, samples: int) -> None:
    """Write samples of two members each."""
    path.write_bytes(
        tar_of({f"{n:04}.{column}": b"x" * (n % 700) for n in range(samples) for column in ("txt", "cls")})
    )


@pytest.mark.parametrize("kind", [TextLines, JsonLines, Csv])
def test_lines_on_this_machine_are_cut_into_short_splits_that_tell_about_how_many_they_hold(
    kind: Any, tmp_path: Path
) -> None:
    lines = [f'{{"x": {number}, "y": "{"y" * (number % 100)}"}}' for number in range(80_000)]
    (tmp_path / "lines").write_text("\n".join(lines))
    source = kind(str(tmp_path / "lines"), split_bytes=1 << 30)
    splits = list(source.splits())
    assert source.estimates_splits and len(splits) == 2
    for split in splits:
        held = sum(1 for _ in TextLines(str(tmp_path / "lines")).read(split))
        assert split.elements is None and (split.stop or 0) - split.start <= LOCAL_SPLIT_BYTES
        assert split.about == pytest.approx(held, rel=0.1)


def test_a_beginning_of_empty_lines_says_little_about_the_lines_of_a_file(tmp_path: Path) -> None:
    lines = b"\n" * (1 << 16) + b"".join(b"x" * (number % 100) + b"\n" for number in range(200_000))
    (tmp_path / "lines").write_bytes(lines)
    assert sum(split.about or 0 for split in TextLines(str(tmp_path)).splits()) == pytest.approx(200_000, rel=0.1)


@pytest.mark.parametrize("kind", [TextLines, TFRecords])
def test_planning_asks_for_the_names_of_files_once(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"")
    listed = Mock(side_effect=data_files)
    monkeypatch.setattr(files, "data_files", listed)
    plan_shape(PecanPipeline(kind(str(tmp_path))).map(dict).batch(2).plan)
    assert listed.call_count == 1


def test_buckets_and_files_that_are_not_here_tell_nothing(tmp_path: Path) -> None:
    for paths in ("s3://bucket/lines", str(tmp_path / "on another node.txt")):
        assert not TextLines(paths).estimates_splits and not WebDataset(paths).estimates_splits
        assert not TFRecords(paths).counts_splits and not TFRecords(paths).estimates_splits


def test_a_file_whose_rows_have_line_ends_in_values_is_read_by_one_worker(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "1\n" * 99)
    quoted = Csv(str(tmp_path / "a.csv"), newlines_in_values=True)
    (split,) = quoted.splits()
    assert quoted.estimates_splits and split.whole and split.stop is None and split.about == 100


def test_records_on_this_machine_are_counted_and_one_that_is_broken_is_one_of_those_that_are_told(
    tmp_path: Path,
) -> None:
    records = [framed(b"x" * number) for number in range(50)]
    (tmp_path / "a").write_bytes(b"".join(records[:20]) + b"?" * 12 + b"".join(records[20:]))
    (tmp_path / "b").write_bytes(b"")
    source = TFRecords(str(tmp_path))
    split, empty = source.splits()
    assert source.counts_splits and (split.elements, split.about, split.counted, empty.elements) == (21, 21, None, 0)
    with pytest.raises(CorruptSourceError, match=r"^element 20 of "):
        list(source.read(split))


@pytest.mark.parametrize("kind", [TextLines, JsonLines, TFRecords, WebDataset])
def test_compressed_files_before_and_behind_others_are_read_by_one_worker_each(kind: Any, tmp_path: Path) -> None:
    files = {"a.gz": gzip.compress(b""), "b": b"", "c.bz2": bz2.compress(b""), "d": b""}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    source = kind(str(tmp_path))
    assert source.estimates_splits and not getattr(source, "counts_splits", False)
    told = [(split.whole, split.elements, split.about) for split in source.splits()]
    assert [whole for whole, *_ in told] == [True, False, True, False]
    assert all(elements is not None or about for _, elements, about in told) and told[0] == (True, None, 1)


def test_compressed_files_tell_about_how_many_elements_they_hold(tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(20).hex() for number in range(20_000)]
    samples = {f"{number:05}.{name}": random.Random(number).randbytes(400) for number in range(3000) for name in "ab"}
    data = {
        TextLines: "\n".join(texts).encode(),
        TFRecords: b"".join(framed(text.encode()) for text in texts),
        WebDataset: tar_of(samples),
    }
    for kind, plain in data.items():
        for ending, pack in PACKS.items():
            (tmp_path / kind.__name__).mkdir(exist_ok=True)
            (path := tmp_path / kind.__name__ / f"a.{ending}").write_bytes(pack(plain))
            (split,) = cast("Source", kind(str(path))).splits()
            held = len(samples) // 2 if kind is WebDataset else len(texts)
            assert split.about == pytest.approx(held, rel=0.5), (kind, ending)


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: bytes(pa.Codec("zstd").compress(data)),
}


def test_parts_of_an_archive_are_read_without_passing_over_its_beginning_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_archive(tmp_path / "a.tar", 1000)
    source = WebDataset(str(tmp_path / "a.tar"))
    (split,) = source.splits()
    assert split.about == pytest.approx(1000, rel=0.2)
    expected = [one["__key__"] for one in source.read(split)]
    headers, parse = [0], tarfile.TarInfo.frombuf

    def counted(*given: Any) -> tarfile.TarInfo:
        headers[0] += 1
        return parse(*given)

    monkeypatch.setattr(tarfile.TarInfo, "frombuf", counted)
    found = []
    for start in range(0, 1000, 20):
        with closing(cast("Generator[Element, None, None]", source.read(split, start))) as reading:
            found += [next(reading)["__key__"] for _ in range(20)]
    assert found == expected
    # Two headers a sample, and once more those of the sample at which each of 50 parts ends.
    assert headers[0] <= 2 * 1000 + 50 * 4

    write_archive(tmp_path / "a.tar", 300)
    (changed,) = source.splits()
    assert next(source.read(changed, 299))["__key__"] == "0299", "the places of another archive are not used"


def test_several_workers_keep_the_order_of_estimated_splits_and_one_needs_no_runs(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("1\n2\n")
    lines = PecanPipeline(TextLines(str(tmp_path / "lines"))).batch(2)
    two, one = IterOptions(workers=Workers(local=2)), IterOptions(workers=Workers(local=1))
    engine: EngineName
    assert runs_in_order(two, plan_shape(lines.plan)) and not runs_in_order(one, plan_shape(lines.plan))
    for engine in ("python", "tensorflow"):
        shape = ledger_shape(plan_shape(lines.plan), [], engine, 0, two)
        # A graph goes on behind a run of whole batches, and would end with a shorter one.
        assert shape.joined and shape.one_row_each and shape.whole_batches is (engine == "tensorflow")
    on_batches = plan_shape(lines.map(lambda batch: batch).plan)
    assert not runs_in_order(two, on_batches) and "works on whole batches" in on_batches.order.unordered_reason
