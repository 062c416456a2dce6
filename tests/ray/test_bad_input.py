"""What bad input gets, as seen by a trainer on a real cluster: one clear exception each."""

from __future__ import annotations

import os
import runpy
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray

import pecan_ray as pecan
from pecan_ray import errors
from pecan_ray.plan.splits import Element, Split
from pecan_ray.quarantine import quarantined
from tests.ray.waiting import ENDS_S
from tests.unit.sources.test_sources_tfrecord import framed

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def test_the_file_of_two_bad_elements_is_complete_and_replayed_without_running_code(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import numpy as np\nimport pecan_ray as pecan\n\n"
        "def strictly(i):\n    if i in (3, 60):\n        raise ValueError('refused')\n    return i\n\n"
        "pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(200)), name='two')\n"
        "pipe = pipe.map(strictly, on='i').batch(4)\n"
    )
    path = tmp_path / "bad.jsonl"
    pipe: Any = runpy.run_path(str(program))["pipe"]
    pipe = pipe.with_config(quarantine_path=str(path))
    with pipe.iter_batches(on_error="quarantine", workers=pecan.Workers(local=1, remote=1)) as batches:
        assert sum(len(batch["i"]) for batch in batches) == 198
    assert batches.report().bad_elements == 2 and "2 bad elements" in str(batches.report())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(int(bad.element["i"]) for bad in quarantined(path)) == [3, 60], (
        "read without trust: no pickle is in it"
    )
    assert '"pickle"' not in path.read_text()
    command = [sys.executable, "-m", "pecan_ray.cli", "replay", str(path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert (done.stdout + done.stderr).count("ValueError: refused") >= 2, done.stdout + done.stderr


def train_and_keep(rank: int, path: str) -> tuple[list[int], int]:
    """Train as one of two ranks; return the elements and how many bad ones the report tells of."""

    def even(i: Any) -> Any:
        if i % 50 == 7:
            raise ValueError("refused")
        return i

    config = pecan.Config(quarantine_path=path, error_budget=1.0)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(2000), split_rows=40), name="kept", config=config)
    options: dict[str, Any] = {"rank": rank, "world_size": 2, "job": "kept", "on_error": "quarantine", "epochs": 2}
    with pipe.map(even, on="i").batch(8).iter_batches(workers=pecan.Workers(local=2), **options) as it:
        return [int(i) for batch in it for i in batch["i"]], it.report().bad_elements


def test_two_trainers_keep_every_bad_element_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    with ThreadPoolExecutor(2) as pool:
        (one, bad), (other, _) = pool.map(lambda rank: train_and_keep(rank, str(path)), range(2))
    kept = Counter((found.origin.epoch, int(found.element["i"])) for found in quarantined(path) if found.origin)
    assert kept == Counter((epoch, i) for epoch in range(2) for i in range(2000) if i % 50 == 7)
    assert bad == len(kept)
    assert set(one) | set(other) <= {i for i in range(2000) if i % 50 != 7}


def test_a_torn_file_costs_two_trainers_what_lies_behind_the_break_and_nothing_else(tmp_path: Path) -> None:
    for file in range(4):
        records = (framed(b"%03d" % (50 * file + number) * 100) for number in range(50))
        (tmp_path / f"{file}.tfrecord").write_bytes(b"".join(records))
    torn = tmp_path / "3.tfrecord"
    content = bytearray(torn.read_bytes())
    content[len(content) * 30 // 50 + 100] ^= 1  # in record 180
    torn.write_bytes(content)
    source = pecan.sources.TFRecords(str(tmp_path / "*.tfrecord"))
    pipe = pecan.PecanPipeline(source, name="torn", config=pecan.Config(error_budget=1.0)).batch(16)
    options: dict[str, Any] = {"world_size": 2, "job": "torn", "workers": pecan.Workers(local=1), "on_error": "skip"}
    memory: list[float] = []

    def train(rank: int) -> list[int]:
        with pipe.iter_batches(rank=rank, **options) as batches:
            controller: Any = ray.get_actor("pecan:torn:controller", namespace="pecan")
            process = psutil.Process(ray.get(controller.process_id.remote()))
            memory.append(process.memory_full_info().uss / 2**20)
            records = [int(record[:3]) for batch in batches for record in batch["record"]]
            memory.append(process.memory_full_info().uss / 2**20)
            return records

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, range(2)))
    assert max(memory) < min(memory) + 30, "the controller knows of a split that broke as little as of others"
    readable = set(range(180))
    received = found[0] + found[1]
    assert len(received) == len(set(received)) and set(received) <= readable
    assert len(received) >= len(readable) - 1, "the trainers get equally many"


def test_a_mistake_shows_before_the_data_has_been_gone_through() -> None:
    rows = 300_000

    def wrong(element: Any) -> Any:
        raise ValueError("always")

    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(rows)), name="mistake").map(wrong)
    with pytest.raises(errors.ErrorBudgetError, match="wrong") as caught:
        list(pipe.batch(8).iter_batches(on_error="skip"))
    assert int(caught.value.fields["bad"]) < rows / 10


@dataclass(frozen=True)
class SeenByOthers:
    """Ten numbers in each split, which one process, the first that looks, cannot open."""

    blind: str
    """Link that names the process."""

    def splits(self) -> Iterator[Split]:
        """Yield the splits."""
        yield from (Split(index, elements=10) for index in range(12))

    def read(self, split: Split, start: int = 0) -> Iterator[Element]:
        """Yield the numbers of a split."""
        with suppress(FileExistsError):
            os.symlink(str(os.getpid()), self.blind)
        if os.readlink(self.blind) == str(os.getpid()):
            raise FileNotFoundError(f"there is no file {split.index}")
        yield from ({"i": 10 * split.index + element} for element in range(start, 10))

    def num_elements(self) -> int:
        """Return how many numbers there are."""
        return 120

    def identity(self) -> str:
        """Return what it is told apart by."""
        return "seen by others"


def test_what_one_worker_cannot_open_another_one_reads(tmp_path: Path) -> None:
    blind = str(tmp_path / "blind")
    pipe = pecan.PecanPipeline(SeenByOthers(blind), name="blind", config=pecan.Config(reorder="off")).batch(8)
    with pipe.iter_batches(workers=pecan.Workers(local=2), on_error="skip") as batches:
        rows = [int(i) for batch in batches for i in batch["i"]]
    assert os.readlink(blind) != str(os.getpid()), "a worker has looked first"
    assert sorted(rows) == list(range(120))
    assert batches.report().left_out_elements == batches.report().bad_elements == 0
