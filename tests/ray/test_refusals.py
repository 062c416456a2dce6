"""What cannot work is refused by name at once: forked processes, loaders' workers, other processes' iterators."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import PecanError, PlanError
from tests.ray.conftest import ROOT
from tests.ray.waiting import ENDS_S

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
"""


def run(text: str, folder: Path, address: str | None) -> list[str]:
    """Run a program to its end; return the lines that it has written."""
    path = folder / "program.py"
    path.write_text(PROGRAM + text)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="ray-") as own:
        # A running cluster is found by a file in Ray's folder.
        environment.update({"RAY_ADDRESS": address} if address else {"RAY_TMPDIR": own})
        done = subprocess.run(
            [sys.executable, str(path)], env=environment, cwd=folder, capture_output=True, text=True, timeout=ENDS_S
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_a_forked_process_is_refused_and_harms_nothing_however_it_ends(one_node: Any, tmp_path: Path) -> None:
    said = run(FORKED, tmp_path, one_node.address)
    assert said[1::2] == ["code 5", "code 5", "code 5", "code 0"] and said[8:] == ["parent goes on"], said
    assert said[0].startswith("ClusterError process") and "was forked from process" in said[0]
    assert said[2].startswith("ClusterError process") and said[6].startswith("ClusterError process")


def pipeline(elements: int = 400) -> pecan.PecanPipeline:
    """Return a pipeline over numbers."""
    return pecan.PecanPipeline(pecan.sources.Arrays({"x": np.arange(elements)}, split_rows=20), name="shared").batch(10)


def test_several_threads_share_the_batches_and_an_error_reaches_each_of_them() -> None:
    def fail_late(x: int) -> int:
        if x == 390:
            raise ValueError("too large")
        return x

    taken: list[list[int]] = [[] for _ in range(4)]
    errors: list[Exception] = []
    batches = pipeline().unbatch().map(fail_late, on="x").batch(10).iter_batches(order="strict")
    with pytest.raises(PlanError, match="num_workers=0"):
        pickle.dumps(batches)

    def take(mine: list[int]) -> None:
        try:
            for batch in batches:
                mine.extend(batch["x"].tolist())
        except PecanError as error:
            errors.append(error)

    threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    came = sorted(x for mine in taken for x in mine)
    assert came == list(range(len(came))) and len(came) <= 390, "what lies before the error, as far as it has come"
    assert len(errors) == 4 and all("too large" in str(error) for error in errors)


AT_EXIT = """
import atexit
atexit.register(lambda: try_it(lambda: pipeline().iter_batches(workers=pecan.Workers(local=1))))
atexit.register(lambda: print("first", pipeline().peek()["i"].tolist(), flush=True))
"""


def test_no_job_begins_at_the_end_of_the_interpreter(one_node: Any, tmp_path: Path) -> None:
    first, said = run(AT_EXIT, tmp_path, one_node.address)
    assert first == "first [0, 1, 2, 3]"
    assert said.startswith("ClusterError iter_batches() was called while the interpreter ends"), said


RANKS = 70


@ray.remote(num_cpus=0)
def count(rank: int) -> int:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(RANKS * 20)), name="many").batch(4)
    options: dict[str, Any] = {"rank": rank, "world_size": RANKS, "job": "many", "workers": pecan.Workers(local=1)}
    with pipe.iter_batches(**options) as batches:
        return sum(1 for _ in batches)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_more_trainers_than_a_worker_has_streams_get_equally_many_batches() -> None:
    assert set(ray.get([count.remote(rank) for rank in range(RANKS)])) == {5}


ALONE = """
import logging, threading
said = threading.Event()
class Listen(logging.Handler):
    def emit(self, record):
        print(record.name, record.levelname, record.getMessage(), flush=True)
        if "did not come" in record.getMessage():
            said.set()
logging.getLogger("pecan_ray").addHandler(Listen())
batches = pipeline().iter_batches(world_size=2, rank=1, job="apart", workers=pecan.Workers(local=1))
threading.Thread(target=lambda: (said.wait(), os._exit(0)), daemon=True).start()
next(batches)
"""


@pytest.mark.slow
def test_ranks_without_a_cluster_are_told_at_once(tmp_path: Path) -> None:
    said = run(ALONE, tmp_path, None)
    assert said[0].startswith("pecan_ray WARNING rank 1 of 2 has started a Ray of its own"), said
    assert said[1].startswith("pecan_ray.client WARNING") and "rank 0 of 2 did not come within" in said[1], said
