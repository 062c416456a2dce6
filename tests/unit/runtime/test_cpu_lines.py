"""Who stands in line for a CPU is told from who stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pecan_ray.runtime.cpu_lines import CpuLines, waits_by_thread
from tests.ray.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count")

LOOP = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"
"""On one CPU, whatever else there is to run on."""


@contextmanager
def loop_on(cpu: int) -> Iterator[int]:
    """Run a process that wants a CPU all the time; give its id."""
    with subprocess.Popen([sys.executable, "-c", LOOP % cpu], stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout is not None and loop.stdout.readline() == "\n"
        yield loop.pid
        loop.kill()


def test_a_process_that_stands_in_line_is_told_from_one_that_stands_still() -> None:
    cpu, lines, waited = min(os.sched_getaffinity(0)), CpuLines(), 0.0

    def in_line_s() -> float:
        in_line = lines.look(pid, again=True)
        assert in_line is not None and in_line.of_s > 0.0
        return in_line.seconds

    def has_waited() -> bool:
        nonlocal waited
        waited += in_line_s()
        return waited > 0.2

    with loop_on(cpu) as pid, loop_on(cpu):
        assert lines.look(pid, again=False) is None, "nothing was seen of this silence before"
        until(has_waited, "it had the CPU whenever it wanted, though another process wants the same one")
        os.kill(pid, signal.SIGSTOP)
        until(lambda: ") T " in Path(f"/proc/{pid}/stat").read_text(), "it does not stop")
        in_line_s()
        assert in_line_s() == 0.0


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert waits_by_thread(gone.pid) == {} and CpuLines().look(gone.pid, again=True) is None
