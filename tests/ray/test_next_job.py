"""Processes that are started ahead for the next job of a pipeline."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import ray

import pecan_ray as pecan
from pecan_ray.errors import PecanError
from pecan_ray.runtime.next_job import MOST_AHEAD
from tests.ray.conftest import living_actors
from tests.ray.pipelines import ONE, ids, numbers
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS = 40


def pipeline(name: str) -> pecan.PecanPipeline:
    return numbers(ROWS, name, config=pecan.Config(reorder="off", progress=False)).batch(4)


def waiting_jobs() -> set[str]:
    """The jobs of which a controller and a first worker have been started."""
    living = living_actors()
    jobs = {name.removesuffix(":controller") for name in living if name.endswith(":controller")}
    return {job.removeprefix("pecan:") for job in jobs if f"{job}:local-0" in living}


def next_job() -> str:
    until(lambda: len(waiting_jobs()) == 1, lambda: f"there is {waiting_jobs()}")
    return waiting_jobs().pop()


def free_cpus() -> float:
    available: Any = ray.available_resources
    return float(available()["CPU"])


def test_a_second_pass_has_processes_that_were_started_behind_the_first_and_take_no_cpu() -> None:
    pipe = pipeline("kept")
    assert ids(pipe.iter_batches()) == [*range(ROWS)]
    ahead = next_job()
    until(lambda: free_cpus() == 2.0, lambda: f"{free_cpus()} CPUs are free")
    batches = pipe.iter_batches(workers=ONE)
    assert ids(batches) == [*range(ROWS)]
    assert batches.report().job == ahead, "it was one of those"
    assert list(batches.report().workers) == [f"pecan:{ahead}:local-0"]
    assert next_job() != ahead, "and there is another one for the third"


def test_what_was_started_and_has_ended_costs_the_next_pass_nothing_but_time() -> None:
    pipe = pipeline("lost")
    for passes in range(2):
        assert ids(pipe.iter_batches()) == [*range(ROWS)]
        ahead = next_job()
        kill: Any = ray.kill
        kill(ray.get_actor(f"pecan:{ahead}:{('controller', 'local-0')[passes]}", namespace="pecan"))
    assert ids(pipe.iter_batches()) == [*range(ROWS)]


def test_few_pipelines_have_a_next_job_at_a_time() -> None:
    pipes = [pipeline(f"pipe-{number}") for number in range(MOST_AHEAD + 1)]
    for pipe in pipes:
        assert ids(pipe.iter_batches()) == [*range(ROWS)]
    names = [f"pipe-{number}" for number in range(1, MOST_AHEAD + 1)]
    until(lambda: sorted(one.rpartition("-")[0] for one in waiting_jobs()) == names, lambda: f"{waiting_jobs()}")


def test_named_jobs_and_failed_ones_start_nothing_for_a_next_one() -> None:
    def fails(i: int) -> int:
        raise ValueError("always")

    named = pipeline("others").iter_batches(job="named")
    assert ids(named) == [*range(ROWS)]
    with pytest.raises(PecanError, match="always"):
        ids(numbers(ROWS, "failing").map(fails, on="i").batch(4).iter_batches())
    assert "pecan-next-job" not in [thread.name for thread in threading.enumerate()]
