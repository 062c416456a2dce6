"""Functions in processes of their own: answers, errors, processes that end, and the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from pecan_ray.engines.python.processes import Processes
from tests.ray.waiting import until


def whose(value: Any) -> tuple[int, Any]:
    return os.getpid(), value


def halved(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value // 2


def scaled(values: list[float], by: float) -> float:
    return values[0] * by


def dying(code: int) -> None:
    if code:
        os._exit(code)


def runs(says: Connection) -> None:
    says.send("runs")
    signal.pause()


def asked_to_end(_: Any) -> tuple[int, int | None]:
    os.kill(os.getpid(), signal.SIGTERM)
    mine, childs = get_context("fork").Pipe()
    child: Any = get_context("fork").Process(target=runs, args=(childs,))
    child.start()
    mine.recv()
    child.terminate()
    child.join()
    return os.getpid(), child.exitcode


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (whose, halved, dying, scaled, asked_to_end)
}


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """Two for all tests: each begins where it is called first, and again where one has ended."""
    started = Processes(FUNCTIONS, 2)
    yield started
    started.close()


def test_a_function_runs_in_another_process_and_what_it_raises_is_raised_here(processes: Processes) -> None:
    process, value = processes.call("whose", {"x": [1, 2]}, {})
    assert process != os.getpid() and value == {"x": [1, 2]}
    with pytest.raises(ValueError, match="3 is odd"):
        processes.call("halved", 3, {})
    with pytest.raises(TypeError, match="pickle"):
        processes.call("whose", threading.Lock(), {})
    assert processes.call("whose", None, {})[0] == process, "it goes on"
    assert processes.call("asked_to_end", None, {}) == (process, -signal.SIGTERM), "what it forks ends, it does not"
    with pytest.raises(RuntimeError, match="the process that ran dying ended with exit code 7"):
        processes.call("dying", 7, {})
    assert [processes.call("halved", 2 * n, {}) for n in range(4)] == [0, 1, 2, 3], "it is replaced"


def test_calls_made_ahead_are_answered_in_their_order_and_each_as_it_deserves(processes: Processes) -> None:
    half, scale, die = (processes.function(name) for name in ("halved", "scaled", "dying"))
    half.ahead([(2, {}), (3, {}), (4, {})])
    assert half(2) == 1
    with pytest.raises(ValueError, match="3 is odd"):
        half(3)
    assert half(4) == 2
    assert half(6) == 3  # was not among them
    shared = [1.0]
    scale.ahead([(shared, {"by": 2}), (shared, {"by": 3})])
    assert [scale(shared, by=2), scale(shared, by=3)] == [2.0, 3.0]
    die.ahead([(0, {}), (7, {}), (0, {})])
    assert die(0) is None
    with pytest.raises(RuntimeError, match="ended with exit code 7"):
        die(7)
    assert die(0) is None, "it fails alone"


def test_more_threads_than_processes_wait_for_their_turn(processes: Processes) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: processes.call("whose", n, {}), range(64)))
    assert [value for _, value in answers] == list(range(64))
    assert len({process for process, _ in answers}) <= 2


def test_a_process_that_is_in_a_call_for_ever_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    says = tmp_path / "says"
    os.mkfifo(says)
    program = f"""
import time
from pathlib import Path
from pecan_ray.engines.python.processes import Processes
def hangs(value):
    import os
    Path({str(says)!r}).write_text(str(os.getpid()))
    while True:
        time.sleep(60)
if __name__ == "__main__":
    Processes({{"hangs": hangs}}, 1).call("hangs", 1, {{}})
"""
    file = tmp_path / "program.py"
    file.write_text(program)
    parent = subprocess.Popen([sys.executable, str(file)])
    child = psutil.Process(int(says.read_text()))
    parent.kill()
    parent.wait()
    child.wait(60)


def test_processes_end_when_they_are_closed() -> None:
    processes = Processes(FUNCTIONS, 2)
    child = psutil.Process(processes.call("whose", None, {})[0])
    processes.close()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "it still runs")
