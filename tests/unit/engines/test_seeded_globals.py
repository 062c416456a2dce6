"""Functions that draw from global generators, which are seeded for each element."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pecan_ray as pecan
from pecan_ray.errors import PlanError
from pecan_ray.sources import Arrays
from tests.unit.engines.engine_leases import column, run_engine


def draw(x: Any) -> Any:
    return np.array([x, random.random(), np.random.rand(), torch.rand(1).item()])


def drawn(*, seed: int = 0, **options: Any) -> dict[float, tuple[float, ...]]:
    """Return what each element has drawn."""
    processes = bool(options.pop("processes", False))
    pipe = pecan.PecanPipeline(Arrays(x=np.arange(60.0), split_rows=20), seed=seed)
    pipe = pipe.map(draw, on="x", seed_globals=True, processes=processes).batch(7)
    return {float(row[0]): tuple(row[1:]) for row in column(run_engine(pipe, seed=seed, **options), "x")}


@pytest.mark.parametrize(
    "options", [{"threads": 4}, {"threads": 4, "order": "strict"}, {"threads": 2, "processes": True}]
)
def test_an_element_draws_the_same_numbers_wherever_it_runs(options: dict[str, Any]) -> None:
    once = drawn(threads=1)
    assert drawn(**options) == once
    assert len(set(once.values())) == len(once) == 60


def test_another_seed_gives_other_numbers_and_the_users_generators_stay_as_they_were() -> None:
    before = random.getstate(), torch.get_rng_state(), str(np.random.get_state())
    assert not set(drawn().values()) & set(drawn(seed=1).values())
    assert before[0] == random.getstate() and torch.equal(before[1], torch.get_rng_state())
    assert before[2] == str(np.random.get_state())


def test_a_function_has_its_own_generator_beside_and_errors_put_everything_back() -> None:
    def fail(x: Any, rng: np.random.Generator) -> Any:
        rng.random()
        raise ValueError("no")

    before = random.getstate()
    with pytest.raises(Exception, match="no"):
        run_engine(pecan.PecanPipeline(Arrays(x=np.arange(3))).map(fail, on="x", seed_globals=True).batch(3))
    assert before == random.getstate()


def test_a_library_that_a_function_is_the_first_to_import_is_warned_of_once(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "cupy.py").write_text("")
    program = """
import numpy as np
import pecan_ray as pecan
from pecan_ray.engines.inprocess import run_inprocess

def late(x):
    import torch, cupy
    return x

pipe = pecan.PecanPipeline(pecan.sources.Arrays(x=np.arange(5))).map(late, on="x", seed_globals=True).batch(5)
print(len(list(run_inprocess(pipe.plan))))
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ran = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    told = ran.stderr.decode()
    assert ran.stdout == b"1\n", told
    assert told.count("late has imported torch, whose global generator was not seeded for this element") == 1
    assert told.count("late has imported cupy, whose global generator is not seeded for elements") == 1


def test_what_cannot_be_seeded_is_refused() -> None:
    pipe = pecan.PecanPipeline(Arrays(x=np.arange(3)), engine="tensorflow")
    with pytest.raises(PlanError, match="draws from no global generator"):
        pipe.map(draw, on="x", seed_globals=True)
    with pytest.raises(PlanError, match="parameter `epoch`"):
        pecan.PecanPipeline(Arrays(x=np.arange(3))).map(lambda x, epoch: x, on="x", seed_globals=True)
