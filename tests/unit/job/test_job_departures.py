"""Workers whose end is announced: replaced first, then drained, in time, and lost to nobody."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pecan_ray.job import events
from pecan_ray.job.instructions import DrainWorker, Instruction, KillWorker
from pecan_ray.job.losses import MOST_IN_A_ROW
from pecan_ray.job.messages import WorkerProgress
from pecan_ray.job.start_worker import StartWorker
from pecan_ray.options import Workers
from tests.unit.job.job_rig import JobRig, elements, of_kind, said

TOLD = WorkerProgress(told_to_end=True)


def leave(*nodes: str, seconds: float | None = 120.0) -> events.NodesLeave:
    return events.NodesLeave(tuple((node, seconds) for node in nodes))


def started(done: list[Instruction]) -> list[str]:
    return [start.worker for start in of_kind(StartWorker, done)]


@pytest.fixture
def rig() -> Iterator[JobRig]:
    """A job with two remote workers, each on a node of its own; at the end nobody counts as lost."""
    made = JobRig(workers=Workers(0, 2))
    first, second = made.come()
    made.place(first, "spot")
    made.place(second, "firm")
    made.list_splits(4)
    yield made
    assert made.job.facts(0.0).workers_lost == 0


def test_a_worker_of_a_node_that_leaves_drains_when_another_one_runs_in_its_place(rig: JobRig) -> None:
    leaver, stayer = rig.job.fleet.workers
    done = rig.handle(leave("spot"))
    assert len(started(done)) == 1 and not of_kind(DrainWorker, done), "it works until then"
    assert "spot is taken away in 120 s" in said(done)
    rig.assign(leaver)
    (lease,) = rig.take(leaver)
    (another,) = started(done)
    assert of_kind(DrainWorker, rig.place(another, "new")) == [DrainWorker(leaver)]
    rig.acknowledge(leaver, lease, 0)
    assert of_kind(KillWorker, rig.report(settled=(leaver,))) == [KillWorker(leaver)]
    rig.assign(stayer)
    assert rig.take(stayer)[0].spans[0][0] == elements(1)[0], "what it did not deliver comes first"
    assert rig.handle(leave("spot")) == [], "it is said again, and nothing follows"


def test_workers_that_are_asked_to_end_one_after_the_other_end_the_job_before_a_batch_comes() -> None:
    rig = JobRig(workers=Workers(1))
    (worker,) = rig.begin(splits=4)
    for _ in range(MOST_IN_A_ROW):
        (another,) = started(rig.handle(events.WorkerTold(worker, TOLD), after=20.0))
        rig.place(another)
        worker = another
    rig.handle(events.WorkerTold(worker, TOLD), after=20.0)
    assert "asked to end (SIGTERM)" in str(rig.job.error)


def test_workers_of_a_trainers_own_node_work_as_long_as_it_is_there_and_are_not_replaced() -> None:
    rig = JobRig(workers=Workers(2))
    first, second = rig.begin(splits=4)
    done = rig.handle(leave("node"))
    assert "with it rank 0" in said(done) and "state_dict()" in said(done)
    assert not started(done) and not of_kind(DrainWorker, done)
    assert not started(rig.handle(events.WorkerLost(first, "process")))
    rig.handle(events.WorkerLost(second, "stream"))
    rig.handle(events.TimePassed())
    rig.report()
    done = rig.handle(events.TimePassed(), after=20.0)
    assert not started(done) and "no worker is started on node node" in said(done)
