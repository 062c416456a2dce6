"""Files whose elements are only counted by reading, in the order in which they are written, from several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from tests.sample_files import framed, tar_of

pytestmark = pytest.mark.usefixtures("three_nodes")

ELEMENTS = 3000


def numbered(element: dict[str, Any]) -> dict[str, Any]:
    """Return the number that an element of any of the files is written with."""
    value = element.get("text", element.get("record", element.get("txt", b"")))
    return {"i": int(value)}


def test_lines_records_and_samples_come_in_the_order_of_their_files(tmp_path: Path) -> None:
    for part in range(2):
        numbers = range(part * ELEMENTS // 2, (part + 1) * ELEMENTS // 2)
        (tmp_path / f"{part}.txt").write_text("".join(f"{number}\n" for number in numbers))
        (tmp_path / f"{part}.tfrecord").write_bytes(b"".join(framed(b"%d" % number) for number in numbers))
        (tmp_path / f"{part}.tar").write_bytes(tar_of({f"{number:06}.txt": b"%d" % number for number in numbers}))
    sources = (
        pecan.sources.TextLines(str(tmp_path / "*.txt"), split_bytes=5000),
        pecan.sources.TFRecords(str(tmp_path / "*.tfrecord"), split_bytes=5000),
        pecan.sources.WebDataset(str(tmp_path / "*.tar")),
    )
    for source in sources:
        pipe = pecan.PecanPipeline(source, name=type(source).__name__).map(numbered).batch(64)
        with pipe.iter_batches(workers=pecan.Workers(local=2, remote=1), epochs=2) as batches:
            found = [batch["i"].tolist() for batch in batches]
            assert "rows come in the order of the source" in batches.explain()
        assert [number for batch in found for number in batch] == [*range(ELEMENTS)] * 2
        assert [len(batch) for batch in found] == ([64] * (ELEMENTS // 64) + [ELEMENTS % 64]) * 2
