"""Programs in odd surroundings: streams that are closed, a terminal that is gone, no environment, no folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pecan_ray.errors import ClusterError
from pecan_ray.job.messages import TrainerProgress
from pecan_ray.observe import progress
from pecan_ray.observe.progress import Progress
from pecan_ray.observe.trainer_speed import RecentSpeed
from pecan_ray.runtime import cluster
from pecan_ray.runtime.client import BatchClient
from tests.long_form import some_later

ROOT = Path(__file__).parents[3]
PROGRAM = """
import os
import sys

import numpy as np

import pecan_ray as pecan


def fail(element):
    if element["i"] == 7:
        os.write(2, b"a library says something")
        raise ValueError("ü")
    return element


os.chdir(sys.argv[1])
config = pecan.Config(quarantine_path="bad.jsonl", error_budget=1.0, progress=True)
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(40)), name="näme", config=config).map(fail).batch(10)
with pipe.iter_batches(debug=True, on_error="quarantine") as batches:
    found = sum(len(batch["i"]) for batch in batches)
with open("found", "w") as file:
    file.write(str(found))
"""
REDIRECTED = some_later(["", ">&-", "2>&-", "<&- >&- 2>&-"], "", ">&-")


@pytest.mark.parametrize("redirected", REDIRECTED)
def test_closed_streams_and_no_environment_change_nothing(redirected: str, tmp_path: Path) -> None:
    command = f'exec "$0" -c "$1" "$2" {redirected}'
    environment = {"PYTHONPATH": str(ROOT), "LANG": "C", "LC_ALL": "C", "HOME": "/nonexistent"}
    ended = subprocess.run(["/bin/sh", "-c", command, sys.executable, PROGRAM, str(tmp_path)], env=environment)
    assert ended.returncode == 0
    assert (tmp_path / "found").read_text() == "39"
    lines = (tmp_path / "bad.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("{") for line in lines), "what was meant for standard error is in the file"
    assert len(lines) == 2 and "element 1 of split 3" in lines[1]


class Gone:
    closed = False

    def __init__(self) -> None:
        self.written = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.written += 1
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        self.written += 1
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("wanted", [None, True])
def test_a_terminal_that_is_gone_ends_no_training(wanted: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Gone()
    monkeypatch.setattr(sys, "stderr", gone)
    monkeypatch.setattr(progress, "TERMINAL_S", 0.0)
    shown = Progress("job", wanted, lambda: RecentSpeed(None, None))
    update = SimpleNamespace(target=(1, 0), running=1, placement_note="")
    state = SimpleNamespace(yielded=1, update=update)
    client = cast(BatchClient, SimpleNamespace(progress=lambda: TrainerProgress(1, 10, 0.0, 1.0), state=state))
    shown.show(client, 0)
    tried = gone.written
    assert tried
    shown.show(client, 0)
    shown.end()
    assert gone.written == tried, "nothing more is written to it"


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with pytest.raises(ClusterError, match="The working directory of this program was deleted"):
        cluster.attach()
