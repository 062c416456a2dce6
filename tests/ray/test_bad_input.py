"""What bad input and functions that misbehave get, as a trainer on a real cluster sees it: one clear exception each."""

from __future__ import annotations

import itertools
import os
import runpy
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import ElementError
from pecan_ray.options import Config
from pecan_ray.plan.splits import Element, Origin, Split
from pecan_ray.quarantine import quarantined
from tests.ray.pipelines import TWO, ids
from tests.ray.waiting import ENDS_S

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
    with pipe.iter_batches(on_error="quarantine", workers=TWO) as batches:
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

    @property
    def counts_splits(self) -> bool:
        """Each split says how many numbers it holds."""
        return True

    def identity(self) -> str:
        """Return what it is told apart by."""
        return "seen by others"


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


def fail(i: Any) -> Any:
    if i in (77, 78):
        raise (SilentError if i == 77 else LockedError)()
    return i


def unequal(element: Element) -> Element:
    """Shapes change at 40, between two batches, and at 54, within one; the last element fails."""
    number = int(element["i"])
    if number == 99:
        raise ValueError("the last one")
    return {"i": number, "x": np.zeros(1 + (number >= 40) + (number >= 54))}


def is_odd(element: Element) -> bool:
    return bool(element["i"] % 2)


SPLIT_7 = r"column 'x' of element 6 of split 7 is float64\[3\], but that of element 2 of split 7 is float64\[2\]"


@pytest.mark.parametrize(("first", "stop", "rows", "said"), [(0, 60, 25, SPLIT_7), (54, 100, 20, "the last one")])
def test_behind_a_filter_an_error_comes_behind_all_full_batches_before_it(
    first: int, stop: int, rows: int, said: str
) -> None:
    """Whichever workers make their rows; and shapes that change between batches are no error."""
    source = pecan.sources.Arrays(i=np.arange(first, stop), split_rows=7)
    pipe = pecan.PecanPipeline(source, name="unequal").map(unequal).filter(is_odd).batch(5)
    with pipe.iter_batches(workers=pecan.Workers(local=1, remote=1)) as batches:
        got = ids(itertools.islice(batches, rows // 5))
        with pytest.raises(ElementError, match=said):
            next(batches)
    assert got == [*range(1, stop, 2)][first // 2 :][:rows]


def test_what_one_worker_cannot_open_another_one_reads_and_exceptions_that_cannot_be_told_cost_their_elements_alone(
    tmp_path: Path,
) -> None:
    blind = str(tmp_path / "blind")
    pipe = pecan.PecanPipeline(SeenByOthers(blind), name="blind", config=pecan.Config(reorder="off"))
    with pipe.map(fail, on="i").batch(8).iter_batches(workers=pecan.Workers(local=2), on_error="skip") as batches:
        rows = ids(batches)
    assert os.readlink(blind) != str(os.getpid()), "a worker has looked first"
    assert rows == sorted({*range(120)} - {77, 78}), "in the order of the source"
    report = batches.report()
    assert report.bad_elements == 2 and report.left_out_elements == 0, report


def poisoned(element: dict[str, Any]) -> dict[str, Any]:
    if element["i"] == 77:
        os._exit(9)
    return element


def test_an_element_that_kills_its_process_is_found_and_quarantined(tmp_path: Path) -> None:
    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"))
    source = pecan.sources.Arrays(i=np.arange(200), split_rows=20)  # each larger split costs more workers
    pipe = pecan.PecanPipeline(source, name="odd", config=config).map(poisoned).batch(10)
    batches = pipe.iter_batches(workers=pecan.Workers(2), on_error="quarantine")
    assert ids(batches) == [i for i in range(200) if i != 77], "in the order of the source"
    report = batches.report()
    assert report.bad_elements == 1 and report.workers_lost <= 8
    assert any("element 17 of split 3 is left out" in event.text for event in report.events)
    (bad,) = quarantined(tmp_path / "bad.jsonl")
    assert (bad.where, bad.origin, bad.element) == ("element 17 of split 3", Origin(0, 0, 0, 3, 17), None)
