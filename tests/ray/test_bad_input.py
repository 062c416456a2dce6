"""Elements that fail, and one that takes its process with it: each is kept, and can be looked at again."""

from __future__ import annotations

import runpy
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.plan.splits import Origin
from pecan_ray.quarantine import quarantined
from tests.ray.pipelines import TWO, ids
from tests.ray.waiting import ENDS_S

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


PROGRAM = """
import os

import numpy as np

import pecan_ray as pecan


def strictly(i):
    if i in (3, 60):
        raise ValueError("refused")
    if i == 77:
        os._exit(9)
    return i


source = pecan.sources.Arrays(i=np.arange(200), split_rows=20)  # each larger split costs more workers
pipe = pecan.PecanPipeline(source, name="bad").map(strictly, on="i").batch(4)
"""


def test_the_file_of_bad_elements_has_the_one_that_kills_its_process_too_and_is_replayed_without_running_code(
    tmp_path: Path,
) -> None:
    program, path = tmp_path / "train.py", tmp_path / "bad.jsonl"
    program.write_text(PROGRAM)
    pipe: Any = runpy.run_path(str(program))["pipe"].with_config(quarantine_path=str(path), reorder="off")
    with pipe.iter_batches(on_error="quarantine", workers=TWO) as batches:
        assert ids(batches) == [i for i in range(200) if i not in (3, 60, 77)], "in the order of the source"
    report = batches.report()
    assert report.bad_elements == 3 and "3 bad elements" in str(report) and report.workers_lost <= 8
    assert any("element 17 of split 3 is left out" in event.text for event in report.events)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    kept = {bad.where: bad for bad in quarantined(path)}
    deadly = kept.pop("element 17 of split 3")
    assert (deadly.origin, deadly.element) == (Origin(0, 0, 0, 3, 17), None)
    assert sorted(int(bad.element["i"]) for bad in kept.values()) == [3, 60], "read without trust: no pickle is in it"
    assert '"pickle"' not in path.read_text()
    command = [sys.executable, "-m", "pecan_ray.cli", "replay", str(path), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert (done.stdout + done.stderr).count("ValueError: refused") >= 2, done.stdout + done.stderr
