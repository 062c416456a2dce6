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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Mapping[str, str], float, str]]:
    """What the cluster was asked, which answers each time otherwise."""
    found: list[tuple[Mapping[str, str], float, str]] = []

    def why_unplaced(selector: Mapping[str, str], cpus: float, job: str) -> str:
        found.append((selector, cpus, job))
        return f"answer {len(found)}"

    monkeypatch.setattr(worker_actors, "why_unplaced", why_unplaced)
    return found


def reasons(*rounds: Mapping[str, str]) -> list[set[str]]:
    """Let many workers at a time ask why they have no place, once for each selector given; return their answers."""
    shape = plan_shape(pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(8))).batch(2).plan)
    spec = JobSpec("full", LedgerShape(), Workers(1))
    job = Job(spec, b"", b"", shape, "python", 0, IterOptions(), Config(cpus_per_worker=2.0))

    def failed(doing: str, error: Exception) -> None:
        raise AssertionError(doing) from error

    async def ask() -> list[set[str]]:
        actors = WorkerActors(job, b"", None, None, lambda event: None, lambda worker: None, failed)
        return [set(await asyncio.gather(*(actors._reason(one) for _ in range(WORKERS)))) for one in rounds]

    return asyncio.run(ask())


def test_the_cluster_is_asked_once_for_all_workers_that_wait(
    asked: list[tuple[Mapping[str, str], float, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_actors, "REASON_S", 1000.0)
    assert reasons(REMOTE, LOCAL, REMOTE) == [{"answer 1"}, {"answer 2"}, {"answer 1"}]
    assert asked == [(REMOTE, 2.0, "full"), (LOCAL, 2.0, "full")]


def test_a_worker_whose_node_was_lost_before_it_was_made_is_no_crash_of_its_process() -> None:
    shape = plan_shape(pecan.PecanPipeline(pecan.sources.Arrays(i=np.arange(8))).batch(2).plan)
    job = Job(JobSpec("lost", LedgerShape(), Workers(1)), b"", b"", shape, "python", 0, IterOptions(), Config())
    happened: list[object] = []

    async def life() -> None:
        raise ActorUnschedulableError("the node is dead")

    async def follow() -> None:
        actors = WorkerActors(job, b"", None, None, happened.append, lambda worker: None, lambda doing, error: None)
        await actors._follow(WorkerActor("remote-0"), life())

    asyncio.run(follow())
    [lost] = happened
    assert isinstance(lost, WorkerLost) and (lost.worker, lost.cause) == ("remote-0", "node")


def test_it_is_asked_again_later(
    asked: list[tuple[Mapping[str, str], float, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_actors, "REASON_S", -1.0)
    assert len(reasons(REMOTE)[0]) == WORKERS == len(asked)
