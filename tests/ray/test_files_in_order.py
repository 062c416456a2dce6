"""Files whose elements are only counted by reading, in the order in which they are written, from several workers."""

from __future__ import annotations

import bz2
import gzip
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import pecan_ray as pecan
from tests.long_form import some_later
from tests.ray.workers import ONE_BY_ONE, living_worker, lose
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


@pytest.mark.parametrize("engine", some_later(["python", "tensorflow"], "tensorflow"))
def test_compressed_files_come_in_order_behind_a_filter_a_loss_and_a_state(engine: Any, tmp_path: Path) -> None:
    """Some are compressed, one is not; more is made of each than the trainer has room for."""
    for part, name in enumerate(("0.txt.gz", "1.txt", "2.txt.bz2", "3.txt.gz", "4.txt.gz")):
        numbers = range(part * ELEMENTS // 5, (part + 1) * ELEMENTS // 5)
        lines = "".join(f"{number}\n" for number in numbers).encode()
        packed = {".gz": gzip.compress(lines), ".bz2": bz2.compress(lines)}.get((tmp_path / name).suffix, lines)
        (tmp_path / name).write_bytes(packed)
    source = pecan.sources.TextLines(str(tmp_path))
    pipe = pecan.PecanPipeline(source, engine=engine, name=f"packed {engine}")
    pipe = pipe.map(numbered if engine == "python" else in_graph).filter(lambda i: i % 3 > 0, on="i").batch(16)
    found, expected = list[int](), [number for number in range(ELEMENTS) if number % 3]
    with pipe.iter_batches(workers=pecan.Workers(local=2, remote=1), **ONE_BY_ONE) as batches:
        for number, batch in enumerate(islice(batches, 60)):
            found += batch["i"].tolist()
            if number == 3:
                lose(batches, living_worker("local", []))
        assert "rows come in the order of the source" in batches.explain()
        assert "lost" in {event.kind for event in batches.report().events}
        state = batches.state_dict()
    assert found == expected[: 60 * 16]
    with pipe.iter_batches(workers=pecan.Workers(local=3), state=state) as batches:
        found += [number for batch in batches for number in batch["i"].tolist()]
    assert found == expected


def in_graph(element: Any) -> Any:
    """Return the number that a line is written with, in a graph."""
    import tensorflow as tf

    return {"i": tf.strings.to_number(element["text"], tf.int64)}


@pytest.mark.parametrize("form", some_later(["map", "filter"], "filter"))
def test_graphs_of_several_workers_keep_the_order_of_lines_across_a_loss_and_a_state(form: str, tmp_path: Path) -> None:
    """Lines of the first file are shorter than those of the second, so that the estimate is too large by far."""
    half = ELEMENTS // 2
    for part, digits in enumerate((4, 40)):
        numbers = range(part * half, (part + 1) * half)
        (tmp_path / f"{part}.txt").write_text("".join(f"{number:0{digits}}\n" for number in numbers))
    lines = pecan.sources.TextLines(str(tmp_path / "*.txt"), split_bytes=8000)
    pipe = pecan.PecanPipeline(lines, engine="tensorflow", name=form).map(in_graph)
    if form == "filter":
        pipe = pipe.filter(lambda i: i % 3 > 0, on="i")
    pipe, expected = pipe.batch(64), [n for n in range(ELEMENTS) if form == "map" or n % 3]
    found = list[int]()
    with pipe.iter_batches(workers=pecan.Workers(local=2), **ONE_BY_ONE) as batches:
        for number, batch in enumerate(islice(batches, 12)):
            found += batch["i"].tolist()
            if number == 4:
                lose(batches, living_worker("local", []))
        assert "rows come in the order of the source" in batches.explain()
        assert "lost" in {event.kind for event in batches.report().events}
        state = batches.state_dict()
    assert found == expected[: 12 * 64]
    with pipe.iter_batches(workers=pecan.Workers(local=2, remote=1), state=state) as batches:
        rest = [batch["i"].tolist() for batch in batches]
    assert found + [number for batch in rest for number in batch] == expected
    assert all(len(batch) == 64 for batch in rest[:-1])


@pytest.mark.parametrize("kind", some_later(["lines", "records"], "records"))
def test_a_job_goes_on_in_order_behind_damage_with_more_workers(kind: str, tmp_path: Path) -> None:
    source, left = damaged_lines(tmp_path) if kind == "lines" else damaged_records(tmp_path)
    config = pecan.Config(error_budget=0.9, quarantine_path=str(tmp_path / "left-out"))
    pipe = pecan.PecanPipeline(source, name=kind, config=config).map(numbered).batch(64)
    found, state = list[int](), None
    for workers in (1, 2, 3):
        with pipe.iter_batches(workers=pecan.Workers(local=workers), on_error="quarantine", state=state) as batches:
            for batch in islice(batches, 5 if workers < 3 else None):
                found += batch["i"].tolist()
            state = batches.state_dict()
    assert found == left


def damaged_lines(folder: Path) -> tuple[pecan.sources.Source, list[int]]:
    """Write lines of which some are no JSON; return their source and the numbers of the others."""
    bad = {700, 1500, ELEMENTS - 1}
    (folder / "a.jsonl").write_text("".join("?\n" if n in bad else f'{{"text": {n}}}\n' for n in range(ELEMENTS)))
    source = pecan.sources.JsonLines(str(folder / "*.jsonl"), split_bytes=5000)
    return source, [n for n in range(ELEMENTS) if n not in bad]


def damaged_records(folder: Path) -> tuple[pecan.sources.Source, list[int]]:
    """Write records in two files, in each a damaged one, behind which none is found; return source and numbers."""
    half = ELEMENTS // 2
    for part in range(2):
        records = [framed(b"%d" % n) for n in range(part * half, (part + 1) * half)]
        records[700] = b"?" * len(records[700])
        (folder / f"{part}.tfrecord").write_bytes(b"".join(records))
    source = pecan.sources.TFRecords(str(folder / "*.tfrecord"), split_bytes=5000)
    return source, [n for n in range(ELEMENTS) if n % half < 700]
