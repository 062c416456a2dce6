"""A run that is cut off and goes on from its state, in simulation: nothing is lost, and nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from pecan_ray.job import events
from pecan_ray.job.delivery_log import MOST_STEPS, MOST_UNUSED, Delivery, DeliveryLog
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.messages import EndData, ReceivedBatches
from pecan_ray.job.resume import resume_point
from pecan_ray.plan.splits import Lease
from tests.unit.job.job_rig import JobRig, elements


def test_ranks_that_ask_after_the_same_batches_are_told_the_same_words() -> None:
    """Meanwhile elements were found to yield nothing: each rank may go on from the state that it has saved itself."""
    rig = JobRig(LedgerShape(world_size=2))
    (worker,) = rig.begin(splits=2)
    rig.assign(worker)
    (lease,) = rig.take(worker)
    for rank in range(2):
        spans = {lease.key: (elements(rank),)}
        ack = ReceivedBatches(worker, 0, spans, 1, 1, 10)
        rig.report(rank, kept=1, delivery_records=(Delivery(1, 0, spans),), received_batches=(ack,))
    told = rig.job.resume_point(1)
    assert told is not None
    rig.response(worker, EndData(0, {lease.key: (elements(2),)}))
    assert rig.job.resume_point(1) == told
    assert resume_point(rig.job.ledger, rig.job.log, 1) != replace(told, listings=()), "more is known by now"
    assert rig.job.resume_point(2) is None
    rig.job.log.used([2, 2])
    assert rig.job.resume_point(1) == told, "a loader may have fetched the last one ahead"
    rig.job.log.used([2 + max(MOST_STEPS, MOST_UNUSED)] * 2)
    assert rig.job.resume_point(1) is None, "nobody asks for it any more, so it is not kept"


# --- the log --------------------------------------------------------------------------------------------------


def delivery_records(*ids: int, epoch: int = 0) -> list[Delivery]:
    return [Delivery(one, epoch, {}) for one in ids]


def ids(found: Iterable[Delivery]) -> list[int]:
    return sorted(one.id for one in found)


# Orders of operators.
FIRST, SECOND, USERS = (("crop", "parse"),), (("parse", "flip", "crop"),), (("parse", "crop"),)


def reordered(epochs: int = 3) -> tuple[JobRig, str]:
    """A job of two elements in each epoch, whose operators were put in another order."""
    rig = JobRig(LedgerShape(epochs=epochs), ordered=False, op_order=USERS)
    (worker,) = rig.begin(splits=2)
    rig.handle(events.OrderKnown(changed=True, order=FIRST))
    return rig, worker


def deliver(rig: JobRig, worker: str, kept: int) -> Lease:
    """Let the worker take a split, and the trainer receive its only element as a batch."""
    (lease,) = rig.take(worker)
    spans = {lease.key: (elements(0),)}
    ack = ReceivedBatches(worker, lease.epoch, spans, 1, 1, 10)
    rig.report(kept=kept, delivery_records=(Delivery(kept, lease.epoch, spans),), received_batches=(ack,))
    return lease


def order_at(rig: JobRig, batches: int) -> Any:
    point = rig.job.resume_point(batches)
    assert point is not None
    return point.epoch, point.op_order


def test_a_state_tells_the_order_of_operators_of_the_epoch_in_which_it_stands() -> None:
    rig, worker = reordered()
    assert order_at(rig, 0) == (0, FIRST)
    rig.assign(worker)
    first = deliver(rig, worker, kept=1)
    rig.handle(events.PlanChanged("the first epoch shows it", SECOND))
    assert order_at(rig, 1) == (0, FIRST), "the new order is for epochs that have not begun"
    second = deliver(rig, worker, kept=2)
    rig.end(worker, lengths=((first.key, 1), (second.key, 1)))
    assert rig.job.ledger.epoch == 1
    assert order_at(rig, 2) == (1, SECOND), "of an epoch of which nothing was given out: it may have the newest one"
    assert order_at(rig, 1) == (0, FIRST), "a loop that is still in the epoch before"
    rig.assign(worker)
    rig.handle(events.PlanChanged("and back", FIRST))
    assert order_at(rig, 2) == (1, SECOND)


@pytest.mark.parametrize(("ranks", "kept"), [(1, 0), (2, MOST_STEPS), (128, 4), (1000, 0)])
def test_of_many_ranks_less_is_kept_of_each(ranks: int, kept: int) -> None:
    log = DeliveryLog(ranks)
    for rank in range(ranks):
        log.received(rank, 20, delivery_records(*range(20)))
    assert len(list(log.before(20))) == kept
    log.used([20] * ranks)
    for rank in range(ranks):
        log.received(rank, 20, ())
    assert len(list(log.before(log.first_known))) == kept, "the first state that may be asked for has all of its steps"


def test_a_rank_that_is_alone_need_not_tell_of_what_it_has_used_but_for_the_last_ones() -> None:
    log = DeliveryLog(1)
    log.used([20])
    last = range(21 - MOST_UNUSED, 23)
    log.received(0, 22, delivery_records(*last))
    assert ids(log.beyond(last[0] - 1)) == [*last], "those ahead, and one of an interrupted wait"
    assert log.has_all(last[0] - 1) and not log.has_all(last[0] - 2)
    log.used([1000])
    log.received(0, 1001, delivery_records(999, 1000, 1001))
    assert log.has_all(1001) and ids(log.beyond(1000)) == [1001] and ids(log.beyond(1001)) == []
    assert ids(log.beyond(998)) == [999, 1000, 1001]
