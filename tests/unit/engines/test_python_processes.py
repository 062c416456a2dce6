"""Functions in processes: answers, errors and their end; and children that functions fork."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from pecan_ray.engines.contract import Produced
from pecan_ray.engines.python.call_results import ResponseColumns, ResponseWriter, unpack_results
from pecan_ray.engines.python.processes import Processes
from pecan_ray.errors import OpError
from pecan_ray.options import OnError
from pecan_ray.pipeline import PecanPipeline
from tests.unit.engines.cache_rig import sorted_numbers
from tests.unit.engines.engine_leases import Numbered, bad_of, column, exact, numbers, run_beside, run_engine

# A process that is started here would import all of this file's libraries for one function.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def halved(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value // 2


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
    "whose": lambda value: (os.getpid(), value),
    "halved": halved,
    "scaled": lambda values, by: values[0] * by,
    "dying": lambda code: os._exit(code) if code else None,
    "asked_to_end": asked_to_end,
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
    half.prefetch([(2, {}), (3, {}), (4, {})])
    assert half(2) == 1
    with pytest.raises(ValueError, match="3 is odd"):
        half(3)
    assert half(4) == 2
    assert half(6) == 3  # was not among them
    shared = [1.0]
    scale.prefetch([(shared, {"by": 2}), (shared, {"by": 3})])
    assert [scale(shared, by=2), scale(shared, by=3)] == [2.0, 3.0]
    die.prefetch([(0, {}), (7, {}), (0, {})])
    assert die(0) is None
    with pytest.raises(RuntimeError, match="ended with exit code 7"):
        die(7)
    assert die(0) is None, "it fails alone"


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


IN_ORDER_OF_F = np.asfortranarray(np.arange(6).reshape(2, 3))
OF_ONE_FORM: dict[str, list[Any]] = {
    "arrays": [{"x": np.full(3, n, np.int16), "y": np.full((2, 2), n + 0.5)} for n in range(4)],
    "numbers": [{"n": n, "x": np.float32(n / 3), "b": np.bool_(n % 2), "c": np.complex64(n)} for n in range(4)],
    "texts": [{"t": "a" * n, "b": b"\x00" * n, "none": None} for n in range(4)],
    "python's types mixed": [{"n": 1}, {"n": 1.5}, {"n": "one"}, {"n": None}, {"n": True}],
    "no dict": [np.arange(n, n + 3) for n in range(4)],
    "arrays without items": [{"x": np.empty((0, 3))} for _ in range(3)],
    "answers of a filter": [True, False, True],
    "one": [{"x": np.arange(5)}],
    "another order of bytes": [{"x": np.arange(3, dtype=">i4")} for _ in range(3)],
}
OF_SEVERAL_FORMS: dict[str, list[Any]] = {
    "other shapes": [{"x": np.zeros(n)} for n in range(4)],
    "other dtypes": [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": np.zeros(2, np.float32)}],
    "a number among arrays": [{"x": np.zeros(1)}, {"x": 0.0}],
    "other columns": [{"x": 1}, {"x": 1, "y": 2}, {"y": 2}, {}],
    "another order of columns": [{"x": 1, "y": 2}, {"y": 2, "x": 1}],
    "lists": [{"x": [1, [2]]}, {"x": []}],
    "names that are no strings": [{0: np.zeros(1)}, {0: np.ones(1)}],
    "objects": [{"x": np.array([1, None], object)}] * 2,
    "masked arrays": [{"x": np.ma.masked_array([1, 2], [False, True])}] * 2,
    "as many dimensions as there can be": [{"x": np.zeros((1,) * 32)}] * 2,
}


def sent(results: list[Any]) -> bytes:
    writer = ResponseWriter(len(results))
    for result in results:
        writer.add(result)
    return writer.message()


def through(results: list[Any]) -> list[Any]:
    return [answer.value() for answer in unpack_results(sent(results))]


@pytest.mark.parametrize("name", [*OF_ONE_FORM, *OF_SEVERAL_FORMS])
def test_what_goes_in_comes_out_and_travels_as_columns_where_it_is_of_one_form(name: str) -> None:
    results = OF_ONE_FORM.get(name) or OF_SEVERAL_FORMS[name]
    made = through(results)
    assert exact(made) == exact(results)
    assert [list(one) for one in made if type(one) is dict] == [list(one) for one in results if type(one) is dict]
    assert isinstance(pickle.loads(sent(results)), ResponseColumns) == (name in OF_ONE_FORM)


def test_arrays_are_of_their_own_and_can_be_written_into() -> None:
    writer, own = ResponseWriter(3), np.zeros(2)
    for number in range(3):
        own[:] = number
        writer.add({"x": own})
    first, *others = [answer.value()["x"] for answer in unpack_results(writer.message())]
    first[:] = 9
    assert first.base is None
    assert [one.tolist() for one in others] == [[1, 1], [2, 2]], "as they were when a function has returned them"
    for made in through([{"x": IN_ORDER_OF_F, "y": IN_ORDER_OF_F}] * 2):
        assert made["x"] is made["y"] and made["x"].flags.f_contiguous, "one array under two names stays one"
    writer = ResponseWriter(10_000)
    writer.add({"x": np.ones(1 << 14)})
    assert len(writer.message()) < 1 << 18, "a column takes no more memory than is bounded"


def jittered(element: dict[str, Any], rng: np.random.Generator, epoch: int) -> dict[str, Any]:
    return {"i": element["i"], "pid": os.getpid(), "noise": rng.random() + epoch}


class OwnError(Exception):
    """What no other process can load."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} {number}")


def unlucky(i: Any) -> Any:
    if i == 3:
        raise OwnError(3, "bad number")
    return i


def test_functions_run_in_other_processes_when_asked_to() -> None:
    def built(processes: bool) -> PecanPipeline:
        pipe = numbers(12).map(jittered, processes=processes)
        return pipe.map(unlucky, on="i", name="unlucky", processes=processes).batch(4)

    wanted, produced = (run_engine(built(apart), order="strict", on_error="skip") for apart in (False, True))
    assert column(produced, "noise") == column(wanted, "noise")
    assert os.getpid() not in column(produced, "pid")
    (bad,) = bad_of(produced)
    assert (bad.op, bad.where) == ("unlucky", "element 3 of split 0")
    assert bad.error == "unlucky failed on element 3 of split 0: RuntimeError: OwnError: bad number 3"


Change = Callable[[dict[str, Any]], dict[str, Any]]


def at_seven(in_child: Callable[[], object]) -> Change:
    """Return a function that makes a child for one element and waits for it: what it does is done by then."""

    def fork(element: dict[str, Any]) -> dict[str, Any]:
        if element["i"] != 7:
            return element
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return element
        in_child()
        return {"i": np.int64(-1)}

    return fork


def raises() -> None:
    raise ValueError("only here")


def comes_back() -> None:
    """Do nothing more."""


KINDS: dict[str, tuple[Callable[[], PecanPipeline], str]] = {
    "map": (
        lambda: numbers().map(at_seven(comes_back), name="f").batch(4),
        "f: a child .* element 7 of split 0 .* came",
    ),
    "filter": (lambda: numbers().filter(lambda e: bool(at_seven(comes_back)(e)), name="f").batch(4), "f: a child"),
    "flat_map": (lambda: numbers().flat_map(lambda e: [at_seven(comes_back)(e)], name="f").batch(4), "f: a child"),
    "bucket": (
        lambda: numbers().bucket_by_length([3], sizes=2, length=lambda e: len(at_seven(comes_back)(e))),
        "bucket_by_length: a child",
    ),
    "raising": (
        lambda: numbers().map(at_seven(raises), name="f").batch(4),
        "came back from the function, by raising ValueError: only here",
    ),
    "in a process": (
        lambda: numbers().map(at_seven(raises), name="f", processes=True).batch(4),
        "f failed on element .*: ForkError: f: a child",
    ),
    "a source": (
        lambda: PecanPipeline(Numbered(20, make=lambda i: at_seven(comes_back)({"i": i}))).batch(2),
        "read Numbered: a child process .* while element 7 of split 0",
    ),
}


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_comes_back_writes_nothing_and_is_told_by_name(kind: str, on_error: OnError) -> None:
    came: list[Produced] = []
    build, said = KINDS[kind]
    with pytest.raises(OpError, match=said):
        run_beside(build(), came, on_error=on_error)
    found = sorted_numbers(came)
    assert -1 not in found and len(found) == len(set(found))
    if kind == "map":
        with pytest.raises(OpError, match=said):
            list(build().iter_batches(epochs=1, debug=True))


@pytest.mark.parametrize(("leave", "processes"), [(sys.exit, False), (os._exit, False), (sys.exit, True)])
def test_a_child_that_ends_itself_is_left_alone(leave: Callable[[int], None], processes: bool) -> None:
    came = run_beside(numbers().map(at_seven(lambda: leave(0)), processes=processes).batch(4), [])
    assert sorted_numbers(came) == list(range(40))
