"""Processes of a job that wait for the next pass over its pipeline."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import PecanError
from pecan_ray.integrations.evaluation import EvaluationBatches
from pecan_ray.runtime.kept_jobs import MOST_KEPT
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.user_programs import run_program
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 40
kill: Any = ray.kill
two_cpus: Any = ray.remote(num_cpus=2)


def with_process(i: Any) -> Any:
    return np.array([int(i), os.getpid()])


def pipeline(name: str) -> pecan.PecanPipeline:
    config = pecan.Config(reorder="off", progress=False)
    return numbers(ROWS, name, config=config).map(with_process, on="i").batch(4)


def a_pass(pipe: pecan.PecanPipeline, **options: Any) -> tuple[str, set[int]]:
    """The job and the worker processes of a whole pass."""
    batches = pipe.iter_batches(**{"workers": ONE, **options})
    made = np.concatenate([batch["i"] for batch in batches])
    assert sorted(made[:, 0]) == [*range(ROWS)]
    return batches.report().job, {*map(int, made[:, 1])}


def process_of(actor: str) -> int:
    handle: Any = ray.get_actor(actor, namespace="pecan")
    find = handle.placed if ":local-" in actor else handle.process_id
    found: Any = ray.get(find.remote())
    return int(found[1] if ":local-" in actor else found)


def waiting(job: str) -> set[str]:
    return {name.rpartition(":")[2].partition("-")[0] for name in living_actors() if name.startswith(f"pecan:{job}:")}


def test_a_second_pass_runs_in_the_processes_of_the_first_and_is_a_job_of_its_own() -> None:
    pipe = pipeline("kept")
    job, processes = a_pass(pipe)
    with pipe.iter_batches(workers=ONE) as second:
        state = (next(second), second.state_dict())[1]
        assert len([*second]) == ROWS // 4 - 1
    report = second.report()
    assert (report.job, report.elements, report.epochs) == (job, ROWS, 1)
    assert [*report.workers] == [f"pecan:{job}:local-0"]
    resumed = ids(pipe.iter_batches(state=state))
    assert len(resumed) == ROWS - 4, "what was left of that pass"
    assert a_pass(pipe) == (job, processes)
    # A pipeline of other settings, and a longer run, are jobs like any other.
    assert a_pass(pipe, prefetch_bytes=1 << 20, order="strict") == (job, processes)


@pytest.mark.parametrize("lost", ["local-0", "controller", "keeper"])
def test_a_pass_whose_processes_are_partly_gone_begins_in_new_ones(lost: str) -> None:
    pipe = pipeline("lost")
    job, processes = a_pass(pipe)
    (name,) = (name for name in living_actors() if name.startswith(f"pecan:{job}:{lost}"))
    if lost == "keeper":
        kill(ray.get_actor(name, namespace="pecan"))
    else:
        os.kill(process_of(name), signal.SIGKILL)
    other, others = a_pass(pipe)
    assert other != job
    assert processes.isdisjoint(others)


def test_a_pass_that_was_left_and_one_of_a_name_keep_nothing() -> None:
    pipe = pipeline("left")
    batches = pipe.iter_batches(workers=ONE)
    next(batches)
    batches.close()
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")
    assert a_pass(pipe, job="named")[0] == "named"
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")

    def fails(i: int) -> int:
        raise ValueError("always")

    failing = numbers(ROWS, "failing").map(fails, on="i").batch(4)
    with pytest.raises(PecanError, match="always"):
        ids(failing.iter_batches())
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")


def test_what_waits_ends_with_its_pipeline_and_for_newer_ones() -> None:
    pipes = [pipeline(f"pipe-{number}") for number in range(MOST_KEPT + 1)]
    cheap = [pipe.with_config(cpus_per_worker=0.25) for pipe in pipes]
    jobs = [a_pass(pipe)[0] for pipe in cheap]
    until(lambda: not waiting(jobs[0]), "the oldest still waits")
    assert all(waiting(job) == {"controller", "keeper", "local"} for job in jobs[1:])
    del pipes, cheap
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")


def test_what_waits_gives_its_cpu_to_tasks_and_to_workers_of_other_jobs() -> None:
    pipe = pipeline("gives").with_config(cpus_per_worker=2)
    job, _ = a_pass(pipe)
    assert ray.get(two_cpus(with_process).remote(0), timeout=60) is not None
    assert not waiting(job)
    job, _ = a_pass(pipe)
    other, _ = a_pass(pipeline("other").with_config(cpus_per_worker=2))
    until(lambda: not waiting(job), "it still holds the CPUs")
    assert waiting(other)


def test_two_pipelines_in_one_loop_keep_a_job_each() -> None:
    train, test = pipeline("train"), pipeline("test")
    passes = [(a_pass(train), a_pass(test)) for _ in range(3)]
    assert passes[0] == passes[1] == passes[2]


def test_evaluations_of_other_libraries_follow_each_other_in_the_same_processes() -> None:
    pipe = pipeline("evaluated")
    batches = EvaluationBatches(lambda: pipe.iter_batches(workers=ONE), ROWS // 4)
    runs = []
    for _ in range(2):
        given = iter(batches)
        made = np.concatenate([next(given)["i"] for _ in range(len(batches))])  # and the end is not asked for
        runs.append((sorted(made[:, 0]), {*made[:, 1]}))
    assert runs[0] == runs[1]


def test_nothing_waits_behind_the_end_of_ray_or_of_the_program(one_node: Any, tmp_path: Path) -> None:
    program = """
import ray
import pecan_ray as pecan

if __name__ == "__main__":
    pipe = pecan.PecanPipeline(pecan.sources.Items([*range(8)]), config=pecan.Config(progress=False)).batch(4)
    jobs = []
    for ends in (False, True, False):
        batches = pipe.iter_batches(workers=1)
        assert len([*batches]) == 2
        jobs.append(batches.report().job)
        if ends:
            ray.shutdown()
    print(jobs[0] == jobs[1] != jobs[2])
"""
    done = run_program(program, tmp_path, one_node.address)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")
