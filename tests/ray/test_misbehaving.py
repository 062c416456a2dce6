"""Functions that misbehave on a cluster: processes that die of an element, and what cannot be sent to the trainer."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import OpError
from pecan_ray.options import Config
from pecan_ray.plan.splits import Origin
from pecan_ray.quarantine import quarantined
from tests.long_form import some_later

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def numbers(**options: Any) -> pecan.PecanPipeline:
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(2000), split_rows=500), name="odd", **options)


def poisoned(element: dict[str, Any]) -> dict[str, Any]:
    if element["i"] == 77:
        os._exit(9)
    return element


def test_an_element_that_kills_its_process_is_found_and_quarantined(tmp_path: Path) -> None:
    config = Config(quarantine_path=str(tmp_path / "bad.jsonl"))
    source = pecan.sources.Arrays(i=np.arange(200), split_rows=20)  # each larger split costs more workers
    pipe = pecan.PecanPipeline(source, name="odd", config=config).map(poisoned).batch(10)
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
    pipe = numbers(config=config).map(hungry, name="hungry").batch(10)
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
    batches = numbers(config=config).map(small).batch(10).iter_batches(workers=pecan.Workers(1), on_error="quarantine")
    assert sum(len(batch["i"]) for batch in batches) == 400
    kept = [int(bad.element["i"]) for bad in quarantined(tmp_path / "bad.jsonl")]
    assert sorted(kept) == list(range(400, 2000)) and batches.report().bad_elements == 1600


@pytest.mark.parametrize("transport", some_later(["auto", "flight"], "flight"))
def test_a_column_that_cannot_be_sent_is_an_error_by_name(transport: Any) -> None:
    def lock(element: dict[str, Any]) -> dict[str, Any]:
        return {**element, "lock": threading.Lock() if element["i"] == 777 else None}

    pipe = numbers(config=Config(transport=transport)).map(lock, name="lock").batch(10)
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
