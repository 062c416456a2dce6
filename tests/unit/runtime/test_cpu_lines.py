"""Who stands in line for a CPU is told from who stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pecan_ray.runtime.cpu_lines import CpuLines, waits_by_thread
from tests.ray.waiting import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count")

LOOP = "import os\nos.sched_setaffinity(0, {%d})\nprint(flush=True)\nwhile True: pass"
"""On one CPU, whatever else there is to run on."""


@pytest.fixture
def two_on_one_cpu() -> Iterator[list[int]]:
    """Two processes that both want one CPU."""
    cpu = min(os.sched_getaffinity(0))
    with ExitStack() as stack:
        loops = []
        for _ in range(2):
            loop = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", LOOP % cpu], stdout=subprocess.PIPE, text=True)
            )
            stack.callback(loop.kill)
            assert loop.stdout is not None and loop.stdout.readline() == "\n"
            loops.append(loop.pid)
        yield loops


def test_a_process_that_stands_in_line_is_told_from_one_that_stands_still(two_on_one_cpu: list[int]) -> None:
    (pid, _), lines = two_on_one_cpu, CpuLines()
    assert lines.look(pid, again=False) is None, "nothing was seen of this silence before"
    waited = 0.0

    def has_waited() -> bool:
        nonlocal waited
        in_line = lines.look(pid, again=True)
        assert in_line is not None and in_line.of_s > 0.0
        waited += in_line.seconds
        return waited > 0.2

    until(has_waited, "it had the CPU whenever it wanted, though another process wants the same one")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T", "it does not stop")
    lines.look(pid, again=True)
    in_line = lines.look(pid, again=True)
    assert in_line is not None and in_line.seconds == 0.0


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert waits_by_thread(gone.pid) == {} and CpuLines().look(gone.pid, again=True) is None
