"""What a user wants, and by when; `test_placement_decided` shows the order in which deployments are preferred."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.objective import COST, NO_WAIT
from pecan_ray.plan.deadline import Deadline

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("end", "seconds"),
    [
        (90, 90.0),
        (timedelta(minutes=2), 120.0),
        (datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=1))), 3600.0),
        ((NOON.astimezone() + timedelta(seconds=5)).replace(tzinfo=None), 5.0),  # without a zone: of this machine
    ],
)
def test_a_deadline_is_told_in_seconds_as_a_span_or_as_a_moment(end: Any, seconds: float) -> None:
    assert Deadline(end).seconds_from(NOON) == pytest.approx(seconds)


@pytest.mark.parametrize("end", [0, -1.0, float("inf"), float("nan"), True, "soon", timedelta(0)])
def test_what_is_no_deadline_is_refused(end: Any) -> None:
    with pytest.raises(PlanError, match="positive number of seconds"):
        Deadline(end)
    with pytest.raises(PlanError, match="was over 60 s ago"):
        Deadline(NOON - timedelta(minutes=1)).seconds_from(NOON)


def test_without_prices_the_wait_counts_and_with_them_the_bill() -> None:
    assert AutoPlacement(priced=False).objective == NO_WAIT
    assert AutoPlacement().objective == COST
    assert AutoPlacement(objective=NO_WAIT).objective == NO_WAIT
