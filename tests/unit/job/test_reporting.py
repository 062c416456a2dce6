"""How often workers and trainers tell, who is told of new orders, and how many messages may be under way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.job.active_clock import ActiveClock
from pecan_ray.job.credits import FEW_AHEAD, MOST_AHEAD, MessageQuota
from pecan_ray.job.heartbeat import BEATS, Heartbeat
from pecan_ray.job.ledger import Ledger
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.notification_schedule import MANY_TRAINERS, NotificationSchedule
from pecan_ray.job.outgoing import Outgoing
from pecan_ray.job.report_pace import (
    CLOSING_PER_TRAINER_S,
    PRESSING_PER_TRAINER_S,
    REPORT_PER_TRAINER_S,
    TOLD_AT_ONCE,
    Need,
    ReportPace,
)
from pecan_ray.job.trainer_events import ReceivedBatch
from pecan_ray.plan.splits import Split
from tests.unit.job.job_rig import elements


def told_at(lots: list[float], timeout_s: float, lot_s: float, until: float = 600.0) -> list[float]:
    """When a worker that looks once a second tells how it gets on, asking after such times, again and again."""
    heartbeat, told = Heartbeat(timeout_s), []
    asks, now, turn = lots[0], 0.0, 0
    while now < until:
        while asks <= now:
            heartbeat.requested_at, turn = asks, turn + 1
            asks += lots[turn % len(lots)]
        if heartbeat.due(now, lot_s):
            heartbeat.reported_at = now
            told.append(now)
        now += 1.0
    return told


def test_a_worker_of_few_tells_every_ten_seconds_however_often_it_asks_and_one_of_many_once_a_lot() -> None:
    assert told_at([0.5], 60.0, 0.5, until=31) == [0, 10, 20, 30]
    told = told_at([33.0], 60.0, 33.0)
    assert len(told) == pytest.approx(600 / 33, abs=2), "its questions say that it lives: one word is enough"


@given(
    lots=st.lists(st.floats(0.1, 500.0), min_size=1, max_size=5),
    timeout_s=st.floats(9.0, 300.0),
    lot_s=st.floats(0.5, 500.0),
)
def test_it_is_never_silent_for_longer_than_a_part_of_the_deadline(
    lots: list[float], timeout_s: float, lot_s: float
) -> None:
    told = told_at(lots, timeout_s, lot_s)
    asked, at = [], 0.0
    for turn in range(10_000):
        at += lots[turn % len(lots)]
        if at > 600:
            break
        asked.append(at)
    heard = sorted([*told, *asked])
    longest = max(later - earlier for earlier, later in zip(heard, [*heard[1:], 600.0], strict=True))
    assert longest <= timeout_s / BEATS + 1.0


def batch(number: int) -> ReceivedBatch:
    return ReceivedBatch(number, "w", 0, {(0, 0, 0): [elements(2 * number, 2)]}, 2, 20)


def test_of_many_trainers_each_reports_less_often() -> None:
    outgoing = Outgoing(0, 1000, "t", 0.0)
    outgoing.acknowledge(batch(0))
    assert outgoing.due(Need()) == 1000 * REPORT_PER_TRAINER_S
    assert outgoing.due(Need(others_may_wait=True)) == (1000 - TOLD_AT_ONCE) * PRESSING_PER_TRAINER_S
    assert outgoing.due(Need(others_may_wait=True, closing=True)) == (1000 - TOLD_AT_ONCE) * CLOSING_PER_TRAINER_S
    assert outgoing.due(Need(held=True)) == (1000 - TOLD_AT_ONCE) * PRESSING_PER_TRAINER_S
    assert outgoing.due(Need(held=True, full=True)) == 0.0, "it can do nothing until the others have told"


def test_of_many_trainers_each_tells_others_when_hardly_anything_is_left() -> None:
    few, many = ReportPace(2), ReportPace(1000)
    assert few.others_may_wait(12, 12) and few.others_may_wait(12, 0) and not few.others_may_wait(12, 13)
    assert many.others_may_wait(12, 3) and many.others_may_wait(12, 0) and not many.others_may_wait(12, 4)


def test_of_many_trainers_those_that_may_only_use_more_are_told_later_and_who_knows_the_newest_orders_not() -> None:
    notices, every = NotificationSchedule(), range(2 * MANY_TRAINERS)
    soon = notices.changed((3,), len(every), 10.0)
    late = notices.changed((5, 7), len(every), 10.0, only_limit_raised=True)
    assert late > soon + 1.0
    assert notices.take_due(every, soon) == ([3], late)
    notices.mark_sent(5)  # as the answer to its report
    assert notices.take_due((7, 9), late) == ([7], None)
    notices = NotificationSchedule()
    notices.changed((3,), 1, 10.0)
    assert not notices.is_due(3, 2, 2, 1e9) and not notices.is_due(3, 2, 3, 1e9)
    assert notices.is_due(3, 0, 3, 0.0), "who knows nothing is told at once"


def test_one_fast_worker_sends_a_few_messages_ahead_and_no_more_are_under_way_than_fit() -> None:
    book = MessageQuota(1000)
    book.opened("a", True)
    assert book.used("a", 10, 10, True) == {"a": MOST_AHEAD}
    assert book.used("a", 10, 20, True) == {}, "it has enough for a while"
    assert book.used("a", 10, 30, True) == {"a": MOST_AHEAD - FEW_AHEAD}
    book = MessageQuota(100)
    book.opened("a", True)
    assert book.used("a", 40, 40, True) == {"a": 1}, "40 queued and 40 under way: a third does not fit"


def test_time_passes_and_of_a_long_gap_only_the_longest_that_is_usual() -> None:
    reads = [100.0, 100.0, 100.5, 103.5, 106.4, 3_706.4, 3_707.4, 3_717.4]
    clock = ActiveClock(3.0, iter(reads).__next__)
    assert [clock.now() for _ in reads[1:]] == pytest.approx([100.0, 100.5, 103.5, 106.4, 109.4, 110.4, 113.4])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_that_is_alone_acknowledges_at_once_when_its_workers_are_done(ranks: int) -> None:
    ledger = Ledger(LedgerShape(world_size=ranks))
    ledger.join("w")
    ledger.add_splits(0, [Split(0, elements=4)])
    ledger.end_listing(0)
    ledger.next_assignment("w")
    assert not ledger.awaits_acks(), "its split is not given out"
    ledger.take("w")
    assert ledger.closing() and ledger.awaits_acks() == (ranks > 1), "others may wait for what one has received"
    ledger.assignment_ended("w", {})
    assert ledger.awaits_acks()
