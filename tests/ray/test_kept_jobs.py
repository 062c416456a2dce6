"""Processes of a job that wait for the next pass over its pipeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import PecanError
from pecan_ray.integrations.evaluation import EvaluationBatches
from pecan_ray.runtime import kept_jobs
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.user_programs import run_program
from tests.ray.waiting import until
from tests.ray.workers import kill, kill_controller

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 40
end_actor: Any = ray.kill
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
    evaluated = EvaluationBatches(lambda: pipe.iter_batches(workers=ONE), ROWS // 4)
    for _ in range(2):  # as other libraries do, which do not ask for the end
        given = iter(evaluated)
        made = np.concatenate([next(given)["i"] for _ in range(len(evaluated))])
        assert (sorted(made[:, 0]), {*made[:, 1]}) == ([*range(ROWS)], processes)


def test_a_pass_behind_one_that_is_cut_runs_in_its_processes() -> None:
    pipe = pipeline("cut")
    jobs = set()
    for _ in range(3):
        batches = pipe.iter_batches(workers=ONE, epoch_batches=3)
        made = np.concatenate([batch["i"] for batch in batches])
        report = batches.report()
        assert (len(made), report.epochs, report.left_epochs) == (12, 1, 1)
        jobs.add((report.job, frozenset(made[:, 1])))
    job, processes = a_pass(pipe)
    assert jobs == {(job, frozenset(processes))}
    assert ids(pipe.iter_batches(workers=ONE, epoch_batches=3, state=batches.state_dict())) == [], "it was all used"


def test_a_pass_whose_processes_are_partly_gone_begins_in_new_ones() -> None:
    pipe = pipeline("lost")
    job, processes = a_pass(pipe)
    for lost in ("local-0", "controller", "keeper"):
        (name,) = (name for name in living_actors() if name.startswith(f"pecan:{job}:{lost}"))
        if lost == "controller":
            kill_controller(job)
        elif lost == "keeper":
            end_actor(ray.get_actor(name, namespace="pecan"))
        else:
            kill(name)
        (before, gone), (job, processes) = (job, processes), a_pass(pipe)
        assert job != before and processes.isdisjoint(gone), lost


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


def test_what_waits_ends_for_newer_ones_for_who_needs_its_cpus_and_with_its_pipeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_jobs, "MOST_KEPT", 1)
    pipes = [pipeline(f"pipe-{number}") for number in range(2)]
    older, newer = (a_pass(pipe)[0] for pipe in pipes)
    until(lambda: not waiting(older), "the older one still waits")
    assert waiting(newer) == {"controller", "keeper", "local"}
    assert ray.get(two_cpus(with_process).remote(0), timeout=60) is not None
    assert not waiting(newer), "a task has its CPU"
    job, _ = a_pass(pipes[0])
    large = pipeline("large").with_config(cpus_per_worker=2)
    other, _ = a_pass(large)
    until(lambda: not waiting(job), "it still holds the CPU")
    assert waiting(other)
    del pipes, large
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")


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
