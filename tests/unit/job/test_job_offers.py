"""Splits that are offered to workers: those that somebody has at hand go first, the others last, each once."""

from __future__ import annotations

import pytest

from pecan_ray.job.events import ListingEnded, SplitsListed
from pecan_ray.job.job_requests import MOST_FORESEEN
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import AskLeases, Lookahead, NoMoreLeases
from pecan_ray.job.queues import Queues
from pecan_ray.options import Workers
from pecan_ray.plan.splits import Lease, Split
from pecan_ray.sampling.random_keys import SplitOrder
from tests.unit.job.job_rig import JobRig
from tests.unit.job.test_job_split_queue import SEED, drain, queue_of


@pytest.mark.parametrize(
    "shape",
    [
        LedgerShape(),
        LedgerShape(in_order=True, orders=(SplitOrder(SEED),)),
        LedgerShape(serial=True, orders=(SplitOrder(SEED),)),
    ],
    ids=["not shuffled", "strict", "whole"],
)
def test_where_the_order_tells_on_the_result_nothing_is_offered(shape: LedgerShape) -> None:
    rig = JobRig(shape)
    (worker,) = rig.begin(splits=30)
    rig.assign(worker)
    reply = rig.answer(worker, AskLeases(0, 0, 1, look=10))
    assert isinstance(reply, Lookahead) and reply.splits == () and len(reply.leases) == 1


# --- what the next epoch begins with --------------------------------------------------------------------------


def end_of_epoch(shape: LedgerShape, *, scheme: str = "s3://", workers: int = 1, look: int = 0) -> object:
    """Let a worker take all splits, and return what it is told when it asks for more."""
    rig = JobRig(shape, Workers(workers))
    names = rig.come()
    for name in names:
        rig.place(name)
    assert len(names) == workers
    rig.handle(SplitsListed(0, tuple(Split(index, path=f"{scheme}bucket/{index}") for index in range(40))))
    rig.handle(ListingEnded(0))
    rig.assign(names[0])
    taken: list[int] = []
    while True:
        reply = rig.answer(names[0], AskLeases(0, 0, 100, look=look))
        leases = reply.leases if isinstance(reply, Lookahead) else reply
        if not isinstance(leases, tuple) or not leases:
            assert sorted(taken) == list(range(40))
            return reply
        taken += [lease.split.index for lease in leases]


@pytest.mark.parametrize("seed", [SEED, None])
@pytest.mark.parametrize("epochs", [2, None])
def test_a_worker_that_is_alone_is_told_what_the_next_epoch_begins_with(seed: int | None, epochs: int | None) -> None:
    reply = end_of_epoch(LedgerShape(orders=(None if seed is None else SplitOrder(seed),), epochs=epochs))
    assert isinstance(reply, NoMoreLeases)
    queue = queue_of(40, seed)
    queue.begin(1, 0)
    assert [split.index for split in reply.next_epoch] == drain(queue)[:MOST_FORESEEN]


def test_nothing_is_told_of_files_of_the_machine_nor_in_the_last_epoch_nor_to_who_looks() -> None:
    shape = LedgerShape(orders=(SplitOrder(SEED),), epochs=2)
    assert end_of_epoch(shape, workers=2) == (), "another worker may be given it"
    assert end_of_epoch(shape, scheme="/") == ()
    assert end_of_epoch(LedgerShape(orders=(SplitOrder(SEED),), epochs=1)) == ()
    assert end_of_epoch(shape, look=10) == ()


def test_where_every_worker_sees_all_data_each_is_told_what_the_next_epoch_begins_with() -> None:
    queues = Queues(LedgerShape(orders=(SplitOrder(SEED),), sharding="off", epochs=None))
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
