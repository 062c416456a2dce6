"""What a process begins with: generators of its own, memory that stays, and no more imports than it needs."""

from __future__ import annotations

import contextlib
import os
import platform
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pecan_ray as pecan
from pecan_ray.engines.freed_memory import keep_freed_memory
from pecan_ray.engines.global_generators import GlobalGenerators, global_generators
from pecan_ray.engines.python.processes import Processes
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import column, run_engine


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    before, numpy_before = random.getstate(), np.random.get_state()
    with contextlib.ExitStack() as stack:
        if "tensorflow" in sys.modules:  # imported by other tests
            from pecan_ray.engines.tensorflow.own_seed import without_global_seed

            stack.enter_context(without_global_seed())
        yield
    global_generators.begin(None)
    random.setstate(before)
    np.random.set_state(numpy_before)


def draw() -> tuple[int, int, int]:
    bits = int(torch.randint(1 << 62, ()))
    return random.getrandbits(62), int(np.random.randint(1 << 62)), bits


def seed_all() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def draws(key: tuple[int | str, ...] | None, count: int = 3) -> list[tuple[int, int, int]]:
    """Draw as a process whose modules have seeded all generators, before it was told its key and in its functions."""
    generators = GlobalGenerators()
    seed_all()
    generators.begin(key)
    found = [draw() for _ in range(count)]
    seed_all()
    generators.reset_seeds()
    return found + [draw() for _ in range(count)]


def test_each_process_draws_numbers_of_its_own_and_the_same_ones_when_it_is_run_again() -> None:
    one, other = draws((7, "local-0", 0)), draws((7, "local-1", 0))
    assert one == draws((7, "local-0", 0))
    assert all(len(set(drawn)) == len(drawn) for drawn in zip(*(one + other), strict=True))
    assert draws(None)[:3] == draws(None)[3:], "those of the user's own process are left alone"


def test_processes_of_functions_draw_numbers_of_their_own_and_what_the_first_call_seeds_holds_for_it_alone() -> None:
    calls: list[Any] = []

    def seeds_in_its_first_call(i: Any) -> Any:  # as a function that imports a module which seeds
        calls.append(i)
        if len(calls) == 1:
            random.seed(1)
        return random.getrandbits(62)

    global_generators.begin((7, "local-0", 0))
    drawn: list[int] = []
    for _ in range(2):
        processes = Processes({"draws": seeds_in_its_first_call}, 1)
        drawn += [processes.call("draws", None, {}) for _ in range(10)]
        processes.close()
    assert drawn[0] == drawn[10], "seeded in the first call"
    assert len(set(drawn)) == 19


MEMORY_STAYS = """
import resource, sys, threading
import numpy as np
from pecan_ray.engines.freed_memory import keep_freed_memory

kept = keep_freed_memory()
found = []

def element():
    parts = [np.ones(3500 << 10, np.uint8) for _ in range(20)]  # 70 MB, more than an area of a thread holds
    return sum(int(part[-1]) for part in parts)

def work():
    for _ in range(5):
        element()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(20):
        element()
    found.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(kept, found[0] / 20 < 5)  # of 17,500 pages of 4 KB, of which thousands are cleared else
"""


def test_what_a_user_has_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has tuned the C library's memory himself knows better."""
    for variable in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        with monkeypatch.context() as environment:
            environment.setenv(variable, "glibc.malloc.trim_threshold=131072" if variable[0] == "G" else "131072")
            assert keep_freed_memory() is False


NO_FRAMEWORK = """
import sys
from pecan_ray.engines.global_generators import global_generators
global_generators.begin((1, "local-0"))
print(sorted({"torch", "tensorflow"} & set(sys.modules)))
"""
NO_PLACEMENT = """
import sys
import pecan_ray.runtime.worker
print(sorted(name for name in sys.modules if name.startswith(("pecan_ray.placement.", "pecan_ray.autoscaler."))))
"""
NO_PANDAS = """
import sys
import numpy as np
from pecan_ray.engines.entry_format import EntryReader, EntryWriter
writer = EntryWriter()
for n in range(3):
    writer.add(n, 0, 1, {"x": np.zeros(n), "i": n, "f": 0.5, "t": "text", "b": b"bytes", "o": True, "s": np.float32(n)})
print(len(list(EntryReader(b"".join(writer.finish(3))))), "pandas" in sys.modules)
"""
NO_KERAS = """
import gc, sys
from pecan_ray.engines.without_keras import import_tensorflow

collected = []
gc.callbacks.append(lambda phase, info: collected.append(phase))
import_tensorflow()
print(len(collected), gc.isenabled(), gc.get_freeze_count(), gc.get_count()[0] < gc.get_threshold()[0])
tensorflow = sys.modules["tensorflow"]
print(sorted({"keras", "jax"} & {name.partition(".")[0] for name in sys.modules}))
print(tensorflow.keras.layers.Rescaling(0.5)(tensorflow.ones((1, 2))).numpy().tolist())
print(type(tensorflow.keras.optimizers.Adam()).__name__)
import_tensorflow()  # once more does nothing
print(sys.modules["tensorflow"] is tensorflow)
twice = lambda x: 2 * x
converter = tensorflow.lite.TFLiteConverter.experimental_from_jax([twice], [[("x", tensorflow.ones(2).numpy())]])
print(len(converter.convert()) > 0)
"""


def said_by(program: str) -> str:
    """Return what another process prints, whose C library has a setting that says nothing about memory."""
    environment = {**os.environ, "GLIBC_TUNABLES": "glibc.pthread.rseq=1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such settings")
def test_the_next_elements_arrays_take_the_memory_of_the_last() -> None:
    assert said_by(MEMORY_STAYS) == "True True"


def test_no_library_is_imported_before_it_is_needed_and_no_garbage_looked_for() -> None:
    """Importing one in the middle of an epoch takes as long as writing tens of entries; Keras, half of TensorFlow."""
    assert said_by(NO_FRAMEWORK) == "[]"
    assert said_by(NO_PLACEMENT) == "['pecan_ray.placement.cut']"
    assert said_by(NO_PANDAS) == "3 False"
    pytest.importorskip("keras")
    pytest.importorskip("jax")
    assert said_by(NO_KERAS).splitlines() == ["0 True 0 True", "[]", "[[0.5, 0.5]]", "Adam", "True", "True"]


def draw_row(x: Any) -> Any:
    return np.array([x, random.random(), np.random.rand(), torch.rand(1).item()])


def drawn_rows(*, seed: int = 0, **options: Any) -> dict[float, tuple[float, ...]]:
    """Return what each element has drawn_rows."""
    processes = bool(options.pop("processes", False))
    pipe = pecan.PecanPipeline(Arrays(x=np.arange(60.0), split_rows=20), seed=seed)
    pipe = pipe.map(draw_row, on="x", seed_globals=True, processes=processes).batch(7)
    return {float(row[0]): tuple(row[1:]) for row in column(run_engine(pipe, seed=seed, **options), "x")}


@pytest.mark.parametrize(
    "options", [{"threads": 4}, {"threads": 4, "order": "strict"}, {"threads": 2, "processes": True}]
)
def test_an_element_draws_the_same_numbers_wherever_it_runs(options: dict[str, Any]) -> None:
    once = drawn_rows(threads=1)
    assert drawn_rows(**options) == once
    assert len(set(once.values())) == len(once) == 60


def test_another_seed_gives_other_numbers_and_the_users_generators_stay_as_they_were() -> None:
    def fail(x: Any, rng: np.random.Generator) -> Any:
        rng.random()  # it has its own beside
        raise ValueError("no")

    before = random.getstate(), torch.get_rng_state(), str(np.random.get_state())
    assert not set(drawn_rows().values()) & set(drawn_rows(seed=1).values())
    with pytest.raises(Exception, match="no"):
        run_engine(pecan.PecanPipeline(Arrays(x=np.arange(3))).map(fail, on="x", seed_globals=True).batch(3))
    assert before[0] == random.getstate() and torch.equal(before[1], torch.get_rng_state())
    assert before[2] == str(np.random.get_state())


def test_a_library_that_a_function_is_the_first_to_import_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "cupy.py").write_text("")
    program = """
import numpy as np
import pecan_ray as pecan
from pecan_ray.engines.in_process import run_in_process

def late(x):
    import torch, cupy
    return x

pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.arange(5))).map(late, on="x", seed_globals=True).batch(5)
print(len(list(run_in_process(pipe.plan))))
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    told = ran.stderr.decode()
    assert ran.stdout == b"1\n", told
    assert told.count("late has imported torch, whose global generator was not seeded for this element") == 1
    assert told.count("late has imported cupy, whose global generator is not seeded for elements") == 1
