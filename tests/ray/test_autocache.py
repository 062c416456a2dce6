"""Splits that are kept on disk, on real workers: filled by several, used by later epochs and jobs, whoever dies."""

from __future__ import annotations

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data

import pecan_ray as pecan
from pecan_ray import images
from pecan_ray.cache.store import EntryStore
from pecan_ray.engines.entry_objects import EntryObjects
from pecan_ray.observe import epoch_watch
from pecan_ray.options import Cache
from tests.ray.workers import kill, living_worker

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

SPLITS, EACH = 24, 16


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(SPLITS):
        lines = range(number * EACH, (number + 1) * EACH)
        (folder / f"{number:02}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def pipe_of(files: Path, name: str = "kept", folder: str = "cache", remote: Path | None = None) -> pecan.PecanPipeline:
    calls = files.parent / "calls"

    def slow(value: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.003)  # what makes it worth keeping
        with open(calls, "a") as file:
            file.write(f"{value['text']}\n")
        return {"i": int(value["text"]), "x": np.full(50, float(value["text"]))}

    def drawn(value: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"i": value["i"], "r": rng.random() + value["x"][0]}

    config = pecan.Config(cache=Cache(files.parent / folder, 64 << 20, remote=remote), order_folder="")
    source = pecan.sources.TextLines(files)
    return pecan.PecanPipeline(source, name=name, config=config).map(slow).autocache().map(drawn).batch(8)


def calls(files: Path) -> Counter[int]:
    """Return how often each element was computed since the last time, but for those of a sample."""
    path = files.parent / "calls"
    found = Counter(map(int, path.read_text().split())) if path.exists() else Counter()
    path.unlink(missing_ok=True)
    return found


def seen(batches: pecan.Batches) -> list[tuple[int, float]]:
    return sorted((int(i), float(r)) for batch in batches for i, r in zip(batch["i"], batch["r"], strict=True))


def plain(files: Path, epochs: int) -> list[tuple[int, float]]:
    """Return what the pipeline gives without a cache."""
    return seen(pipe_of(files).iter_batches(epochs=epochs, workers=pecan.Workers(local=1), debug=True))


def test_later_epochs_and_jobs_compute_nothing_and_see_the_same_but_for_a_file_that_has_changed(files: Path) -> None:
    expected = plain(files, 2)
    calls(files)
    assert seen(pipe_of(files).iter_batches(epochs=2, workers=pecan.Workers(local=2))) == expected
    # A sample has computed some as well, and two workers may have gone through a split side by side at its end.
    assert sum(calls(files).values()) < 1.5 * SPLITS * EACH + 300
    with pipe_of(files).iter_batches(epochs=2, workers=pecan.Workers(local=1)) as batches:
        assert seen(batches) == expected
        told = [event.text for event in batches.report().events]
    assert any("autocache: cache at 'autocache'" in text for text in told)
    assert not calls(files), "a later job computes nothing, and needs no sample"
    (files / "03.txt").write_text("".join(f"{1000 + line}\n" for line in range(EACH)))
    found = [i for i, _ in seen(pipe_of(files).iter_batches(workers=pecan.Workers(local=1)))]
    assert sorted(calls(files)) == list(range(1000, 1000 + EACH)), "it is never served as it was"
    assert set(range(1000, 1000 + EACH)) <= set(found) and len(found) == SPLITS * EACH


@pytest.mark.slow
def test_what_a_job_has_computed_is_read_by_one_with_another_disk(files: Path, tmp_path: Path) -> None:
    """The job ends when all is read, and what its workers have yet to write elsewhere is written before they do."""
    expected, remote = plain(files, 1), tmp_path / "mounted"
    assert seen(pipe_of(files, remote=remote).iter_batches(workers=pecan.Workers(local=1, remote=1))) == expected
    (kind,) = [kind for kind in EntryObjects(str(remote)).kinds() if kind != "bench"]
    assert len(list(EntryObjects(str(remote)).entries(kind))) == SPLITS
    with pipe_of(files, folder="other disk", remote=remote).iter_batches(workers=pecan.Workers(local=1)) as batches:
        calls(files)
        assert seen(batches) == expected
        assert any("all of it in the remote store" in event.text for event in batches.report().events)
    assert not calls(files)
    with EntryStore(files.parent / "other disk", max_bytes=64 << 20) as store:
        assert store.verify() == (SPLITS, ())


def test_a_worker_that_is_killed_while_it_fills_loses_and_repeats_nothing(files: Path) -> None:
    expected = plain(files, 3)
    found = []
    with pipe_of(files).iter_batches(epochs=3, workers=pecan.Workers(local=2)) as batches:
        for number, batch in enumerate(batches):
            found += [(int(i), float(r)) for i, r in zip(batch["i"], batch["r"], strict=True)]
            if number in (4, 20):
                kill(living_worker("local", but=[]))
    assert sorted(found) == expected
    with EntryStore(files.parent / "cache", max_bytes=64 << 20) as store:
        assert store.verify() == (SPLITS, ())


@pytest.mark.slow
def test_two_jobs_fill_together_and_a_state_goes_on_from_what_is_kept(files: Path) -> None:
    expected = plain(files, 1)

    def run(name: str) -> list[tuple[int, float]]:
        return seen(pipe_of(files, name).iter_batches(workers=pecan.Workers(local=1)))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, ("one", "other"))) == [expected] * 2
    with pipe_of(files).iter_batches(workers=pecan.Workers(local=1)) as batches:
        first = [pair for batch in islice(batches, 20) for pair in zip(batch["i"], batch["r"], strict=True)]
        state = json.loads(json.dumps(batches.state_dict()))
    calls(files)
    rest = seen(pipe_of(files).iter_batches(workers=pecan.Workers(local=2), state=state))
    assert sorted([*((int(i), float(r)) for i, r in first), *rest]) == expected
    assert not calls(files)


@pytest.mark.slow
def test_an_epoch_from_the_cache_corrects_what_the_next_job_is_promised(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_watch, "LEAST_WAITING", 0.0)  # how much this trainer waits is another matter
    with pipe_of(files).iter_batches(epochs=3, workers=pecan.Workers(local=1)) as batches:
        seen(batches)
        (told,) = [event.text for event in batches.report().events if "an epoch took" in event.text]
    assert "later jobs go by what it took" in told
    with pipe_of(files).iter_batches(workers=pecan.Workers(local=1)) as batches:
        seen(batches)
        assert any("an epoch (as measured;" in event.text for event in batches.report().events)


@pytest.mark.slow
def test_a_state_goes_on_with_reduced_copies(tmp_path: Path) -> None:
    folder = tmp_path / "photographs" / "all"
    folder.mkdir(parents=True)
    for number in range(24):
        photograph: Any = (data.coffee, data.astronaut, data.chelsea)[number % 3]
        picture = cv2.resize(photograph(), (1200, 900 + 8 * number))
        assert cv2.imwrite(str(folder / f"{number:02}.jpg"), picture)

    def pipe() -> pecan.PecanPipeline:
        config = pecan.Config(cache=Cache(tmp_path / "cache", 1 << 30), order_folder="", sample_seconds=60.0)
        source = pecan.sources.ImageFolder(tmp_path / "photographs", split_files=4)
        made = pecan.PecanPipeline(source, name="copies", config=config).map(images.Decode(), on="image").autocache()
        crop, resize = images.RandomCrop(area=(0.5, 1.0)), images.Resize(64, 64)
        return made.map(crop, on="image").map(resize, on="image").batch(4)

    with pipe().iter_batches(epochs=3, workers=pecan.Workers(local=1)) as batches:
        taken = list(islice(batches, 8))
        state = json.loads(json.dumps(batches.state_dict()))
        said = [event.text for event in batches.report().events]
    assert any("autocache: reduced copies: " in text for text in said), said
    assert "Decode as reduced " in json.dumps(state)
    with pipe().iter_batches(epochs=3, workers=pecan.Workers(local=1), state=state) as batches:
        taken += list(batches)
        said = [event.text for event in batches.report().events]
    assert any("(rule reduced copies)" in text for text in said), said
    assert Counter(Counter(path for batch in taken for path in batch["path"]).values()) == {3: 24}
    with EntryStore(tmp_path / "cache", max_bytes=1 << 30) as store:
        sizes = store.sizes()
    assert sum(one.elements for one in sizes) == 24 and sum(one.nbytes for one in sizes) < 24 * 900 * 1200
