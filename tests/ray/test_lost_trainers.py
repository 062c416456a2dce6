"""Several trainers in processes of their own: whoever dies, hangs back or comes again, the others are told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from tests.ray.conftest import ROOT, living_actors
from tests.ray.endings import actor_processes
from tests.ray.waiting import ENDS_S, until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

TIMEOUT_S = 6
"""Of trainers that are not heard, where a test waits for it."""

TRAINER = """
import sys, time
import numpy as np
import pecan_ray as pecan

rank, steps, pause, value = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
job, timeout_s = sys.argv[5], float(sys.argv[6])
config = pecan.Config(trainer_timeout_s=timeout_s, reorder="off")
pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(4_000)), name="several", config=config)
pipe = pipe.filter(lambda i, value=value: i >= value, on="i", name="kept").batch(16)
epochs = 1 if steps > 0 else None
batches = pipe.iter_batches(rank=rank, world_size=2, job=job, workers=pecan.Workers(local=1), epochs=epochs)
number = 0
for number, _ in enumerate(batches, 1):
    if number == 3:
        print("running", flush=True)
    if number == -steps:
        raise RuntimeError("the program's own")
    if number == steps > 1:
        break
    time.sleep(pause)
print("all", number, flush=True)
"""


class Trainers:
    """Processes that share a job."""

    def __init__(self, address: str, folder: Path, job: str) -> None:
        self._environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
        self._folder, self.job = folder, job
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, rank: int, steps: int = 0, pause: float = 0.05, value: int = 0, timeout_s: float = TIMEOUT_S
    ) -> subprocess.Popen[str]:
        """Start a rank; `steps`: 0 for no end, 1 for an epoch, more for so many of it, negative: an error then."""
        arguments = [sys.executable, "-c", TRAINER, *map(str, (rank, steps, pause, value, self.job, timeout_s))]
        log = (self._folder / f"{self.job}-{len(self.started)}.log").open("w+")
        trainer = subprocess.Popen(
            arguments, env=self._environment, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self.started.append(trainer)
        return trainer

    def said(self, trainer: subprocess.Popen[str]) -> str:
        """What it has said so far."""
        return (self._folder / f"{self.job}-{self.started.index(trainer)}.log").read_text()

    def until_said(self, trainer: subprocess.Popen[str], text: str) -> None:
        """Wait until a trainer says something."""
        until(lambda: text in self.said(trainer), f"{text!r} was not said")

    def end(self) -> None:
        """Kill those that run."""
        for trainer in self.started:
            trainer.kill()
            trainer.wait()


@pytest.fixture
def trainers(one_node: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Trainers]:
    """Trainers of one job, none of which is left."""
    found = Trainers(one_node.address, tmp_path, request.node.name.replace("[", "-").rstrip("]"))
    yield found
    for trainer in found.started:
        sys.stderr.write(found.said(trainer)[-3000:])
    found.end()


def test_a_killed_trainer_is_named_to_the_other_one(trainers: Trainers) -> None:
    first = trainers.start(0)
    until(lambda: bool(living_actors()), "no controller")  # rank 0 has started it
    both = [first, trainers.start(1)]
    for trainer in both:
        trainers.until_said(trainer, "running")
    both[0].kill()
    other = both[1]
    assert other.wait(ENDS_S) == 1, trainers.said(other)
    told = re.search(r"ClusterError: .*rank 0 on node \w+ has not been heard for (\d+) s", trainers.said(other))
    assert told is not None and int(told[1]) >= TIMEOUT_S, trainers.said(other)
    until(lambda: not living_actors() and not actor_processes(), "actors are left")


@pytest.mark.slow
def test_killed_trainers_leave_nothing_and_new_ones_begin_at_once(trainers: Trainers) -> None:
    both = [trainers.start(rank) for rank in range(2)]
    for trainer in both:
        trainers.until_said(trainer, "running")
    assert living_actors()
    for trainer in both:
        trainer.kill()
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(64))).batch(8)
    with pipe.iter_batches(job=trainers.job, workers=pecan.Workers(local=1)) as alone:
        assert sum(len(batch["i"]) for batch in alone) == 64, "another number of ranks, and another pipeline"
    until(lambda: not living_actors() and not actor_processes(), "actors are left")


def test_a_trainer_that_stands_still_is_waited_for_beyond_the_deadline(trainers: Trainers) -> None:
    both = [trainers.start(rank, steps=1, pause=0.02, timeout_s=5) for rank in range(2)]
    for trainer in both:
        trainers.until_said(trainer, "running")
    both[0].send_signal(signal.SIGSTOP)
    try:
        # What is waited for is said after 5 s.
        trainers.until_said(both[1], "its process exists, and is waited for")
    finally:
        both[0].send_signal(signal.SIGCONT)
    for trainer in both:
        assert trainer.wait(ENDS_S) == 0, trainers.said(trainer)
        assert trainers.said(trainer).splitlines()[-1] == "all 125"


@pytest.mark.slow
def test_a_job_that_was_frozen_as_a_whole_goes_on(trainers: Trainers) -> None:
    both = [trainers.start(rank, steps=1, pause=0.1) for rank in range(2)]
    for trainer in both:
        trainers.until_said(trainer, "running")
    (name,) = (name for name in living_actors() if name.endswith("controller"))
    controller: Any = ray.get_actor(name, namespace="pecan")
    frozen = [ray.get(controller.process_id.remote()), *(trainer.pid for trainer in both)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2 * TIMEOUT_S)  # it is this time that must not be counted
    finally:
        os.kill(frozen[0], signal.SIGCONT)
        ray.get(controller.process_id.remote())  # it is awake, and the trainers are not
        for pid in frozen[1:]:
            os.kill(pid, signal.SIGCONT)
    for trainer in both:
        assert trainer.wait(ENDS_S) == 0, trainers.said(trainer)
        assert trainers.said(trainer).splitlines()[-1] == "all 125"
