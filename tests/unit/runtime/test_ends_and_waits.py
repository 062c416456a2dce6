"""Ends and waits: signals, ends of threads, a starter that is gone, and what is said of a wait and of an end."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import ray

from pecan_ray.job.messages import TrainerUpdate
from pecan_ray.job.trainer_events import UpdateReceived
from pecan_ray.runtime import calls, long_wait
from pecan_ray.runtime.calls import Calls
from pecan_ray.runtime.client import BatchClient
from pecan_ray.runtime.exit_reason import killed_for_memory, last_line
from pecan_ray.runtime.long_wait import LongWait
from pecan_ray.runtime.persistent_thread import call_in_persistent_thread
from pecan_ray.runtime.received import Received
from pecan_ray.runtime.streams import TrainerIdentity
from pecan_ray.runtime.wakeup_event import WakeupEvent
from pecan_ray.transport.messages import Message
from tests.ray.waiting import ENDS_S, until

ROOT = Path(__file__).resolve().parents[3]
NOTICE_S = 0.2
BEGIN = f"""
import os, signal, subprocess, sys
from multiprocessing import get_context
from pecan_ray.runtime.sigterm import SigtermFlag

notice = SigtermFlag({NOTICE_S})
"""
PROGRAM = (
    BEGIN
    + """
mine, childs = get_context("fork").Pipe()
def runs():
    childs.send("runs")
    signal.pause()
forked = get_context("fork").Process(target=runs)
forked.start(), mine.recv(), forked.terminate(), forked.join()
started = subprocess.Popen(["sleep", "1000"])
started.terminate(), started.wait()
print(forked.exitcode, started.returncode, notice.received)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # until this is told, however busy the machine is
os.kill(os.getpid(), signal.SIGTERM)
print(notice.received, flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
sum(range(1 << 60))  # no other thread gets the GIL
"""
)


def test_a_process_that_is_asked_to_end_goes_on_and_ends_in_time_and_what_it_has_forked_or_started_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=ENDS_S)
    assert done.stdout == f"{-signal.SIGTERM} {-signal.SIGTERM} False\nTrue\n", done.stderr
    assert done.returncode == -signal.SIGALRM


class PreemptedError(Exception):
    pass


def preempt(*_: object) -> None:
    raise PreemptedError


@pytest.fixture
def client() -> Iterator[BatchClient]:
    """A client of one trainer that talks to nobody; SIGUSR1 preempts."""
    before = signal.signal(signal.SIGUSR1, preempt)
    yield BatchClient(None, TrainerIdentity("job", "incarnation", "node"), 1000, lambda bad: None)
    signal.signal(signal.SIGUSR1, before)


def deliver(client: BatchClient, numbers: list[int]) -> None:
    messages = [Message({"i": number}, {}, 1, 0) for number in numbers]
    assert client._deliver("worker", messages)


def when_it_waits(thread: int, client: BatchClient, numbers: list[int]) -> None:
    """Let a signal end the wait of a thread, and batches come at the same time."""
    until(lambda: sys._current_frames()[thread].f_code is WakeupEvent.wait.__code__, "it does not wait")
    with client._lock:  # the thread is behind its wait, and comes no further
        signal.pthread_kill(thread, signal.SIGUSR1)
    deliver(client, numbers)


def given(client: BatchClient) -> Any:
    received = client.next()
    assert isinstance(received, Received)
    return received.columns["i"]


def test_a_batch_whose_wait_was_ended_comes_with_the_next_call_and_is_not_used_before(client: BatchClient) -> None:
    main = threading.main_thread().ident
    assert main is not None
    client._happened(UpdateReceived(TrainerUpdate(number=1)))
    for number in range(0, 20, 2):
        helper = threading.Thread(target=when_it_waits, args=(main, client, [number, number + 1]))
        helper.start()
        with pytest.raises(PreemptedError):
            client.next()
        helper.join()
        assert client._for_loop.has_delivery, "it was handed over to nobody"
        assert given(client) == number == given(client), "also where its conversion was interrupted"
        client.note_taken()
        assert given(client) == number + 1
        client.note_taken()
        assert client.state.yielded == number + 2 and not client._for_loop.has_delivery


PR_SET_PDEATHSIG = 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone ends processes with a thread")
def test_a_process_that_ends_with_its_starter_outlives_the_thread_that_needed_it() -> None:
    started: list[subprocess.Popen[bytes]] = []
    libc = ctypes.CDLL(None)

    def end_with_starter() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def start() -> None:
        program = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        started.append(subprocess.Popen(program, stdin=subprocess.PIPE, preexec_fn=end_with_starter))

    thread = threading.Thread(target=call_in_persistent_thread, args=(start, "starter"))
    thread.start()
    thread.join()
    (process,) = started
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0, "it was killed with the thread"
    with pytest.raises(PreemptedError):
        call_in_persistent_thread(preempt, "starter")


# --- what is said of it -------------------------------------------------------------------------------------------

RAY_SAYS = """The actor died because its owner has died... Task was killed due to the node running low on memory.
Memory on the node (IP: 192.0.2.2, ID: 8f2) was 22.86GB used / 23.49GB limit (0.973), which exceeds the threshold.
Top 10 memory users:
PID	MEM(GB)	COMMAND
410	10.2	python"""


def test_a_worker_that_was_killed_for_memory_is_told_with_sizes_and_what_to_change() -> None:
    said = killed_for_memory(RAY_SAYS)
    assert "\n" not in said and "of whose 23.5 GB 22.9 were used" in said and "cpus_per_worker" in said
    bare = "1 worker(s) were killed: the node running low on memory"
    assert "is short of memory: run fewer" in killed_for_memory(bare)
    guessed = "Worker exit type: SYSTEM_ERROR. (1) the process was killed by the OOM killer"
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
    wait.switch_to("for the controller")
    with wait:
        until(lambda: caplog.messages, "nothing was said")
        for text in ("for the controller", "for another job", "for the controller", "for another job"):
            wait.switch_to(text)
    assert caplog.messages == ["waiting: for the controller", "waiting: for another job"]
    before = threading.active_count()
    with LongWait("for what does not take long"):
        pass
    until(lambda: threading.active_count() == before, "the timer goes on")


def test_a_lost_controller_is_explained_by_a_standstill_just_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LOOK_S", 0.01)
    trainer, waited_for = Calls(), Future[Any]()

    def explained() -> bool:
        assert trainer._wait({waited_for}) == set()
        said = str(trainer.lost_error(ray.exceptions.RayError("killed by ray.kill")))
        assert "killed by ray.kill" in said
        return "this process has stood still for" in said and "trainer_timeout_s" in said

    assert not explained()
    monkeypatch.setattr(calls, "STANDSTILL_S", -0.01)  # any wait that is over counts
    assert explained()
    monkeypatch.setattr(calls, "JUST_S", 0.0)
    assert not explained()
