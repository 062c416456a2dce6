"""Sources that are read by the indices of a sampler: files, tables, and what a pipeline makes of their batches."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pecan_ray as pecan
from pecan_ray.errors import PlanError, SourceNotFoundError
from pecan_ray.sources import Arrays, AudioFolder, ByIndex, Files, HuggingFace, ImageFolder, Items, Lance, TextLines
from tests.source_contract import check_contract, elements_of, same
from tests.unit.engines.engine_leases import column, run_engine

ROWS = 40


def drawn(epoch: int, seed: int) -> Any:
    """Some indices, with repetition."""
    return np.random.default_rng((seed, epoch)).integers(0, ROWS, 60)


def images(folder: Path, **how: Any) -> ImageFolder:
    """Images of one colour, in two folders."""
    for number in range(ROWS):
        path = folder / f"{number % 2}" / f"{number:03}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        Image.new("RGB", (2, 2), (number, 0, 0)).save(path)
    return ImageFolder(folder, split_files=7, **how)


def recordings(folder: Path) -> AudioFolder:
    """Files that are called recordings."""
    (folder / "a").mkdir()
    for number in range(ROWS):
        (folder / "a" / f"{number:03}.wav").write_bytes(b"%d" % number)
    return AudioFolder(folder)


def table_of_lance(folder: Path) -> Lance:
    """A table of several fragments."""
    lance, pa = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    lance.write_dataset(pa.table({"n": range(ROWS)}), str(folder / "t"), max_rows_per_file=15)
    return Lance(str(folder / "t"), batch_rows=7)


def table_of_hugging_face(_: Path) -> HuggingFace:
    """A table in memory."""
    return HuggingFace(pytest.importorskip("datasets").Dataset.from_dict({"n": list(range(ROWS))}))


SOURCES: dict[str, Callable[[Path], Any]] = {
    "images": images,
    "recordings": recordings,
    "files": lambda folder: Files(images(folder).root),
    "arrays": lambda _: Arrays(i=np.arange(ROWS)),
    "items": lambda _: Items(list(range(ROWS))),
    "Lance": table_of_lance,
    "Hugging Face": table_of_hugging_face,
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_elements_come_by_the_indices_of_a_sampler(make: Any, tmp_path: Path) -> None:
    source = make(tmp_path)
    whole = elements_of(source)
    wanted = [whole[index] for index in drawn(0, 0)]
    by_index = ByIndex(source, sampler=drawn)
    check_contract(by_index, wanted, splits=sum(1 for _ in by_index.splits()))
    pipe = pecan.PecanPipeline(source, sampler=drawn, seed=3)
    found = list(pickle.loads(pickle.dumps(pipe)).iter_batches(debug=True, epochs=2, first_epoch=0))
    expected = [whole[index] for epoch in (0, 1) for index in drawn(epoch, 3)]
    assert len(found) == len(expected) and all(map(same, found, expected))
    shuffled = list(pecan.PecanPipeline(source, shuffle=True).iter_batches(debug=True))
    assert len(shuffled) == ROWS and not all(map(same, shuffled, whole))
    assert all(any(same(one, other) for other in shuffled) for one in whole)


def test_files_are_listed_once_and_one_that_cannot_be_read_is_left_out_alone(tmp_path: Path) -> None:
    pipe = pecan.PecanPipeline(images(tmp_path), shuffle=True)
    assert len(pipe) == ROWS
    (tmp_path / "0" / "000.png").rename(tmp_path / "0" / "added.png")
    with pytest.raises(SourceNotFoundError, match=r"000\.png"):
        run_engine(pipe.batch(5))
    assert len(column(run_engine(pipe.batch(5), on_error="skip"), "label")) == ROWS - 1


def test_images_of_a_batch_sampler_are_decoded_and_put_together(tmp_path: Path) -> None:
    source = images(tmp_path, decode=True)
    pairs = [[0, 1], [21, 20, 22]]

    def reds(elements: list[Any]) -> Any:
        return {"red": [int(one["image"][0, 0, 0]) for one in elements]}

    first, second = pecan.PecanPipeline(source, batch_sampler=pairs).iter_batches(debug=True)
    assert first["image"].shape == (2, 2, 2, 3) and second["label"].tolist() == [1, 1, 1]
    listed = pecan.PecanPipeline(source, batch_sampler=pairs, collate=reds).iter_batches(debug=True)
    assert [batch["red"] for batch in listed] == [[0, 2], [3, 1, 5]]
    (one, *_) = pecan.PecanPipeline(source, weights=[0, 1, *[0] * (ROWS - 2)]).iter_batches(debug=True)
    assert one["image"][0, 0].tolist() == [2, 0, 0]


def test_what_cannot_be_read_by_numbers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    streamed = pytest.importorskip("datasets").Dataset.from_dict({"n": [1, 2]}).to_iterable_dataset()
    wrong: Any = 1
    lines, rows, pipeline = TextLines(tmp_path / "a.txt"), Arrays(i=np.arange(3)), pecan.PecanPipeline
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: pipeline(lines, shuffle=True), r"PecanPipeline\(shuffle=...\) reads by indices, which TextLines can"),
        (lambda: Arrays(i=np.arange(3), shuffle=True), r"PecanPipeline\(Arrays\(\.\.\.\), shuffle=\.\.\.\)"),
        (lambda: pipeline(rows, collate=len), r"needs a batch_sampler"),
        (lambda: pipeline(rows, shuffle=wrong), r"shuffle=\.\.\."),
        (lambda: pipeline(rows, batch_sampler=[[0]], engine="tensorflow"), r"gives the tensorflow engine no batches"),
        (lambda: pipeline(HuggingFace(streamed), shuffle=True), "streamed"),
    ]
    for call, said in calls:
        with pytest.raises(PlanError, match=said):
            call()
