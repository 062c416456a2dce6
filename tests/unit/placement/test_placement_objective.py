"""What a user wants, as an order of deployments."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.placement import AutoPlacement
from pecan_ray.placement.objective import COST, NO_WAIT, DeploymentEstimate, Objective, rank
from pecan_ray.plan.deadline import Deadline
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment

PRICES = Prices(1.0, 1.0)


def projected(local: int, remote: int, batch_s: float, own_s: float | None = 0.1) -> DeploymentEstimate:
    return DeploymentEstimate(Deployment(local, remote), batch_s, own_s, PRICES.per_hour(1, remote))


# Each remote worker is as dear as the host: the fewest are the cheapest, the most the fastest.
FEW, SOME, MANY = projected(1, 0, 0.16), projected(1, 1, 0.11), projected(1, 2, 0.1)


@pytest.mark.parametrize(
    ("objective", "best"), [(COST, FEW), (NO_WAIT, MANY), (Objective(longest_s=0.12), SOME), (Objective(1.0, 1.0), FEW)]
)
def test_the_cheapest_of_those_that_do_what_is_wanted_is_first(objective: Objective, best: DeploymentEstimate) -> None:
    assert rank(objective, [MANY, SOME, FEW])[0].projected == best


def test_each_loser_says_why() -> None:
    assert [(one.projected, one.miss) for one in rank(NO_WAIT, [FEW, SOME, MANY])] == [
        (MANY, ""),
        (SOME, "waits"),
        (FEW, "waits"),
    ]
    late = rank(Objective(longest_s=0.12), [FEW, SOME, MANY])
    assert [one.miss for one in late] == ["", "", "late"]
    assert late[1].cost_increase == pytest.approx(0.3 / 0.22 - 1)
    assert late[2].wait_share == pytest.approx(1 - 0.1 / 0.16)
    assert [one.projected for one in rank(Objective(longest_s=0.01), [FEW, MANY, SOME])] == [MANY, SOME, FEW], (
        "where nothing does what is wanted the fastest is first"
    )
    assert rank(NO_WAIT, [projected(1, 0, 0.3, None)])[0].miss == "", "a wait that is unknown is not said"


TIMES = st.floats(1e-4, 1e3)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), TIMES, st.floats(0.01, 1.0)), min_size=1),
    st.floats(0.0, 1.0),
    TIMES,
)
def test_nothing_that_does_what_is_wanted_is_behind_something_that_does_not(
    many: list[tuple[int, int, float, float]], most_wait: float, longest_s: float
) -> None:
    options = [projected(local, remote, batch_s, share * batch_s) for local, remote, batch_s, share in many]
    ranked = rank(Objective(most_wait, longest_s), options)
    missed = [bool(one.miss) for one in ranked]
    assert missed == sorted(missed)
    paid = [one.cost_increase for one in ranked if not one.miss]
    assert paid == sorted(paid)


def test_a_deadline_is_told_in_seconds_as_a_span_or_as_a_moment() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
    assert Deadline(90).seconds_from(now) == 90.0
    assert Deadline(timedelta(minutes=2)).seconds_from(now) == 120.0
    assert Deadline(datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=1)))).seconds_from(now) == 3600.0
    here = now.astimezone()
    assert Deadline((here + timedelta(seconds=5)).replace(tzinfo=None)).seconds_from(here) == pytest.approx(5.0)
    with pytest.raises(PlanError, match="was over 60 s ago"):
        Deadline(now - timedelta(minutes=1)).seconds_from(now)


@pytest.mark.parametrize("end", [0, -1.0, float("inf"), float("nan"), True, "soon", timedelta(0)])
def test_what_is_no_deadline_is_refused(end: object) -> None:
    with pytest.raises(PlanError, match="positive number of seconds"):
        Deadline(end)  # type: ignore[arg-type]  # what a user may write


def test_without_prices_the_wait_counts_and_with_them_the_bill() -> None:
    assert AutoPlacement(priced=False).objective == NO_WAIT
    assert AutoPlacement().objective == COST
    assert AutoPlacement(objective=NO_WAIT).objective == NO_WAIT
