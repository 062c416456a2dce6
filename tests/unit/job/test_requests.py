"""What workers are given when they ask: a plan, splits that they have at hand, and where to begin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.job import events
from pecan_ray.job.job_requests import CALLS_PER_SECOND, MOST_FORESEEN
from pecan_ray.job.ledger_shape import Assignment, LedgerShape
from pecan_ray.job.messages import AskAssignment, AskLeases, Assigned, EndData, LeftOutElement, Lookahead, NoMoreLeases
from pecan_ray.job.queues import Queues
from pecan_ray.job.resume_point import BranchPoint, ResumePoint
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Lease, Origin, Split
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


def test_with_many_workers_each_asks_for_more_at_a_time() -> None:
    rig = JobRig(workers=Workers(0, 200))
    workers = rig.come(remote=(200.0,))
    for worker in workers:
        rig.place(worker, "far")
    rig.list_splits(10)
    reply = rig.response(workers[0], AskAssignment())
    assert isinstance(reply, Assigned) and reply.lot_s == 200 / CALLS_PER_SECOND


@pytest.mark.parametrize(
    "shape",
    [
        LedgerShape(),
        LedgerShape(in_order=True, split_order=(SplitOrder(SEED),)),
        LedgerShape(serial=True, split_order=(SplitOrder(SEED),)),
    ],
    ids=["not shuffled", "strict", "whole"],
)
def test_where_the_order_tells_on_the_result_nothing_is_offered(shape: LedgerShape) -> None:
    rig = JobRig(shape)
    (worker,) = rig.begin(splits=30)
    rig.assign(worker)
    reply = rig.response(worker, AskLeases(0, 0, 1, look=10))
    assert isinstance(reply, Lookahead) and reply.splits == () and len(reply.leases) == 1


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


def test_where_every_worker_sees_all_data_each_is_told_what_the_next_epoch_begins_with() -> None:
    queues = Queues(LedgerShape(split_order=(SplitOrder(SEED),), sharding="off", epochs=None))
    for worker in "abc":
        queues.join(worker)
    queues.add(0, [Split(index) for index in range(40)])
    assert queues.projected("a", 0, 3, 5) == [], "more may be listed"
    queues.end_listing(0)
    for epoch in range(3):
        queues.begin_epoch(epoch)
        told = [queues.projected(worker, 0, 3, 5) for worker in "abcab"]
        assert len(told[0]) == 5 and told == [told[0]] * 5
        queues.begin_epoch(epoch + 1)
        first = [queues.take("b", 0) for _ in range(5)]
        assert [lease.split for lease in first if isinstance(lease, Lease)] == told[0]


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


@pytest.mark.parametrize("found", [False, True])
def test_a_bad_element_that_was_found_since_counts_too(found: bool) -> None:
    """The worker that has told of it is lost, and another one takes its place."""
    rig = JobRig(SHAPE, Workers(2), on_error="skip", error_budget=1.0)
    first, second = rig.begin(splits=3)
    assert rig.assign(first).behind == 0
    (lease,) = rig.take(first)
    for rank in range(2):
        rig.acknowledge(first, lease, rank, rank=rank)
    if found:
        bad = LeftOutElement("one", "f", "element 3", "ValueError", origin=Origin(0, 0, 0, 0, 3))
        rig.response(first, EndData(0, {}, 0, (bad,)))
    rig.handle(events.WorkerLost(first, "process"))
    for rank in range(2):
        rig.report(rank, settled=(first,))
    assert rig.assign(second).behind == (0 if found else 2)


def test_a_source_that_does_not_know_its_lengths_is_said_once_and_only_where_it_is_read_again() -> None:
    unknown = tuple(Split(index) for index in range(2))
    for start, expected in ((START, 1), (None, 0), (replace(START, bad=(7,)), 0)):
        rig = JobRig(SHAPE, start=start)
        rig.come()
        rig.handle(events.SplitPageReceived(0, unknown))
        rig.handle(events.SplitPageReceived(0, tuple(Split(index) for index in range(2, 4))))
        rig.handle(events.ListingEnded(0))
        told = [text for text in said(rig) if "source 0 does not tell how many elements its splits hold" in text]
        assert len(told) == expected
