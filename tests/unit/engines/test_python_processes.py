"""Functions in processes of their own: answers, errors, processes that end, and the end."""

from __future__ import annotations

import os
import pickle
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

import numpy as np
import psutil
import pytest

from pecan_ray.engines.python.call_results import AnswerColumns, AnswerWriter, unpack_results
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


IN_ORDER_OF_F = np.asfortranarray(np.arange(6).reshape(2, 3))
IN_ORDER = np.arange(6.0)
RECORD = np.zeros(2, [("a", np.int8)])

OF_ONE_FORM: dict[str, list[Any]] = {
    "arrays": [{"x": np.full(3, n, np.int16), "y": np.full((2, 2), n + 0.5)} for n in range(4)],
    "numbers": [{"n": n, "x": np.float32(n / 3), "b": np.bool_(n % 2), "c": np.complex64(n)} for n in range(4)],
    "texts": [{"t": "a" * n, "b": b"\x00" * n, "none": None} for n in range(4)],
    "python's types mixed": [{"n": 1}, {"n": 1.5}, {"n": "one"}, {"n": None}, {"n": True}],
    "no dict": [np.arange(n, n + 3) for n in range(4)],
    "answers of a filter": [True, False, True],
    "one": [{"x": np.arange(5)}],
    "arrays without items": [{"x": np.empty((0, 3))} for _ in range(3)],
    "another order of bytes": [{"x": np.arange(3, dtype=">i4")} for _ in range(3)],
}
OF_SEVERAL_FORMS: dict[str, list[Any]] = {
    "other shapes": [{"x": np.zeros(n)} for n in range(4)],
    "other dtypes": [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(2, np.float32)}],
    "other dtypes of numbers": [{"x": np.int8(1)}, {"x": np.int16(1)}],
    "an array of no dimension among numbers": [{"x": np.int64(1)}, {"x": np.array(1)}],
    "arrays of no dimension": [{"x": np.array(1)}, {"x": np.array(2)}],
    "a number among arrays": [{"x": np.zeros(1)}, {"x": 0.0}],
    "other columns": [{"x": 1}, {"x": 1, "y": 2}, {"y": 2}, {}],
    "no columns": [{}, {}, {}],
    "another order of columns": [{"x": 1, "y": 2}, {"y": 2, "x": 1}],
    "lists": [{"x": [1, [2]]}, {"x": []}],
    "a list at last": [{"x": np.zeros(1)}, {"x": np.ones(1)}, {"x": [1]}],
    "names that are no strings": [{0: np.zeros(1)}, {0: np.ones(1)}],
    "objects": [{"x": np.array([1, None], object)}] * 2,
    "texts in arrays": [{"x": np.array(["a", "bc"])}] * 2,
    "records": [{"x": RECORD}] * 2,
    "masked arrays": [{"x": np.ma.masked_array([1, 2], [False, True])}] * 2,
    "in the order of Fortran": [{"x": IN_ORDER_OF_F}] * 2,
    "no dict after a dict": [{"x": 1}, 1],
    "one array under two names": [{"x": IN_ORDER, "y": IN_ORDER}] * 2,
    "under two names later": [{"x": np.zeros(6), "y": np.ones(6)}, {"x": IN_ORDER, "y": IN_ORDER}],
    "as many dimensions as there can be": [{"x": np.zeros((1,) * 32)}] * 2,
}


def written(*results: Any) -> AnswerWriter:
    writer = AnswerWriter(len(results))
    for result in results:
        add = writer.add_error if isinstance(result, Exception) else writer.add
        add(result)
    return writer


def through(results: list[Any]) -> list[Any]:
    return [answer.value() for answer in unpack_results(written(*results).message())]


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name], other[name])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.flags.f_contiguous == other.flags.f_contiguous
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("name", [*OF_ONE_FORM, *OF_SEVERAL_FORMS])
def test_what_goes_in_comes_out_and_travels_as_columns_where_it_is_of_one_form(name: str) -> None:
    results = OF_ONE_FORM.get(name) or OF_SEVERAL_FORMS[name]
    for one, other in zip(through(results), results, strict=True):
        assert_same(one, other)
    assert isinstance(pickle.loads(written(*results).message()), AnswerColumns) == (name in OF_ONE_FORM)


def test_arrays_are_of_their_own_and_can_be_written_into() -> None:
    writer, own = AnswerWriter(3), np.zeros(2)
    for number in range(3):
        own[:] = number
        writer.add({"x": own})
    first, *others = [answer.value()["x"] for answer in unpack_results(writer.message())]
    assert first.base is None
    first[:] = 9
    assert [one.tolist() for one in others] == [[1, 1], [2, 2]], "as they were when a function has returned them"
    for made in through([{"x": IN_ORDER, "y": IN_ORDER}] * 2):
        assert made["x"] is made["y"], "one array under two names stays one"


def test_a_column_takes_no_more_memory_than_is_bounded() -> None:
    writer = AnswerWriter(10_000)
    writer.add({"x": np.ones(1 << 14)})
    assert len(writer.message()) < 1 << 18
    assert unpack_results(writer.message())[0].value()["x"].sum() == 1 << 14
