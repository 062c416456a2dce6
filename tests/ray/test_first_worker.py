"""The first worker starts beside its controller; a guess that was wrong costs a process, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import ray

import pecan_ray as pecan
from pecan_ray.job.first_worker import first_worker
from pecan_ray.job.spec import JobSpec
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.runtime import session
from tests.ray.conftest import living_actors
from tests.ray.waiting import until

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def processes(job: str) -> int:
    """Return how many actors were made as the job's first worker."""
    made: Any = ray._private.state.actors
    return sum(actor["Name"] == f"pecan:{job}:local-0" for actor in made().values())


def elements(job: str, workers: pecan.Workers) -> list[int]:
    """Read a pipeline; when it has begun, the job has the workers that it wants."""
    config = pecan.Config(progress=False)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(64)), name=job, config=config).batch(8)
    with pipe.iter_batches(workers=workers, job=job) as batches:
        found = [int(i) for i in next(batches)["i"]]
        wanted = {f"pecan:{job}:local-{i}" for i in range(workers.local)}
        until(lambda: {name for name in living_actors() if "local" in name} <= wanted, "another worker is left")
        found += [int(i) for batch in batches for i in batch["i"]]
    return sorted(found)


def test_a_right_guess_is_the_worker() -> None:
    assert elements("first-right", pecan.Workers(local=1)) == list(range(64))
    assert processes("first-right") == 1


def test_a_wrong_guess_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def guess(spec: JobSpec, node: str, cpus: float) -> StartWorker | None:
        first = first_worker(spec, node, cpus)
        assert first is not None
        return replace(first, worker="pecan:first-wrong:local-7")

    monkeypatch.setattr(session, "first_worker", guess)
    assert elements("first-wrong", pecan.Workers(local=1)) == list(range(64))
