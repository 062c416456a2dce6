"""What bad input and functions that misbehave get, as a trainer on a real cluster sees it: one clear exception each."""

from __future__ import annotations

import os
import resource
import runpy
import stat
import subprocess
import sys
import threading
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
from pecan_ray.errors import OpError
from pecan_ray.options import Config
from pecan_ray.plan.splits import Element, Origin, Split
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


# --- functions that misbehave ---------------------------------------------------------------------------------


def odd(rows: int = 2000, split_rows: int = 500, **options: Any) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(i=np.arange(rows), split_rows=split_rows)
    return pecan.PecanPipeline(source, name="odd", **options)


def poisoned(element: dict[str, Any]) -> dict[str, Any]:
    if element["i"] == 77:
        os._exit(9)
    return element


def test_an_element_that_kills_its_process_is_found_and_quarantined(tmp_path: Path) -> None:
    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"))
    pipe = odd(200, 20, config=config).map(poisoned).batch(10)  # each larger split costs more workers
    batches = pipe.iter_batches(workers=pecan.Workers(2), on_error="quarantine")
    seen = [int(i) for batch in batches for i in batch["i"]]
    assert sorted(seen) == [i for i in range(200) if i != 77]
    report = batches.report()
    assert report.bad_elements == 1 and report.workers_lost <= 8
    assert any("element 17 of split 3 is left out" in event.text for event in report.events)
    (bad,) = quarantined(tmp_path / "bad.jsonl")
    assert (bad.where, bad.origin, bad.element) == ("element 17 of split 3", Origin(0, 0, 0, 3, 17), None)


@pytest.mark.slow
def test_an_element_for_which_there_is_no_memory_is_a_bad_one(tmp_path: Path) -> None:
    def hungry(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] != 777:
            return element
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, before[1]))
        try:
            return {"i": np.ones(2**28)}
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"))
    pipe = odd(config=config).map(hungry, name="hungry").batch(10)
    batches = pipe.iter_batches(workers=pecan.Workers(1), on_error="quarantine")
    assert sum(len(batch["i"]) for batch in batches) == 1999 and batches.report().workers_lost == 0
    (bad,) = quarantined(tmp_path / "bad.jsonl")
    assert bad.op == "hungry" and "MemoryError" in bad.error and bad.element["i"] == 777


def test_elements_whose_split_yields_no_batch_are_kept_too(tmp_path: Path) -> None:
    def small(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] >= 400:
            raise ValueError("too large")
        return element

    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"), error_budget=1.0)
    batches = odd(config=config).map(small).batch(10).iter_batches(workers=pecan.Workers(1), on_error="quarantine")
    assert sum(len(batch["i"]) for batch in batches) == 400
    kept = [int(bad.element["i"]) for bad in quarantined(tmp_path / "bad.jsonl")]
    assert sorted(kept) == list(range(400, 2000)) and batches.report().bad_elements == 1600


def test_a_column_that_cannot_be_sent_is_an_error_by_name() -> None:
    def lock(element: dict[str, Any]) -> dict[str, Any]:
        return {**element, "lock": threading.Lock() if element["i"] == 777 else None}

    pipe = odd().map(lock, name="lock").batch(10)
    with pytest.raises(OpError, match="lock: column 'lock' of element 277 of split 1 cannot be sent to the trainer"):
        list(pipe.iter_batches(workers=pecan.Workers(1)))
    batches = pipe.iter_batches(workers=pecan.Workers(1), on_error="skip")
    assert sum(len(batch["i"]) for batch in batches) == 1999
    assert batches.report().bad_elements == 1


class SilentError(Exception):
    """Its text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class LockedError(Exception):
    """It cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a line for each number below 200."""
    path = tmp_path_factory.mktemp("lines") / "numbers.txt"
    path.write_text("".join(f"{number}\n" for number in range(200)))
    return path


def test_what_is_meant_for_the_process_is_an_error_by_name_also_where_bad_elements_are_skipped(lines: Path) -> None:
    def fail(line: Any) -> Any:
        if int(line) == 77:
            raise SystemExit
        return line

    pipe = pecan.PecanPipeline(pecan.sources.TextLines(lines), name="odd").map(fail, on="text", name="fail").batch(10)
    with pytest.raises(OpError, match=rf"fail failed on element 77 of {lines}.*SystemExit") as caught:
        list(pipe.iter_batches(workers=pecan.Workers(1), on_error="skip"))
    assert (caught.value.op, caught.value.file) == ("fail", str(lines))


def test_exceptions_that_cannot_be_told_cost_their_elements_and_no_other(lines: Path) -> None:
    def fail(line: Any) -> Any:
        if int(line) in (77, 78):
            raise (SilentError if int(line) == 77 else LockedError)()
        return line

    pipe = pecan.PecanPipeline(pecan.sources.TextLines(lines), name="odd").map(fail, on="text").batch(10)
    batches = pipe.iter_batches(workers=pecan.Workers(1), on_error="skip")
    seen = sorted(int(line) for batch in batches for line in batch["text"])
    assert seen == sorted({*range(200)} - {77, 78})
    assert batches.report().bad_elements == 2
