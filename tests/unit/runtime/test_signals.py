"""Signals and ends of threads: a process that is asked to end, a wait that is interrupted, a starter that is gone."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.job.messages import Orders
from pecan_ray.job.trainer_events import OrdersCame
from pecan_ray.runtime.client import BatchClient, Received
from pecan_ray.runtime.persistent_thread import call_in_persistent_thread
from pecan_ray.runtime.wakeup_event import WakeupEvent
from pecan_ray.transport.messages import Message
from tests.ray.waiting import until

ROOT = Path(__file__).resolve().parents[3]
NOTICE_S = 0.2
BEGIN = f"""
import os, signal, subprocess, sys
from multiprocessing import get_context
from pecan_ray.runtime.sigterm import SigtermNotice

notice = SigtermNotice({NOTICE_S})
"""
ASKED = """os.kill(os.getpid(), signal.SIGTERM)
print(notice.came, flush=True)"""
FORKED = """
mine, childs = get_context("fork").Pipe()
def runs():
    childs.send("runs")
    signal.pause()
child = get_context("fork").Process(target=runs)
child.start(), mine.recv(), child.terminate(), child.join()
"""
STARTED = "child = subprocess.Popen(['sleep', '1000']); child.terminate(); child.wait()"


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BEGIN + program], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_process_that_is_asked_to_end_goes_on_and_ends_in_time_also_where_no_thread_gets_the_gil() -> None:
    done = ran(f"{ASKED}\nsum(range(1 << 60))")
    assert (done.stdout, done.returncode) == ("True\n", -signal.SIGALRM), done.stderr


@pytest.mark.parametrize(("begin", "code"), [(FORKED, "exitcode"), (STARTED, "returncode")])
def test_what_such_a_process_has_started_ends_at_sigterm(begin: str, code: str) -> None:
    done = ran(f"{begin}\nprint(child.{code}, notice.came)")
    assert done.stdout == f"{-signal.SIGTERM} False\n", done.stderr


class PreemptedError(Exception):
    pass


def preempt(*_: object) -> None:
    raise PreemptedError


@pytest.fixture
def client() -> Iterator[BatchClient]:
    """A client of one trainer that talks to nobody; SIGUSR1 preempts."""
    before = signal.signal(signal.SIGUSR1, preempt)
    yield BatchClient(None, 0, 1, ("job", "incarnation", "node"), 1000, lambda bad: None)
    signal.signal(signal.SIGUSR1, before)


def test_a_bell_that_was_rung_before_is_heard_once() -> None:
    bell = WakeupEvent()
    bell.ring()
    bell.ring()
    bell.wait()
    threading.Timer(0.01, bell.ring).start()
    bell.wait()


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
    client._happened(OrdersCame(Orders(number=1)))
    for number in range(0, 20, 2):
        helper = threading.Thread(target=when_it_waits, args=(main, client, [number, number + 1]))
        helper.start()
        with pytest.raises(PreemptedError):
            client.next()
        helper.join()
        assert client._for_loop.handed, "it was handed over to nobody"
        assert given(client) == number == given(client), "also where its conversion was interrupted"
        client.took()
        assert given(client) == number + 1
        client.took()
        assert client.state.yielded == number + 2 and not client._for_loop.handed


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


def test_what_the_function_raises_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="no"):
        pool.submit(call_in_persistent_thread, fail, "starter").result()
    with pytest.raises(ValueError, match="no"):
        call_in_persistent_thread(fail, "starter")
