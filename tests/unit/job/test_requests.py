"""What workers are given when they ask: a plan, what the next epoch begins with, and where to begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.assign_leases import any_will_do
from pecan_ray.job.instructions import Response
from pecan_ray.job.job_requests import MOST_FORESEEN
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import AskAssignment, AskLeases, Assigned, Lookahead, NoMoreLeases
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.job.resume_point import BranchPoint, ResumePoint
from pecan_ray.job.spec import ErrorPolicy
from pecan_ray.options import Sharding, Workers
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.random_keys import SplitOrder
from pecan_ray.sampling.spans import Spans
from tests.unit.job.job_rig import JobRig, of_kind
from tests.unit.job.test_split_queue import SEED, drain, queue_of


def test_a_new_plan_is_for_epochs_that_have_not_begun() -> None:
    rig = JobRig(LedgerShape(epochs=2), Workers(2))
    first, second = rig.begin(splits=2)
    rig.assign(first)
    rig.handle(events.PlanChanged("resize goes first"))
    reply = rig.response(second, AskAssignment())
    assert isinstance(reply, Assigned) and reply.plan_version == 0
    for worker in (first, second):
        leases = list(rig.leases(worker))
        for lease in leases:
            rig.acknowledge(worker, lease, 0)
        rig.end(worker, lengths=tuple((lease.key, 1) for lease in leases))
    reply = rig.response(first, AskAssignment())
    assert isinstance(reply, Assigned) and (reply.assignment.epoch, reply.plan_version) == (1, 1)
    rig.handle(events.PlanChanged("and back"))
    assert [event.text for event in rig.job.story if event.kind == "reorder"] == [
        "resize goes first; it is run from epoch 1 on (the first one is 0)",
        "and back; no epoch of this job is left to run it, but later jobs do",
    ]


# --- what the next epoch begins with --------------------------------------------------------------------------


def end_of_epoch(shape: LedgerShape, *, scheme: str = "s3://", workers: int = 1, look: int = 0) -> object:
    """Let a worker take all splits, and return what it is told when it asks for more."""
    rig = JobRig(shape, Workers(workers))
    names = rig.begin([Split(index, path=f"{scheme}bucket/{index}") for index in range(40)])
    assert len(names) == workers
    rig.assign(names[0])
    taken: list[int] = []
    while True:
        reply = rig.response(names[0], AskLeases(0, 0, 100, look=look))
        leases = reply.leases if isinstance(reply, Lookahead) else reply
        if not isinstance(leases, tuple) or not leases:
            assert sorted(taken) == list(range(40))
            return reply
        taken += [lease.split.index for lease in leases]


@pytest.mark.parametrize("seed", [SEED, None])
@pytest.mark.parametrize("epochs", [2, None])
@pytest.mark.parametrize("sharding", ["dynamic", "off"])
def test_a_worker_that_is_alone_is_told_what_the_next_epoch_begins_with(
    seed: int | None, epochs: int | None, sharding: Sharding
) -> None:
    order = (None if seed is None else SplitOrder(seed),)
    reply = end_of_epoch(LedgerShape(split_order=order, epochs=epochs, sharding=sharding))
    assert isinstance(reply, NoMoreLeases)
    queue = queue_of(40, seed)
    queue.begin(1, 0)
    assert [split.index for split in reply.next_epoch] == drain(queue)[:MOST_FORESEEN]


def test_nothing_is_told_of_files_of_the_machine_nor_in_the_last_epoch_nor_to_who_looks() -> None:
    shape = LedgerShape(split_order=(SplitOrder(SEED),), epochs=2)
    assert end_of_epoch(shape, workers=2) == (), "another worker may be given it"
    assert end_of_epoch(shape, scheme="/") == ()
    assert end_of_epoch(LedgerShape(split_order=(SplitOrder(SEED),), epochs=1)) == ()
    assert end_of_epoch(shape, look=10) == ()


SHAPE = LedgerShape(serial=True, counts=True, world_size=2, epochs=2)
START = ResumePoint(0, (BranchPoint(),), used_batches=5)
LONG = tuple(Split(index, elements=10) for index in range(4))


def said(rig: JobRig) -> list[str]:
    return [one.text for one in rig.job.story if one.kind == "state"]


@pytest.mark.parametrize(
    ("shape", "start", "behind", "text"),
    [
        (SHAPE, START, 5, "are not made again: it begins behind the elements that went into them"),
        (replace(SHAPE, counts=False), START, 0, "are made again, and left out"),
        (SHAPE, replace(START, bad=(7,)), 0, "are made again, and left out"),
    ],
    ids=["it counts", "it does not count", "bad elements were left out"],
)
def test_a_plan_that_counts_begins_behind_what_all_ranks_have_and_another_one_is_made_again(
    shape: LedgerShape, start: ResumePoint, behind: int, text: str
) -> None:
    rig = JobRig(shape, start=start, errors=ErrorPolicy("skip", 1.0))
    (worker,) = rig.begin(LONG)
    assert rig.assign(worker) == Assignment(0, delivered=(3, 2), repeated=True, behind=behind)
    assert said(rig)[0].endswith(f"the 5 batches of epoch 0 that were used before {text}")


def test_a_worker_that_waits_in_vain_keeps_no_worker_of_another_node_from_the_rows_of_its_ranks() -> None:
    shape = LedgerShape(in_row_order=True, seeks=True, world_size=2, batch_size=2)
    rig = JobRig(shape, Workers(2), prefetch_bytes=1)
    east, west = rig.come(("east", 4.0), ("west", 4.0))
    for worker, node in ((east, "east"), (west, "west")):
        rig.place(worker, node)
    rig.list_splits([Split(0, elements=100)])
    taken = {}
    for worker in (west, east):
        rig.assign(worker)
        taken[worker] = list(rig.leases(worker))
        rig.end(worker)
    assert not any(of_kind(Response, rig.ask(worker, AskAssignment())) for worker in (west, east)), "the window is full"
    (answer,) = of_kind(Response, rig.acknowledge(east, taken[east][0], 0, count=2))
    assert answer.worker == east, "the next batch is for rank 0"


def test_workers_that_wait_in_vain_keep_nobody_from_what_another_branch_has() -> None:
    rig = JobRig(LedgerShape(branches=2), Workers(2))
    for branch, worker in enumerate(rig.come()):
        rig.place(worker)
        rig.assign(worker)
        assert not of_kind(Response, rig.ask(worker, AskLeases(0, branch, 1)))
    (answer,) = of_kind(Response, rig.handle(events.SplitPageReceived(1, (Split(0),))))
    assert answer.worker == worker
    lease = Lease(0, Split(0))
    alone = [WorkerLeaseState(group=[lease]), WorkerLeaseState(stale_spans={lease.key: Spans()})]
    for state, alike in ((WorkerLeaseState(), True), *((one, False) for one in alone)):
        assert any_will_do("w", LedgerShape(), {"w": state}) is alike
