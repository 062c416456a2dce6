"""AutoOrder's sample runs in a process of its own: what a function does to that is not done to the trainer's."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder import call_in_subprocess as own
from pecan_ray.autoorder import order
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.options import Config


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes what tests/unit does to save time."""
    monkeypatch.setattr(order, "APART", True)


def crash(element: dict[str, Any]) -> dict[str, Any]:
    ctypes.string_at(0)
    return element


def leave(element: dict[str, Any]) -> dict[str, Any]:
    os._exit(0)


def hang(element: dict[str, Any]) -> dict[str, Any]:
    while True:
        time.sleep(3600.0)


def wander(element: dict[str, Any]) -> dict[str, Any]:
    os.chdir("/")
    os.environ["PECAN_WANDERED"] = "yes"
    return {**element, "x": element["x"].astype(np.float32)}


def crop(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"][:2]}


def order_of(function: Callable[[dict[str, Any]], dict[str, Any]], folder: Path) -> JobOrder:
    source = pecan.sources.Arrays(x=np.zeros((64, 100)))
    plan = pecan.PecanPipeline(source).map(function).map(crop).plan
    config = Config(sample_seconds=0.5, order_folder=folder)
    return JobOrder(plan, name="odd", engine="python", seed=0, config=config)


@pytest.mark.parametrize(
    ("function", "said"),
    [(crash, "SIGSEGV"), (leave, "with status 0"), (hang, "in hang")],
    ids=lambda one: str(one)[:15],
)
def test_a_sample_that_ends_its_process_leaves_the_order_as_it_is_written(
    function: Callable[[dict[str, Any]], dict[str, Any]],
    said: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if function is hang:  # no other one needs to be given up
        monkeypatch.setattr(own, "GRACE_S", 1.0)
    found = order_of(function, tmp_path).ordered(skip_bad=False, once=True, job=None)
    assert [op.name for op in found.plan.all_ops()] == [function.__name__, "crop"]
    assert "AutoOrder left the order as it is written" in caplog.text and said in caplog.text


def test_what_a_sample_changes_stays_in_its_process(tmp_path: Path) -> None:
    here = os.getcwd()
    order = order_of(wander, tmp_path)
    assert order.ordered(skip_bad=False, once=True, job=None).plan is not None
    assert os.getcwd() == here and "PECAN_WANDERED" not in os.environ


def test_modules_in_the_working_folder_are_none_of_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    found = order_of(crop, tmp_path / "orders").ordered(skip_bad=False, once=True, job=None)
    assert "AutoOrder left the order" not in "".join(found.said) or "ended" not in "".join(found.said)


KILLED = """
import os, signal
from pecan_ray.autoorder.call_in_subprocess import OwnProcess
own = OwnProcess("python")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_that_is_killed_while_it_samples_leaves_no_file(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_cannot_be_sent_is_sampled_here(tmp_path: Path) -> None:
    seen = open(os.devnull)  # noqa: SIM115  # what it holds cannot be pickled

    def look(element: dict[str, Any]) -> dict[str, Any]:
        return element if seen.readable() else {}

    assert order_of(look, tmp_path).order_text().stretches
    seen.close()
