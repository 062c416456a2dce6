"""What a trainer tells: gathered, numbered, repeated until it is answered, and never told twice under two numbers."""

from __future__ import annotations

import pytest

from pecan_ray.job.messages import TrainerProgress, TrainerReport
from pecan_ray.job.outgoing import (
    CLOSING_PER_TRAINER_S,
    PRESSING_PER_TRAINER_S,
    REPORT_PER_TRAINER_S,
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
    outgoing: Outgoing,
    now: float,
    *,
    others_may_wait: bool = False,
    held: bool = False,
    full: bool = False,
    met: int = 0,
) -> TrainerReport | None:
    """Return the report that must be sent now, if one must."""
    need = Need(others_may_wait=others_may_wait, held=held, full=full)
    return outgoing.next(now, need, met, PROGRESS) if now >= outgoing.due(need) else None


def test_of_many_trainers_each_reports_less_often() -> None:
    outgoing = Outgoing(0, 1000, "t", 0.0)
    outgoing.acknowledge(batch(0))
    assert outgoing.due(Need()) == 1000 * REPORT_PER_TRAINER_S
    assert outgoing.due(Need(others_may_wait=True)) == (1000 - TOLD_AT_ONCE) * PRESSING_PER_TRAINER_S
    assert outgoing.due(Need(others_may_wait=True, closing=True)) == (1000 - TOLD_AT_ONCE) * CLOSING_PER_TRAINER_S
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
    assert few.others_may_wait(12) and few.others_may_wait(0) and not few.others_may_wait(13)
    assert many.others_may_wait(3) and many.others_may_wait(0) and not many.others_may_wait(4)
