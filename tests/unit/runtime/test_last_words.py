"""What is said of waits and of ends: what is waited for, why a worker ended, that a trainer stood still."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import ray

from pecan_ray.runtime import calls, long_wait
from pecan_ray.runtime.calls import Calls
from pecan_ray.runtime.last_words import killed_for_memory, last_line
from pecan_ray.runtime.long_wait import LongWait
from tests.ray.waiting import until

RAY_SAYS = """The actor died because its owner has died... Task was killed due to the node running low on memory.
Memory on the node (IP: 192.0.2.2, ID: 8f2) was 22.86GB used / 23.49GB limit (0.973), which exceeds the threshold.
Top 10 memory users:
PID	MEM(GB)	COMMAND
410	10.2	python"""


def test_a_worker_that_was_killed_for_memory_is_told_with_sizes_and_what_to_change() -> None:
    said = killed_for_memory(RAY_SAYS)
    assert "\n" not in said and "of whose 23.5 GB 22.9 were used" in said and "cpus_per_worker" in said
    older = killed_for_memory("Memory on the node (IP: 192.0.2.2, ID: x) was 30.26GB / 31.00GB (0.976160), ...")
    assert "of whose 31.0 GB 30.3 were used" in older
    for bare in (
        "The actor is dead because its owner has died. Owner Id: 1c54 Owner worker exit type: NODE_OUT_OF_MEMORY ...",
        "1 worker(s) were killed: the node running low on memory",
    ):
        assert "is short of memory: run fewer" in killed_for_memory(bare)
    for guessed in ("", "Worker exit type: SYSTEM_ERROR. (1) the process was killed by the OOM killer"):
        assert killed_for_memory(guessed) == "", "Ray only guesses"


def test_the_last_line_of_a_workers_log_is_found(tmp_path: Path) -> None:
    (tmp_path / "worker-ab-01000000-77.err").write_text(
        ":job_id:01\nfirst\n\x1b boom: no such tensor\n\n:actor_name:X\n"
    )
    (tmp_path / "worker-ab-01000000-777.err").write_text("of another\n")
    assert last_line(tmp_path, 77) == "\x1b boom: no such tensor"
    (tmp_path / "worker-cd-01000000-78.err").write_bytes(b"\xff" * 40_000)
    assert len(last_line(tmp_path, 78)) == 300
    assert last_line(tmp_path, 5) == last_line(tmp_path / "nowhere", 77) == ""


def test_it_is_said_as_it_is_by_then_once_and_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(long_wait, "SAY_AFTER_S", 0.01)
    wait = LongWait("for a place")
    wait.becomes("for the controller")
    with wait:
        until(lambda: caplog.messages, "nothing was said")
        for text in ("for the controller", "for another job", "for the controller", "for another job"):
            wait.becomes(text)
    assert caplog.messages == ["waiting: for the controller", "waiting: for another job"]


def test_nothing_is_said_of_what_does_not_take_long(caplog: pytest.LogCaptureFixture) -> None:
    before = threading.active_count()
    with LongWait("for the controller"):
        assert threading.active_count() == before + 1
    until(lambda: threading.active_count() == before, "the timer goes on")
    assert not caplog.messages


@pytest.mark.parametrize("stood_still", [False, True])
def test_a_lost_controller_is_explained_by_a_standstill_just_before(
    monkeypatch: pytest.MonkeyPatch, stood_still: bool
) -> None:
    monkeypatch.setattr(calls, "LOOK_S", 0.01)
    if stood_still:
        monkeypatch.setattr(calls, "STANDSTILL_S", -0.01)  # any wait that is over counts
    trainer, waited_for = Calls(), Future[Any]()
    assert trainer._wait({waited_for}) == set()
    said = str(trainer.gone(ray.exceptions.RayError("killed by ray.kill")))
    assert ("this process has stood still for" in said and "trainer_timeout_s" in said) == stood_still
    assert "killed by ray.kill" in said
    monkeypatch.setattr(calls, "JUST_S", 0.0)
    assert "stood still" not in str(trainer.gone(ray.exceptions.RayError("killed by ray.kill")))
