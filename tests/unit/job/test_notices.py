"""Who is told of new orders, and when."""

from __future__ import annotations

from pecan_ray.job.notification_schedule import MANY_TRAINERS, NotificationSchedule

EVERY = range(2 * MANY_TRAINERS)


def test_with_many_trainers_those_that_may_only_use_more_are_told_later() -> None:
    notices = NotificationSchedule()
    soon = notices.changed((3,), len(EVERY), 10.0)
    late = notices.changed((5, 7), len(EVERY), 10.0, only_limit_raised=True)
    assert late > soon + 1.0
    assert notices.answered(EVERY, soon) == ([3], late)
    notices.told(5)  # as the answer to its report
    assert notices.answered((7, 9), late) == ([7], None)


def test_who_knows_the_newest_orders_is_told_of_the_next_ones_only() -> None:
    notices = NotificationSchedule()
    notices.changed((3,), 1, 10.0)
    assert not notices.is_due(3, 2, 2, 1e9)
    assert not notices.is_due(3, 2, 3, 1e9)
    assert notices.is_due(3, 0, 3, 0.0), "who knows nothing is told at once"
