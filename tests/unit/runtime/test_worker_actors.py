"""What keeps workers from being placed is looked up once for all that wait for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
from ray.exceptions import ActorUnschedulableError

import pecan_ray as pecan
from pecan_ray.job.events import WorkerLost
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.spec import JobSpec
from pecan_ray.options import Config, IterOptions, Workers
from pecan_ray.plan.shape import plan_shape
from pecan_ray.runtime import worker_actors
from pecan_ray.runtime.messages import Job
from pecan_ray.runtime.worker_actors import WorkerActor, WorkerActors

pytestmark = pytest.mark.usefixtures("each_event_loop")

WORKERS = 50
REMOTE, LOCAL = {"pecan-role": "remote"}, {"ray.io/node-id": "a"}


def job_of(name: str, config: Config) -> Job:
    shape = plan_shape(pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(8))).batch(2).plan)
    return Job(JobSpec(name, LedgerShape(), Workers(1)), b"", b"", shape, "python", 0, IterOptions(), config)


def reasons(*rounds: Mapping[str, str]) -> list[set[str]]:
    """Let many workers at a time ask why they have no place, once for each selector given; return their answers."""

    def failed(doing: str, error: Exception) -> None:
        raise AssertionError(doing) from error

    async def ask() -> list[set[str]]:
        job = job_of("full", Config(cpus_per_worker=2.0))
        actors = WorkerActors(job, b"", None, None, lambda event: None, lambda worker: None, failed)
        return [set(await asyncio.gather(*(actors._reason(one) for _ in range(WORKERS)))) for one in rounds]

    return asyncio.run(ask())


def test_the_cluster_is_asked_once_for_all_workers_that_wait_and_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Mapping[str, str], float, str]] = []

    def why_unplaced(selector: Mapping[str, str], cpus: float, job: str) -> str:
        asked.append((selector, cpus, job))
        return f"answer {len(asked)}"

    monkeypatch.setattr(worker_actors, "why_unplaced", why_unplaced)
    monkeypatch.setattr(worker_actors, "REASON_S", 1000.0)
    assert reasons(REMOTE, LOCAL, REMOTE) == [{"answer 1"}, {"answer 2"}, {"answer 1"}]
    assert asked == [(REMOTE, 2.0, "full"), (LOCAL, 2.0, "full")]
    monkeypatch.setattr(worker_actors, "REASON_S", -1.0)
    assert len(reasons(REMOTE)[0]) == WORKERS == len(asked) - 2


def test_a_worker_whose_node_was_lost_before_it_was_made_is_no_crash_of_its_process() -> None:
    happened: list[object] = []

    async def life() -> None:
        raise ActorUnschedulableError("the node is dead")

    async def follow() -> None:
        actors = WorkerActors(
            job_of("lost", Config()), b"", None, None, happened.append, lambda worker: None, lambda doing, error: None
        )
        await actors._follow(WorkerActor("remote-0"), life())

    asyncio.run(follow())
    [lost] = happened
    assert isinstance(lost, WorkerLost) and (lost.worker, lost.cause) == ("remote-0", "node")
