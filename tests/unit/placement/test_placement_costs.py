"""What a user wants and by when, prices, costs and where local workers go."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.job.job_cost import cost_between
from pecan_ray.placement import AutoPlacement, Cost, Deployment, Prices, PriceTier
from pecan_ray.placement.objective import COST, NO_WAIT
from pecan_ray.placement.spread import spread_by_power
from pecan_ray.plan.deadline import Deadline

GCP = Prices(accelerator_host=4.96, remote_worker=0.42)
MIXED = Prices(4.96, 0.42, (PriceTier("spot", 0.12, 4), PriceTier("on-demand", 0.90, 8)))


def test_costs_are_those_of_the_paper_and_transfer_and_waiting_are_parts_of_them() -> None:
    """Pecan §6.1: ResNet50 v2-8 takes 395 s an epoch with one remote worker, and costs $0.59 (Table 4); §1: of 19
    remote workers, in Cachew's run, come 62 % of the costs."""
    cost = cost_between([(0.0, Deployment(9, 1))], GCP, 1, until=395)
    assert cost.total == pytest.approx(395 / 3600 * (4.96 + 0.42)) == pytest.approx(0.59, abs=0.005)
    cost = cost_between([(0.0, Deployment(0, 19))], GCP, 1, until=3600)
    assert cost.remote / cost.total == pytest.approx(0.62, abs=0.005)
    cost = cost_between([(0.0, Deployment(0, 2))], GCP, 2, until=50, waiting=0.4)
    assert cost.wasted_share == pytest.approx(0.4)
    assert cost.wasted == pytest.approx(0.4 * 50 / 3600 * (2 * 4.96 + 2 * 0.42))
    assert Cost(1.0, 2.0, 0.6, 3.0).total == 6.0


def test_reports_of_before_have_no_price_of_transfer() -> None:
    fields: dict[str, Any] = {"accelerator_host": 1.0, "remote_worker": 2.0}
    assert Prices.of_fields(fields).transfer_per_gb == Prices(1.0, 2.0).transfer_per_gb == 0.0
    assert Prices.of_fields({**fields, "transfer_per_gb": 0.09}) == Prices(1.0, 2.0, transfer_per_gb=0.09)


@pytest.mark.parametrize(
    ("paid", "remote", "bill"),
    [
        ((), 3, 3 * 0.12),  # the cheapest nodes first
        ((), 6, 4 * 0.12 + 2 * 0.42),
        ((0.12,), 5, 4 * 0.12 + 0.42),
        ((0.42, 0.12, 0.42), 3, 0.12 + 2 * 0.42),
        ((0.42, 0.12, 0.42), 2, 0.12 + 0.42),  # the dearest goes first
        ((0.42, 0.12, 0.42), 5, 0.12 + 4 * 0.42),  # and spot nodes are full, whatever was said of them
        ((0.90, 0.42), 11, 0.42 + 10 * 0.90),
    ],
)
def test_workers_that_run_cost_what_their_nodes_cost_and_others_what_has_room(
    paid: tuple[float, ...], remote: int, bill: float
) -> None:
    assert MIXED.remote_per_hour(remote, paid) == pytest.approx(bill)
    assert MIXED.remote_per_hour(remote + 1, paid) > MIXED.remote_per_hour(remote, paid)
    assert MIXED.per_hour(2, remote, paid) == pytest.approx(9.92 + bill)


def test_a_megabyte_a_second_for_an_hour_is_paid_as_three_gigabytes_and_a_half() -> None:
    assert replace(GCP, transfer_per_gb=0.09).row_transfer(1e6) == pytest.approx(3.6 * 0.09)


@given(st.integers(0, 500), st.integers(1, 40))
def test_local_workers_are_dealt_out_in_turn_and_by_the_cpus_of_hosts(local: int, clients: int) -> None:
    spread = spread_by_power(local, [1.0] * clients)
    assert sum(spread) == local and len(spread) == clients
    assert max(spread) - min(spread) <= 1 and list(spread) == sorted(spread, reverse=True)
    assert spread_by_power(8, [96, 32]) == (6, 2) and spread_by_power(1, [32, 96]) == (0, 1)


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
