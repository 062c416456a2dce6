"""Parquet, ImageFolder and WebDataset."""

from __future__ import annotations

import gzip
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from pecan_ray import PecanPipeline
from pecan_ray.engines.contract import BadElement
from pecan_ray.engines.in_process import InProcessEpoch
from pecan_ray.errors import ColumnError, CorruptSourceError, PlanError, SourceNotFoundError, SourceReplacedError
from pecan_ray.sources import ImageFolder, JsonLines, Parquet, TextLines, WebDataset
from tests.sample_files import tar_of
from tests.source_contract import check_contract, elements_of


def test_parquet_is_cut_at_row_groups(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 25)):
        table = pa.table({"n": range(first, first + 25), "t": [str(n) for n in range(25)]})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=10)
    expected = [{"n": np.int64(n)} for n in range(50)]
    check_contract(Parquet(str(tmp_path), columns=["n"], split_bytes=1, batch_rows=4), expected, splits=6)
    assert Parquet(str(tmp_path), columns="label").columns == Parquet(str(tmp_path), columns=["label"]).columns
    check_contract(Parquet(str(tmp_path), "n"), expected, splits=2)
    pq.write_table(pa.table({"n": np.zeros(50)}), tmp_path / "equal", row_group_size=10, use_dictionary=False)
    size = pq.read_metadata(tmp_path / "equal").row_group(0).total_byte_size
    assert len(list(Parquet(str(tmp_path / "equal"), split_bytes=2 * size).splits())) == 3, "two, two and one"


def test_columns_that_the_first_file_lacks_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [1], "y": [2], "w": [3]}), tmp_path / "b.parquet")
    with pytest.raises(ColumnError, match=r"b.parquet has columns that the first file lacks: w"):
        list(Parquet(str(tmp_path)).splits())
    assert len(list(Parquet(str(tmp_path), columns=["y"]).splits())) == 2


def images_in(root: Path) -> list[dict[str, object]]:
    """Write two classes of images, and some files that are none; return the elements."""
    names = ["cat/1.jpg", "cat/2.PNG", "cat/deep/0.jpeg", "cat.small/7.jpg", "cat.small/8.jpg"]
    for name in [*names, "cat/notes.txt", "cat.small/README", "cat/.3.jpg", ".hidden/1.jpg", "loose.jpg"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(f"image {name}".encode())
    return [
        {"image": f"image {name}".encode(), "label": int("small" in name), "path": str(root / name)} for name in names
    ]


def test_image_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = images_in(tmp_path)
    source = ImageFolder(tmp_path, split_files=2)
    with caplog.at_level("INFO", "pecan_ray"):
        assert source.classes == ["cat", "cat.small"] and source.num_elements() == 5
    assert "leaves out files by their extensions: 1 .txt, 1 without extension" in caplog.text
    check_contract(source, expected, splits=3)
    before = list(source.splits())
    (tmp_path / "cat" / "2.PNG").write_bytes(b"another image")
    first, *others = source.splits()
    assert first != before[0] and others == before[1:]
    reading = source.read(before[0])
    assert next(reading)["path"] == str(tmp_path / "cat" / "1.jpg")
    with pytest.raises(SourceReplacedError, match=r"cat/2\.PNG"):
        next(reading)
    assert len(list(source.read(first))) == 2


@pytest.mark.parametrize("kind", [TextLines, JsonLines])
def test_a_file_of_one_split_that_is_cut_while_it_is_read_counts_what_is_lost(kind: Any, tmp_path: Path) -> None:
    path, count = tmp_path / "lines", 20_000
    path.write_text("".join(f'{{"i": "{number + 10_000} {"x" * 200}"}}\n' for number in range(count)))
    plan = PecanPipeline(kind(str(path))).batch(100).plan
    rows = 0
    bad: list[BadElement] = []
    for number, produced in enumerate(InProcessEpoch(plan, engine="python", on_error="skip").produced()):
        rows, bad = rows + produced.rows, [*bad, *produced.bad]
        if number == 2:
            os.truncate(path, path.stat().st_size // 2)
    assert 300 < rows < count and sum(one.elements_left_out for one in bad) == pytest.approx(count - rows, rel=0.01)


def test_image_folder_without_classes_or_images(tmp_path: Path) -> None:
    for folder, said in (("", "no class folder"), ("", "no image in the class folders"), ("none", "does not exist")):
        with pytest.raises(SourceNotFoundError, match=said):
            next(ImageFolder(tmp_path / folder).splits())
        (tmp_path / "cat").mkdir(exist_ok=True)


def test_classes_are_those_that_are_given_in_their_order(tmp_path: Path) -> None:
    images_in(tmp_path)
    (tmp_path / "cat.small" / "five.JFIF").write_bytes(b"five")
    (tmp_path / "cat.small" / "notes.heics").write_bytes(b"none")
    source, both = ImageFolder(tmp_path, classes=["cat.small"]), ImageFolder(tmp_path, classes=["cat.small", "cat"])
    assert {(one["label"], one["path"].split("/")[-2]) for one in elements_of(source)} == {(0, "cat.small")}
    assert source.num_elements() == 3 and pickle.loads(pickle.dumps(source)) == source
    assert both.classes == ["cat.small", "cat"] and both.identity() != ImageFolder(tmp_path).identity()
    with pytest.raises(SourceNotFoundError, match=r"'dog'.*It has: cat, cat\.small"):
        list(ImageFolder(tmp_path, classes=["cat", "dog"]).splits())
    for wrong in ("cat", [], ["cat", "cat"], ["a/b"], [1]):
        with pytest.raises(PlanError, match="different names of folders"):
            ImageFolder(tmp_path, classes=wrong)  # type: ignore[arg-type]


def test_files_about_data_are_no_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    for name in ("README.md", "LICENSE", "_SUCCESS", ".DS_Store", "a.jsonl.crc", "Thumbs.db", "dataset-card.md"):
        (tmp_path / name).write_text("of no use\n")
    for path in (tmp_path, tmp_path / "*", tmp_path / "**"):
        assert elements_of(JsonLines(path)) == [{"n": 1}]
    for named in ("README.md", "*.md"):
        with pytest.raises(CorruptSourceError, match=r"README\.md"):
            elements_of(JsonLines(tmp_path / named))


LONG = "set/" + "k" * 150
FILES = {
    "set/0.jpg": b"j" * 1000,
    "set/0.cls": b"4",
    "set/1.JPG": b"",
    "set/1.seg.png": b"p" * 512,
    "set/README": b"no sample",
    "set/__meta.v1__": b"{}",
    f"{LONG}.jpg": b"long",
}
SAMPLES = [
    {"__key__": "set/0", "jpg": b"j" * 1000, "cls": b"4"},
    {"__key__": "set/1", "jpg": b"", "seg.png": b"p" * 512},
    {"__key__": LONG, "jpg": b"long"},
]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_webdataset_samples(tmp_path: Path, kind: int) -> None:
    (tmp_path / "0.tar").write_bytes(tar_of(FILES, kind))
    (tmp_path / "1.tar.gz").write_bytes(gzip.compress(tar_of({"ä.txt": b"!"}, kind)))
    check_contract(WebDataset(str(tmp_path)), [*SAMPLES, {"__key__": "ä", "txt": b"!"}], splits=2)


def test_paths_are_made_absolute_where_the_pipeline_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("here")
    monkeypatch.chdir(tmp_path)
    source = TextLines("a.txt")
    monkeypatch.chdir("/")
    assert [split.path for split in source.splits()] == [str(tmp_path / "a.txt")]
    with pytest.raises(PlanError, match="at least one path"):
        TextLines([])
