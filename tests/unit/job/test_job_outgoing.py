"""What a trainer tells: gathered, numbered, repeated until it is answered, and never told twice under two numbers."""

from __future__ import annotations

import pytest

from pecan_ray.job.messages import LeftOutElement, TrainerProgress, TrainerReport
from pecan_ray.job.outgoing import (
    CLOSING_PER_TRAINER_S,
    IDLE_REPORT_S,
    PRESSING_PER_TRAINER_S,
    REPEAT_S,
    REPORT_PER_TRAINER_S,
    REPORT_S,
    TOLD_AT_ONCE,
    Need,
    Outgoing,
)
from pecan_ray.job.trainer_events import ReceivedBatch
from tests.unit.job.job_rig import elements

PROGRESS = TrainerProgress()


def batch(number: int, worker: str = "w", epoch: int = 0) -> ReceivedBatch:
    return ReceivedBatch(number, worker, epoch, {(0, 0, 0): [elements(2 * number, 2)]}, 2, 20)


def next_report(
    outgoing: Outgoing, now: float, *, pressing: bool = False, held: bool = False, full: bool = False, met: int = 0
) -> TrainerReport | None:
    """Return the report that must be sent now, if one must."""
    need = Need(pressing=pressing, held=held, full=full)
    return outgoing.next(now, need, met, PROGRESS) if now >= outgoing.due(need) else None


def sent(outgoing: Outgoing, now: float, *, answered: bool = True) -> TrainerReport:
    """Return the report that must be sent now, and answer it."""
    report = next_report(outgoing, now)
    assert report is not None
    if answered:
        outgoing.answered(report.number, now)
    return report


def test_nothing_is_told_before_it_is_time() -> None:
    outgoing = Outgoing(0, 1, "t", 0.0)
    outgoing.acknowledge(batch(0))
    assert outgoing.due(Need()) == REPORT_S and next_report(outgoing, REPORT_S - 0.01) is None
    assert next_report(outgoing, REPORT_S) is not None


def test_batches_of_one_worker_and_epoch_are_acknowledged_together() -> None:
    outgoing = Outgoing(3, 4, "t", 0.0)
    for one in (batch(0), batch(1), batch(2, "x"), batch(3, epoch=1)):
        outgoing.acknowledge(one)
    report = sent(outgoing, 1.0)
    assert (report.rank, report.incarnation, report.number) == (3, "t", 1)
    assert [(ack.worker, ack.epoch, ack.batches, ack.rows, ack.bytes) for ack in report.acks] == [
        ("w", 0, 2, 4, 40),
        ("x", 0, 1, 2, 20),
        ("w", 1, 1, 2, 20),
    ]
    assert report.acks[0].spans == {(0, 0, 0): [elements(0, 2), elements(2, 2)]}


def test_reports_are_numbered_and_tell_everything_once() -> None:
    outgoing = Outgoing(0, 1, "t", 0.0)
    outgoing.acknowledge(batch(0))
    outgoing.settle("v")
    outgoing.settle("v")
    outgoing.broken("w")
    outgoing.note("ring")
    outgoing.left_out([LeftOutElement("x", "decode", "a", "torn")])
    first = sent(outgoing, 1.0)
    assert (first.settled, first.broken, first.notes, len(first.left_out)) == (("v",), ("w",), ("ring",), 1)
    second = sent(outgoing, 10.0)
    assert second.number == 2
    assert not (second.acks or second.settled or second.broken or second.notes or second.left_out)


def test_a_report_is_repeated_as_it_was_until_it_is_answered() -> None:
    outgoing = Outgoing(0, 1, "t", 0.0)
    outgoing.acknowledge(batch(0))
    first = sent(outgoing, 1.0, answered=False)
    outgoing.acknowledge(batch(1))
    outgoing.settle("v")
    assert next_report(outgoing, 1.0 + REPEAT_S - 0.01, pressing=True) is None, "one at a time"
    assert outgoing.due(Need(pressing=True)) == 1.0 + REPEAT_S
    assert next_report(outgoing, 1.0 + REPEAT_S) is first
    assert next_report(outgoing, 2.0 + REPEAT_S) is None
    assert outgoing.unacknowledged
    outgoing.answered(first.number, 9.0)
    second = sent(outgoing, 9.0)
    assert second.number == 2 and second.acks[0].batches == 1 and second.settled == ("v",)


def test_what_others_wait_for_is_told_at_once() -> None:
    settles, breaks, gives = (Outgoing(0, 2, "t", 0.0) for _ in range(3))
    settles.settle("v")
    breaks.broken("v")
    gives.give_back(0, [batch(0)])
    assert all(next_report(outgoing, 0.0) is not None for outgoing in (settles, breaks, gives))
    outgoing = Outgoing(0, 2, "t", 0.0)
    outgoing.acknowledge(batch(0))
    assert next_report(outgoing, 0.0) is None
    assert next_report(outgoing, 0.0, pressing=True) is not None


def test_a_trainer_that_begins_to_wait_for_others_says_so_once() -> None:
    outgoing = Outgoing(0, 2, "t", 0.0)
    report = next_report(outgoing, 0.0, held=True)
    assert report is not None and report.held
    outgoing.answered(1, 0.0)
    assert next_report(outgoing, 0.01, held=True) is None
    outgoing.acknowledge(batch(0))
    assert next_report(outgoing, REPORT_S, held=False) is not None
    outgoing.answered(2, REPORT_S)
    assert next_report(outgoing, REPORT_S, held=True) is not None


def test_a_trainer_without_news_is_heard_now_and_then() -> None:
    outgoing = Outgoing(0, 1, "t", 0.0)
    assert next_report(outgoing, IDLE_REPORT_S - 0.01) is None
    assert sent(outgoing, IDLE_REPORT_S).number == 1
    assert outgoing.due(Need()) == 2 * IDLE_REPORT_S


def test_of_many_trainers_each_reports_less_often() -> None:
    outgoing = Outgoing(0, 1000, "t", 0.0)
    outgoing.acknowledge(batch(0))
    assert outgoing.due(Need()) == 1000 * REPORT_PER_TRAINER_S
    assert outgoing.due(Need(pressing=True)) == (1000 - TOLD_AT_ONCE) * PRESSING_PER_TRAINER_S
    assert outgoing.due(Need(pressing=True, closing=True)) == (1000 - TOLD_AT_ONCE) * CLOSING_PER_TRAINER_S
    assert outgoing.due(Need(held=True)) == (1000 - TOLD_AT_ONCE) * PRESSING_PER_TRAINER_S
    assert outgoing.due(Need(held=True, full=True)) == 0.0, "it can do nothing until the others have told"


@pytest.mark.parametrize(("trainers", "again"), [(2, False), (1000, True)])
def test_a_trainer_of_many_says_so_too_when_its_queue_has_become_full(trainers: int, again: bool) -> None:
    outgoing = Outgoing(0, trainers, "t", 0.0)
    report = next_report(outgoing, 10.0, held=True)
    assert report is not None and report.held and not report.full
    outgoing.answered(1, 10.0)
    assert (outgoing.due(Need(held=True, full=True)) <= 10.0) is again, "few are told at once that others go on"
    if again:
        report = next_report(outgoing, 10.0, held=True, full=True)
        assert report is not None and report.full
        outgoing.answered(2, 10.0)
        assert outgoing.due(Need(held=True, full=True)) > 10.0


def test_of_many_trainers_each_tells_others_when_hardly_anything_is_left() -> None:
    few, many = (Outgoing(0, trainers, "t", 0.0) for trainers in (2, 1000))
    for number in range(12):
        for outgoing in (few, many):
            outgoing.acknowledge(batch(number))
    assert few.pressing(12) and few.pressing(0) and not few.pressing(13)
    assert many.pressing(3) and many.pressing(0) and not many.pressing(4)
