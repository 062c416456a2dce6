"""AutoOrder's sample runs in a process of its own, and ends with the jobs that wait for it.

What a function does to that process is not done to the trainer's.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder import call_in_subprocess as own
from pecan_ray.autoorder import job_order, order, order_request
from pecan_ray.autoorder.call_in_subprocess import JobEnd
from pecan_ray.autoorder.job_order import JobOrder
from pecan_ray.autoorder.order_request import WAITING_PER_CPU, WALL_PER_CPU, JobSize, LookClock
from pecan_ray.engines import call_note
from pecan_ray.errors import OpError, PecanError
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


def interrupted(element: dict[str, Any]) -> dict[str, Any]:
    raise KeyboardInterrupt


def hang(element: dict[str, Any]) -> dict[str, Any]:
    while True:
        time.sleep(3600.0)


def wander(element: dict[str, Any]) -> dict[str, Any]:
    os.chdir("/")
    os.environ["PECAN_WANDERED"] = "yes"
    return {**element, "x": element["x"].astype(np.float32)}


def crop(element: dict[str, Any]) -> dict[str, Any]:
    return {**element, "x": element["x"][:2]}


def order_of(
    function: Callable[[dict[str, Any]], dict[str, Any]], folder: Path, sample_seconds: float = 0.5
) -> JobOrder:
    source = pecan.sources.Arrays(x=np.zeros((64, 100)))
    plan = pecan.PecanPipeline(source).map(function).map(crop).plan
    config = Config(sample_elements=64, sample_seconds=sample_seconds, order_folder=folder)
    return JobOrder(plan, name="odd", engine="python", seed=0, config=config)


def late_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a process be late as soon as it is in a call that it has noted, and not before, however busy the machine."""
    read = call_note.read_note

    def late(note: IO[bytes]) -> tuple[float | None, str]:
        worked, called = read(note)
        return math.inf if called else worked, called

    monkeypatch.setattr(call_note, "read_note", late)
    monkeypatch.setattr(call_note, "LOOK_S", 0.01)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (crash, "ended by SIGSEGV, in 'crash' (Fatal Python error: Segmentation fault): "),
        (leave, "ended with status 0, in 'leave': "),
        (hang, ", in 'hang' ("),
        (interrupted, "PecanError: interrupted raised KeyboardInterrupt on element "),
    ],
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
        late_in_calls(monkeypatch)
    found = order_of(function, tmp_path).ordered(skip_bad=False, once=True, job=None)
    assert found.plan is None and found.order == ((function.__name__, "crop"),)
    assert "AutoOrder left the order as it is written" in caplog.text and said in caplog.text


def test_a_sample_changes_nothing_here_and_imports_nothing_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getcwd()
    order = order_of(wander, tmp_path)
    order.ordered(skip_bad=False, once=True, job=None)
    assert os.getcwd() == here and "PECAN_WANDERED" not in os.environ
    (tmp_path / "queue.py").write_text("raise RuntimeError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    found = order_of(crop, tmp_path / "orders").ordered(skip_bad=False, once=True, job=None)
    assert "AutoOrder left the order" not in "".join(found.notes) or "ended" not in "".join(found.notes)


KILLED = """
import os, signal
from pecan_ray.autoorder.call_in_subprocess import own_process
from pecan_ray.engines.call_note import new_note
with new_note() as note, own_process("python", note.fileno()):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trainer_that_is_killed_while_it_samples_leaves_no_file(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_sample_leaves_alone_what_an_object_remembers_that_cannot_be_pickled(tmp_path: Path) -> None:
    class Counts:
        """What is pickled by value, and holds what nobody can pickle."""

        def __init__(self) -> None:
            self.calls, self.lock = 0, threading.Lock()

        def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
            self.calls += 1
            return element

        def __deepcopy__(self, memo: object) -> Counts:
            return Counts()

    counts = Counts()
    assert not own.can_be_sent(counts)
    assert order_of(counts, tmp_path).order_text().sequences
    assert counts.calls == 0


def test_a_call_apart_returns_and_raises_what_the_function_does_also_if_it_takes_long_to_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(text: str) -> None:
        raise OpError(text, op="f", element=3)

    with pytest.raises(OpError, match="nobody home") as caught:
        own.call_in_subprocess(fail, "nobody home", engine="python", seconds=10)
    assert caught.value.element == 3
    monkeypatch.setattr(call_note, "LOOK_S", 0.001)
    assert own.call_in_subprocess(len, bytes(1 << 24), engine="python", seconds=10) == 1 << 24


def test_a_process_that_is_stopped_holds_nobody_longer_than_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(number: int) -> None:
        call_note.noting("stop", lambda signal_number: os.kill(0, signal_number))(number)

    late_in_calls(monkeypatch)
    with pytest.raises(PecanError, match=r"ended by SIGKILL, in 'stop' \(it has not answered in time\)"):
        own.call_in_subprocess(stop, signal.SIGSTOP, engine="python", seconds=10)


def test_of_waiting_two_thirds_count_and_of_work_and_queueing_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, cpu, queued = [0.0], [0.0], [0.0]
    times = SimpleNamespace(perf_counter=lambda: wall[0], process_time=lambda: cpu[0])
    monkeypatch.setattr(order_request, "time", times)
    monkeypatch.setattr(order_request, "_queued_s", lambda: queued[0])
    clock = LookClock()
    wall[0] = 0.6
    assert clock() == pytest.approx(0.6 / WAITING_PER_CPU), "it has waited"
    wall[0], cpu[0] = 0.9, 0.3
    assert clock() == pytest.approx(0.4 + 0.3), "it has worked"
    wall[0], queued[0] = 1.9, 1.0
    assert clock() == pytest.approx(0.7), "it stood in line for a CPU"
    wall[0] = queued[0] = 100.0
    assert clock() == pytest.approx(100.0 / WALL_PER_CPU, rel=0.2)


def test_a_look_ends_with_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_order, "WAITED_S", 0.0)
    one = order_of(hang, tmp_path)
    found = one.ordered(skip_bad=False, once=False, job=JobSize(3.0, 1.0, continues=True))
    assert found.notes == (job_order.STILL_LOOKING,) and found.background_search is not None
    found.end.finish()
    late = found.background_search()
    assert late is not None and late.plan is None and "its look ended with PecanError" in late.reason
    assert list(tmp_path.iterdir()) == [], "nothing is kept of what was not found"


def test_what_is_to_end_with_a_job_that_is_over_ends_at_once() -> None:
    end, ended = JobEnd(), []
    with end.ends(lambda: ended.append("in time")):
        pass
    with end.ends(lambda: ended.append("meanwhile")):
        end.finish()
        end.finish()
    with end.ends(lambda: ended.append("late")):
        assert ended == ["meanwhile", "late"]
