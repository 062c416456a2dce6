"""Threads and forks of the trainer: an iterator serves each batch once, and belongs to one process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PecanError

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")


def pipeline(elements: int = 400) -> pecan.PecanPipeline:
    """Return a pipeline over numbers."""
    return pecan.PecanPipeline(pecan.sources.Arrays({"x": np.arange(elements)}, split_rows=20)).batch(10)


@pytest.mark.parametrize("debug", [False, True])
def test_several_threads_share_the_batches(debug: bool) -> None:
    taken: list[list[int]] = [[] for _ in range(4)]
    batches = pipeline().iter_batches(epochs=1, debug=debug)

    def take(mine: list[int]) -> None:
        for batch in batches:
            mine.extend(batch["x"].tolist())

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(x for mine in taken for x in mine) == list(range(400))


def test_an_error_reaches_every_thread() -> None:
    def fail(element: dict[str, int]) -> dict[str, int]:
        raise ValueError("never")

    errors: list[BaseException] = []
    batches = pipeline().map(fail).iter_batches(epochs=1)

    def take() -> None:
        try:
            for _ in batches:
                raise AssertionError("there is no batch")
        except PecanError as error:
            errors.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 3
    assert all("never" in str(error) for error in errors)


def test_forked_children_leave_the_job_alone_however_they_leave_it() -> None:
    batches = pipeline().iter_batches(epochs=1)
    held = next(batches)["x"]
    before = held.copy()
    seen = held.tolist()
    for ending in ("drop", "close", "next"):
        child = os.fork()
        if child == 0:
            status = 0
            if ending == "drop":
                del batches, held
            elif ending == "close":
                batches.close()
            elif ending == "next":
                try:
                    next(batches)
                    status = 1
                except PecanError:
                    del batches
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, ending
        seen += next(batches)["x"].tolist()
        assert (held == before).all(), ending
    for batch in batches:
        seen.extend(batch["x"].tolist())
    assert sorted(seen) == list(range(400))


PROGRAM = """
import os, sys
import numpy as np
import pecan_ray as pecan

source = pecan.sources.Arrays({"x": np.arange(400)}, split_rows=20)
batches = pecan.PecanPipeline(source).batch(10).iter_batches(epochs=1)
seen = next(batches)["x"].tolist()
codes = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        sys.exit(0)  # with all that is registered for the end of an interpreter
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert codes == [0, 0, 0], codes
for batch in batches:
    seen += batch["x"].tolist()
assert sorted(seen) == list(range(400)), seen
print("all of them")
"""


@pytest.mark.slow
def test_a_forked_child_that_exits_returns_its_code_and_leaves_ray_alone() -> None:
    env = {**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert "all of them" in done.stdout, done.stderr
