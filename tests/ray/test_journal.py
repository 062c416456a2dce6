"""Controllers that are killed: the job goes on from its journal, and every element comes exactly once."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import ClusterError, JournalError, StateError
from pecan_ray.runtime.journal_file import JournalPlace
from tests.ray.conftest import ROOT, living_actors
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 20_000
"""Elements, whose numbers are more than Ray keeps for starting an actor again."""


def numbers(name: str, **options: Any) -> pecan.PecanPipeline:
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(ROWS)), name=name, **options)
    return pipe.filter(slowly, on="i").batch(50)


def slowly(i: Any) -> Any:
    if i % 50 == 0:
        time.sleep(0.005)
    return i % 3 > 0


KEPT = Counter({i: 1 for i in range(ROWS) if i % 3 > 0})


def controller(job: str) -> Any:
    return ray.get_actor(f"pecan:{job}:controller", namespace="pecan")


def process_of(job: str) -> int:
    """The controller's process, once there is one that answers."""
    found: list[int] = []

    def answers() -> bool:
        try:
            found.append(ray.get(controller(job).process_id.remote()))
        except ray.exceptions.ActorUnavailableError:
            return False
        return True

    until(answers, "the controller does not come again")
    return found[-1]


def kill(job: str) -> int:
    """Kill the controller's process; return its number."""
    os.kill(pid := process_of(job), signal.SIGKILL)
    return pid


TRAINER = """
import signal
import sys

import pecan_ray as pecan
from tests.ray.test_journal import numbers

folder, rank, world, used = sys.argv[1], *map(int, sys.argv[2:])
config = pecan.Config(journal=folder, trainer_timeout_s=6)
options = {"rank": rank, "world_size": world, "job": "left", "workers": pecan.Workers(local=1)}
for number, batch in enumerate(numbers("left", config=config).iter_batches(**options), 1):
    print(*batch["i"].tolist(), flush=True)
    if number == used:
        signal.pause()  # until it is killed
"""


def used_and_killed(folder: str, address: str, uses: list[int], output: Path) -> tuple[list[int], dict[str, Any]]:
    """Let each rank use so many batches and be killed when the job knows; return what all have used, and the state."""
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    files = [output / f"rank-{rank}" for rank in range(len(uses))]
    programs = []
    for rank, (file, count) in enumerate(zip(files, uses, strict=True)):
        arguments = [sys.executable, "-c", TRAINER, folder, *map(str, (rank, len(uses), count))]
        programs.append(subprocess.Popen(arguments, env=environment, stdout=file.open("w"), cwd=ROOT))

    def told() -> bool:
        assert not any(program.poll() for program in programs)
        try:
            known = pecan.journal_state(folder, "left")["batches"] == min(uses)
        except (JournalError, StateError):  # not yet
            return False
        return known and [file.read_text().count("\n") for file in files] == uses

    try:
        until(told, "it is not known what was used")
    finally:
        for program in programs:
            program.kill()
            program.wait()
    until(lambda: not living_actors(), "the job does not end")
    used = [int(i) for file in files for i in file.read_text().split()[: min(uses) * 50]]
    assert len(used) == min(uses) * 50 * len(uses)
    return used, pecan.journal_state(folder, "left")


@pytest.mark.slow
def test_ranks_whose_programs_were_killed_go_on_from_the_slowest_one(three_nodes: Any, tmp_path: Path) -> None:
    """What others have used beyond comes again."""
    folder = str(tmp_path / "journals")
    used, state = used_and_killed(folder, three_nodes.address, [12, 7], tmp_path)
    with numbers("left", config=pecan.Config(journal=folder)).iter_batches(job="left", state=state) as batches:
        rest = [i for batch in batches for i in batch["i"].tolist()]
        assert batches.state_dict()["batches"] == 7 + len(rest) // 50 + bool(len(rest) % 50)
    assert Counter(used) + Counter(rest) == KEPT


@contextmanager
def running(name: str, **options: Any) -> Iterator[Any]:
    """An endless job whose controller can be killed."""
    with numbers(name, **options).iter_batches(job=name, epochs=None, workers=pecan.Workers(local=1)) as batches:
        next(batches)
        yield batches


def test_what_is_no_journal_is_refused_and_a_damaged_one_ends_a_job_whose_controller_is_killed(tmp_path: Path) -> None:
    JournalPlace(tmp_path, "elsewhere", "actor").keep_job(b"cno_such_module\nJob\n.")
    with pytest.raises(JournalError, match=r"elsewhere\.job cannot be unpickled: .*no_such_module"):
        pecan.journal_state(tmp_path, "elsewhere")
    with pytest.raises(JournalError, match="holds no journal of job nobody"):
        pecan.journal_state(tmp_path, "nobody")
    with pytest.raises(JournalError, match=r"Config\(journal='.*elsewhere\.job'\): no journal can be kept"):
        numbers("open", config=pecan.Config(journal=tmp_path / "elsewhere.job")).iter_batches()
    with running("open", config=pecan.Config(journal=tmp_path)) as batches:
        assert pecan.journal_state(tmp_path, "open")["pecan_ray_state"]
        (tmp_path / "open.journal").rename(tmp_path / "elsewhere")
        with pytest.raises(JournalError, match=r"open\.journal cannot be read"):
            pecan.journal_state(tmp_path, "open")
        (tmp_path / "elsewhere").rename(tmp_path / "open.journal")
        with (tmp_path / "open.journal").open("r+b") as file:
            file.seek(20)
            file.write(b"##")
        kill("open")
        with pytest.raises(ClusterError, match=r"entry 1 of a journal is damaged"):
            list(batches)


def test_without_a_journal_a_lost_controller_ends_the_job_and_the_error_keeps_no_batch_alive() -> None:
    seen: list[weakref.ref[Any]] = []

    def iterate() -> None:
        with running("without", config=pecan.Config(journal="off")) as batches:
            kill("without")
            for batch in batches:
                seen.append(weakref.ref(batch["i"]))

    gc.disable()
    try:
        told = ""
        try:
            iterate()
        except ClusterError as error:
            told = str(error)
        assert "the controller of the job is gone" in told
        assert seen and not any(one() is not None for one in seen)
    finally:
        gc.enable()
