"""Global random generators in workers: modules that seed them when they are imported do not make workers alike."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pecan_ray.engines.global_generators import GlobalGenerators, global_generators
from pecan_ray.engines.python.processes import Processes
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import column, run_engine

WITHOUT_FRAMEWORKS = """
import sys
from pecan_ray.engines.global_generators import global_generators
global_generators.begin((1, "local-0"))
print(sorted({"torch", "tensorflow"} & set(sys.modules)))
"""


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    """Leave the generators of this process as they were."""
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
    torch: Any = pytest.importorskip("torch")
    bits = int(torch.randint(1 << 62, ()))
    return random.getrandbits(62), int(np.random.randint(1 << 62)), bits


def draws(key: tuple[int | str, ...] | None, count: int = 3) -> list[tuple[int, int, int]]:
    """Draw as a process whose modules have seeded all generators, before it was told its key and in its functions."""
    torch: Any = pytest.importorskip("torch")

    def seed_all() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    generators = GlobalGenerators()
    seed_all()
    generators.begin(key)
    found = [draw() for _ in range(count)]
    seed_all()
    generators.seed_again()
    return found + [draw() for _ in range(count)]


def test_each_process_draws_numbers_of_its_own_and_the_same_ones_when_it_is_run_again() -> None:
    one, other = draws((7, "local-0", 0)), draws((7, "local-1", 0))
    assert one == draws((7, "local-0", 0))
    for generator in range(3):
        drawn = [values[generator] for values in one + other]
        assert len(set(drawn)) == len(drawn)
    assert draws(None)[:3] == draws(None)[3:], "those of the user's own process are left alone"


def test_no_framework_is_imported_for_it() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_FRAMEWORKS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


class SeedsInItsFirstCall:
    """A function that imports a module which seeds, when it is called first."""

    def __init__(self) -> None:
        self._imported = False

    def __call__(self, i: Any) -> Any:
        if not self._imported:
            self._imported = True
            random.seed(1)
        return random.getrandbits(62)


def test_what_is_seeded_in_a_function_holds_for_its_first_element_alone() -> None:
    drawn = []
    for worker in ("local-0", "local-1"):
        global_generators.begin((7, worker, 0))
        pipe = PecanPipeline(Arrays(i=np.arange(50))).map(SeedsInItsFirstCall(), on="i").batch(5)
        drawn.append(set(column(run_engine(pipe), "i")))
    assert [len(one) for one in drawn] == [50, 50]
    assert len(drawn[0] & drawn[1]) == 1, "the first element of each"


def test_processes_of_functions_draw_numbers_of_their_own() -> None:
    global_generators.begin((7, "local-0", 0))
    drawn: list[int] = []
    for _ in range(2):
        processes = Processes({"draws": SeedsInItsFirstCall()}, 1)
        drawn += [processes.call("draws", None, {}) for _ in range(10)]
        processes.close()
    assert drawn[0] == drawn[10], "seeded in the first call"
    assert len(set(drawn)) == 19
