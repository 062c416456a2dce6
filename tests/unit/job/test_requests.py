"""What workers are given when they ask: a plan, what the next epoch begins with, and where to begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.job_requests import MOST_FORESEEN
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import AskAssignment, AskLeases, Assigned, Lookahead, NoMoreLeases
from pecan_ray.job.resume_point import BranchPoint, ResumePoint
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Split
from pecan_ray.sampling.random_keys import SplitOrder
from tests.unit.job.job_rig import JobRig
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
def test_a_worker_that_is_alone_is_told_what_the_next_epoch_begins_with(seed: int | None, epochs: int | None) -> None:
    reply = end_of_epoch(LedgerShape(split_order=(None if seed is None else SplitOrder(seed),), epochs=epochs))
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
    rig = JobRig(shape, start=start, on_error="skip", error_budget=1.0)
    (worker,) = rig.begin(LONG)
    assert rig.assign(worker) == Assignment(0, delivered=(3, 2), repeated=True, behind=behind)
    assert said(rig)[0].endswith(f"the 5 batches of epoch 0 that were used before {text}")
