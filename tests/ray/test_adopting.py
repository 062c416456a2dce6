"""Workers outlive their controller: what becomes of them while it is gone, and of those that nobody knows."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.runtime.journal_file import JournalPlace, kept_job
from pecan_ray.runtime.worker_actor import hiring
from tests.ray import workers
from tests.ray.conftest import ROOT, living_actors
from tests.ray.endings import actor_processes
from tests.ray.test_journal import controller, kill, process_of
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ROWS = 10_000


def numbers(name: str, **config: Any) -> pecan.PecanPipeline:
    source = pecan.sources.Arrays(i=np.arange(ROWS))
    return pecan.PecanPipeline(source, name=name, config=pecan.Config(**config)).batch(50)


def keeper(job: str) -> Any:
    """The one actor that keeps a job's workers."""
    [name] = [name for name in living_actors() if name.startswith(f"pecan:{job}:keeper-")]
    return ray.get_actor(name, namespace="pecan")


def controller_is_away(job: str) -> bool:
    try:
        ray.get(controller(job).process_id.remote())
    except ray.exceptions.ActorUnavailableError:
        return True
    return False


def test_a_worker_that_dies_while_there_is_no_controller_is_found_and_replaced() -> None:
    got: list[int] = []
    workers_wanted = pecan.Workers(local=1, remote=1)
    pipe = numbers("dies")
    with pipe.iter_batches(job="dies", workers=workers_wanted, **workers.ONE_BY_ONE) as batches:
        for number, batch in enumerate(batches):
            got += batch["i"].tolist()
            if number == 40:
                name = workers.living_worker("local", but=[])
                pid = workers.process_of(name)
                kill("dies")
                os.kill(pid, signal.SIGKILL)
        report = batches.report()
    assert Counter(got) == Counter(range(ROWS))
    [lost] = [event.text for event in report.events if event.kind == "lost"]
    assert lost.startswith(name)


@pytest.mark.slow
def test_workers_end_with_what_keeps_them_and_others_take_their_places() -> None:
    """Its process is started again, or there is another one in its place."""
    got: list[int] = []
    pipe = numbers("kept")
    with pipe.iter_batches(job="kept", workers=pecan.Workers(local=2), **workers.ONE_BY_ONE) as batches:
        for number, batch in enumerate(batches):
            got += batch["i"].tolist()
            if number == 40:
                os.kill(ray.get(keeper("kept").begin.remote(0))[0], signal.SIGKILL)
            if number == 110:
                ray.kill(keeper("kept"))
        report = batches.report()
    assert Counter(got) == Counter(range(ROWS))
    assert len([event for event in report.events if event.kind == "lost"]) >= 2
    assert not any(event.kind == "restart" for event in report.events)


def test_a_trainer_goes_on_without_a_controller_and_the_next_one_ends_a_worker_that_the_job_has_done_with(
    tmp_path: Path,
) -> None:
    """A process that is killed between the decision and the deed leaves one behind.

    What workers hold comes meanwhile, and what their last leases bring: the trainer does not wait for the next process.
    """
    pipe = numbers("stranger", journal=tmp_path / "journals")
    with pipe.iter_batches(job="stranger", workers=pecan.Workers(local=1), epochs=None) as batches:
        next(batches)
        job = kept_job(JournalPlace(tmp_path / "journals", "stranger", "").job_file)
        assert job is not None
        instruction = StartWorker("pecan:stranger:remote-7", "remote", "", 1)
        ray.get(keeper("stranger").start.remote(0, hiring(instruction, {}, pickle.loads(job[1]), job[1])))
        assert workers.living_worker("remote", but=[]) == instruction.worker
        before, came = kill("stranger"), 0
        while controller_is_away("stranger"):
            next(batches)
            came += 1
        assert came > 0 and process_of("stranger") != before
        until(lambda: instruction.worker not in living_actors(), "it lives on")
        next(batches)
        assert "pecan:stranger:local-0" in living_actors()
        with pytest.raises(ray.exceptions.RayTaskError, match="another process is the job's controller now"):
            ray.get(keeper("stranger").start.remote(0, hiring(instruction, {}, pickle.loads(job[1]), job[1])))


def test_nothing_is_left_of_a_job_whose_trainer_is_killed_while_its_workers_wait_for_a_place(three_nodes: Any) -> None:
    """Not even what Ray would start as soon as there is room, or would have an autoscaler make room for."""
    program = """
import pecan_ray as pecan
pipe = pecan.PecanPipeline(pecan.sources.Items([1]), config=pecan.Config(cpus_per_worker=99)).batch(1)
next(iter(pipe.iter_batches(job="placeless", workers=pecan.Workers(remote=1))))
"""
    environment = {**os.environ, "RAY_ADDRESS": three_nodes.address, "PYTHONPATH": str(ROOT)}
    trainer = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(lambda: "pecan:placeless:remote-0" in living_actors(), "no worker is asked for")
    finally:
        trainer.kill()
        trainer.wait()
    until(lambda: not living_actors(), "an actor is still alive")
    until(lambda: not actor_processes(), "a process of an actor still runs")
