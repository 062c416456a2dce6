"""Jobs on two CPUs: processes that wait for the next pass over a pipeline, and jobs that wait for CPUs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.integrations.evaluation import EvaluationBatches
from pecan_ray.runtime import kept_jobs
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.waiting import ENDS_S, until
from tests.ray.waiting_transforms import waiting as slow_pipeline
from tests.ray.workers import kill, kill_controller

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 40
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


def test_later_passes_run_in_the_processes_of_the_first_as_jobs_of_their_own_until_one_is_left() -> None:
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
    batches = pipe.iter_batches(workers=ONE, epoch_batches=3)
    made = np.concatenate([batch["i"] for batch in batches])
    report = batches.report()
    assert (len(made), {*made[:, 1]}, report.job, report.left_epochs) == (12, processes, job, 1)
    assert a_pass(pipe) == (job, processes), "behind one that was cut"
    assert waiting(job)
    assert ids(pipe.iter_batches(workers=ONE, epoch_batches=3, state=batches.state_dict())) == [], "it was all used"
    batches = pipe.iter_batches(workers=ONE)
    next(batches)
    batches.close()
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")


def test_a_pass_whose_processes_are_partly_gone_begins_in_new_ones_which_end_with_the_pipeline() -> None:
    pipe = pipeline("lost")
    job, processes = a_pass(pipe)
    for lost in ("worker", "controller"):
        if lost == "controller":
            kill_controller(job)
        else:
            kill(f"pecan:{job}:local-0")
        (before, gone), (job, processes) = (job, processes), a_pass(pipe)
        assert job != before and processes.isdisjoint(gone), lost
    assert waiting(job)
    del pipe
    until(lambda: not living_actors(), lambda: f"{living_actors()} live")


def trained() -> list[int]:
    return sorted(ids(numbers(ROWS, "held").batch(4).iter_batches(workers=ONE, job="held")))


def test_what_waits_ends_for_newer_ones_and_for_who_needs_its_cpus_beside_which_a_worker_has_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_jobs, "MOST_KEPT", 1)
    pipes = [pipeline(f"pipe-{number}") for number in range(2)]
    older, newer = (a_pass(pipe)[0] for pipe in pipes)
    until(lambda: not waiting(older), "the older one still waits")
    assert waiting(newer) == {"controller", "keeper", "local"}
    large = pipeline("large").with_config(cpus_per_worker=2)
    other, _ = a_pass(large)
    until(lambda: not waiting(newer), "it still holds the CPU")
    assert waiting(other)
    held = ray.get(two_cpus(trained).remote(), timeout=ENDS_S)
    assert held == [*range(ROWS)], "a trainer that holds all CPUs gets a worker"
    assert not waiting(other), "a task has its CPU"


def test_a_job_that_may_gives_up_a_worker_for_one_that_waits() -> None:
    placing = pecan.AutoWorkers(max_remote=0, window_batches=5, window_s=1.0)
    # Far more than the trainer takes for a batch, also on a loaded machine: it is worth two workers.
    with slow_pipeline(0.1).iter_batches(epochs=None, workers=placing, prefetch_bytes=1 << 20) as rich:
        until(lambda: next(rich) is not None and len(rich.report().workers) == 2, "not two workers")
        poor = numbers(ROWS, "poor", config=pecan.Config(placement_warning_s=1.0, reorder="off")).batch(8)
        assert sorted(ids(poor.iter_batches(workers=ONE))) == [*range(ROWS)]
        next(rich)
        assert any("job poor" in event.text and "waits for CPUs" in event.text for event in rich.report().events)
