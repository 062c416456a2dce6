"""What is started by a thread that ends goes on."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pecan_ray.runtime.lasting_thread import call_in_lasting_thread

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

    thread = threading.Thread(target=call_in_lasting_thread, args=(start, "starter"))
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
        pool.submit(call_in_lasting_thread, fail, "starter").result()
    with pytest.raises(ValueError, match="no"):
        call_in_lasting_thread(fail, "starter")
