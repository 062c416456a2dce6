"""Splits that are kept on disk, on real workers: filled by several, used by later epochs and jobs, whoever dies."""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.cache_options import Cache
from pecan_ray.caching.store import EntryStore
from pecan_ray.observe import epoch_watch
from pecan_ray.plan.splits import Split
from tests.ray.pipelines import ONE
from tests.ray.workers import ONE_BY_ONE, kill, living_worker
from tests.unit.engines.cache_rig import Numbers

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


def pipe_of(files: Path) -> pecan.PecanPipeline:
    calls = files.parent / "calls"

    def slow(value: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.003)  # what makes it worth keeping
        with open(calls, "a") as file:
            file.write(f"{value['text']}\n")
        return {"i": int(value["text"]), "x": np.full(50, float(value["text"]))}

    def drawn(value: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"i": value["i"], "r": rng.random() + value["x"][0]}

    config = pecan.Config(cache=Cache(files.parent / "cache", 64 << 20), order_folder="")
    source = pecan.sources.TextLines(files)
    return pecan.PecanPipeline(source, name="kept", config=config).map(slow).autocache().map(drawn).batch(8)


def calls(files: Path) -> list[int]:
    """Return the elements that were computed since the last time."""
    return sorted(map(int, written(files)))


def written(files: Path) -> list[str]:
    """Return the lines that were written down since the last time."""
    path = files.parent / "calls"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


def rows(batch: Any) -> list[tuple[int, float]]:
    return [(int(i), float(r)) for i, r in zip(batch["i"], batch["r"], strict=True)]


def seen(batches: pecan.Batches) -> list[tuple[int, float]]:
    return sorted(row for batch in batches for row in rows(batch))


def test_later_epochs_and_jobs_compute_nothing_and_see_the_same_but_for_a_file_that_has_changed(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind workers that are killed while they fill the cache, which lose and repeat nothing."""
    monkeypatch.setattr(epoch_watch, "LEAST_S", math.inf)  # how long an epoch takes here decides nothing for later jobs
    without = seen(pipe_of(files).iter_batches(epochs=3, debug=True))
    found = []
    with pipe_of(files).iter_batches(epochs=3, workers=pecan.Workers(local=2), **ONE_BY_ONE) as batches:
        for number, batch in enumerate(batches):
            found += rows(batch)
            if number in (4, 20):
                kill(living_worker("local", but=[]))
    assert sorted(found) == without
    with EntryStore(files.parent / "cache", max_bytes=64 << 20) as store:
        assert store.verify() == (SPLITS, ())
    calls(files)
    later = pipe_of(files)
    with later.iter_batches(epochs=3, workers=ONE) as batches:
        assert seen(batches) == without
        told = [event.text for event in batches.report().events]
    assert any("autocache: cache at 'autocache'" in text for text in told)
    assert not calls(files), "a later job computes nothing, and needs no sample"
    (files / "03.txt").write_text("".join(f"{1000 + line}\n" for line in range(EACH)))
    last = [i for i, _ in seen(later.iter_batches(workers=ONE))]
    assert calls(files) == list(range(1000, 1000 + EACH)), "it is never served as it was"
    assert set(range(1000, 1000 + EACH)) <= set(last) and len(last) == SPLITS * EACH


class SlowNumbers(Numbers):
    """Takes ten milliseconds for an element, and writes down which splits are read in which process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(SPLITS, EACH)
        self._calls = folder / "calls"

    def read(self, split: Split, start: int = 0) -> Iterator[dict[str, Any]]:
        with open(self._calls, "a") as file:
            file.write(f"{os.getpid()} {split.index}\n")
        for value in super().read(split, start):
            time.sleep(0.01)
            yield value


def reads(files: Path, told: list[str]) -> Counter[int]:
    """Return how often workers have begun to read each split; samples for a decision are read in other processes."""
    workers = re.findall(r"runs as process (\d+)", "\n".join(told))
    lines = map(str.split, written(files))
    return Counter(int(split) for process, split in lines if process in workers)


def halve(value: dict[str, Any]) -> dict[str, Any]:
    return {"i": value["i"], "r": value["x"][0] / 2}


def test_the_tensorflow_engine_reads_a_slow_source_once_whoever_dies(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_watch, "LEAST_S", math.inf)  # how long an epoch takes here decides nothing for later jobs
    config = pecan.Config(cache=Cache(files.parent / "cache", 64 << 20), order_folder="", reorder="off")
    start = pecan.PecanPipeline(SlowNumbers(files.parent), name="graph", engine="tensorflow", config=config)
    pipe = start.autocache().map(halve).batch(8)
    expected = [(i, i / 2) for i in range(SPLITS * EACH)]
    found = []
    with pipe.iter_batches(epochs=5, workers=pecan.Workers(local=2), **ONE_BY_ONE) as batches:
        for number, batch in enumerate(batches):
            found += rows(batch)
            if number == 4:
                kill(living_worker("local", but=[]))
        told = [event.text for event in batches.report().events]
    assert sorted(found) == sorted(5 * expected)
    assert any("autocache: source cache at 'autocache'" in text for text in told), told
    times = reads(files, told)
    assert times.keys() == set(range(SPLITS))
    # The killed worker had read one split in part: its rest is read again, and in the next epoch all of it.
    assert sorted(times.values())[-2] == 1 and max(times.values()) <= 3, times
    with EntryStore(files.parent / "cache", max_bytes=64 << 20) as store:
        assert store.verify() == (SPLITS, ())
    with pipe.iter_batches(workers=ONE) as batches:
        assert sorted(row for batch in batches for row in rows(batch)) == expected
    assert not written(files), "a later job reads nothing"
