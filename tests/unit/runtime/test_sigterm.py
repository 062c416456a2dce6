"""SIGTERM as a notice: a process goes on, and yet ends; and what it starts is asked to end as ever."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    """Run a program that takes SIGTERM for a notice."""
    return subprocess.run([sys.executable, "-c", BEGIN + program], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_process_that_is_asked_to_end_goes_on_and_ends_in_time_also_where_no_thread_gets_the_gil() -> None:
    done = ran(f"{ASKED}\nsum(range(1 << 60))")
    assert (done.stdout, done.returncode) == ("True\n", -signal.SIGALRM), done.stderr


@pytest.mark.parametrize(("begin", "code"), [(FORKED, "exitcode"), (STARTED, "returncode")])
def test_what_such_a_process_has_started_ends_at_sigterm(begin: str, code: str) -> None:
    done = ran(f"{begin}\nprint(child.{code}, notice.came)")
    assert done.stdout == f"{-signal.SIGTERM} False\n", done.stderr
