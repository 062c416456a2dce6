"""Programs that fork, share batches among threads, or may have few files open: what cannot work is refused by name."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pecan_ray.errors import PecanError, PlanError
from tests.ray.conftest import living_actors
from tests.ray.pipelines import numbers
from tests.ray.user_programs import run_program
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

PROGRAM = """
import os, sys, time, multiprocessing
import numpy as np
import pecan_ray as pecan

def pipeline():
    return pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4_000)), name="forked").batch(4)

def try_it(begin):
    try:
        print("got", next(iter(begin())), flush=True)
    except BaseException as error:
        print(type(error).__name__, error, flush=True)

def fork(begin, end=os._exit):
    child = os.fork()
    if not child:
        try_it(begin)
        sys.stdout.flush()
        end(5)
    print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

FORKED = """
import gc
batches = pipeline().iter_batches(workers=pecan.Workers(local=1), order="strict")
mine = [next(batches) for _ in range(9)]
def drop():
    mine.clear()  # not ours: the parent still holds them
    gc.collect()
    return batches
fork(drop)
fork(lambda: pipeline().iter_batches())
fork(lambda: batches.close() or [0], sys.exit)  # with all that is registered for the end of an interpreter
context = multiprocessing.get_context("fork")
process = context.Process(target=try_it, args=(lambda: batches,))
process.start()
process.join()
print("code", process.exitcode)
for _ in range(400):
    next(batches)
assert sorted(int(i) for batch in mine for i in batch["i"]) == list(range(36)), mine
print("parent goes on")
import atexit
atexit.register(lambda: try_it(lambda: pipeline().iter_batches(workers=pecan.Workers(local=1))))
atexit.register(lambda: print("first", pipeline().peek()["i"].tolist(), flush=True))
"""


def run(text: str, folder: Path, address: str | None) -> list[str]:
    """Run a program to its end; return the lines that it has written."""
    done = run_program(PROGRAM + text, folder, address)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_forked_process_and_one_at_its_end_are_refused_and_harm_nothing(one_node: Any, tmp_path: Path) -> None:
    *said, goes_on, first, at_exit = run(FORKED, tmp_path, one_node.address)
    assert (goes_on, first) == ("parent goes on", "first [0, 1, 2, 3]")
    assert at_exit.startswith("ClusterError iter_batches() was called while the interpreter ends"), at_exit
    assert said[1::2] == ["code 5", "code 5", "code 5", "code 0"], said
    assert said[0].startswith("ClusterError process") and "was forked from process" in said[0]
    assert said[2].startswith("ClusterError process") and said[6].startswith("ClusterError process")


def test_several_threads_share_the_batches_and_an_error_reaches_each_of_them() -> None:
    def fail_late(i: int) -> int:
        if i == 390:
            raise ValueError("too large")
        return i

    batches = numbers(400, "shared").map(fail_late, on="i").batch(10).iter_batches(order="strict")
    with pytest.raises(PlanError, match="num_workers=0"):
        pickle.dumps(batches)

    def take(_: int) -> tuple[list[int], str]:
        mine: list[int] = []
        try:
            for batch in batches:
                mine.extend(batch["i"].tolist())
        except PecanError as error:
            return mine, str(error)
        return mine, "no error"

    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(take, range(4)))
    came = sorted(i for mine, _ in taken for i in mine)
    assert came == list(range(len(came))) and len(came) <= 390, "what lies before the error, as far as it has come"
    assert all("too large" in error for _, error in taken), taken
    until(lambda: not living_actors(), lambda: f"a job that has failed keeps {living_actors()}")


HELD_BATCHES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
import pecan_ray as pecan

ROWS, SIDE = 8000, 1000
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name="held")
pipe = pipe.map(lambda i: np.full(SIDE, i), on="i").batch(8)
with pipe.iter_batches(workers=pecan.Workers(local=1)) as batches:
    held = list(batches)
assert len(held) == ROWS // 8 and all(batch["i"].base is not None for batch in held), "they are views"
assert all((batch["i"] == batch["i"][:, :1]).all() for batch in held)
print("lines:", len({int(row[0]) for batch in held for row in batch["i"]}))
"""


def test_a_thousand_batches_are_held(one_node: Any, tmp_path: Path) -> None:
    done = run_program(HELD_BATCHES, tmp_path, one_node.address)
    assert "lines: 8000" in done.stdout and "Traceback" not in done.stderr, done.stderr
