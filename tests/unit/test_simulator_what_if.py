"""What if: a finished run's own numbers, with other workers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment
from pecan_ray.simulator.what_if import RunProfile, from_json, suggestions, to_json, what_if

PROFILE = RunProfile(
    job="resnet",
    deployment=Deployment(1, 2),
    batches=1000,
    step_s=0.05,
    wait_share=0.5,
    local_rate=4.0,
    remote_rate=3.0,
    prices=Prices(10.0, 1.0),
)


def report_of(**changes: Any) -> dict[str, Any]:
    """The fields of a report that matter: one local worker, 200 batches of 0.1 s, half of it waiting."""
    fields: dict[str, Any] = {
        "job": "small",
        "seconds": 20.0,
        "batches": 200,
        "waited_s": 10.0,
        "epochs": 1,
        "workers": {"local-0": {"placement": "local", "elements": 800, "batches": 200}},
        "deployments": [[0.0, {"local": 1, "remote": 0}]],
        "timeline": [],
        "cost": None,
    }
    return fields | changes


def window(local: int, remote: int, batch_s: float, wait_s: float) -> dict[str, Any]:
    return {
        "deployment": {"local": local, "remote": remote},
        "window": {"batch_time": batch_s, "wait_time": wait_s, "touched": False},
    }


def test_twice_the_workers_are_twice_as_fast_until_the_trainer_is_the_limit() -> None:
    profile = replace(PROFILE, deployment=Deployment(0, 2), local_rate=0.0)
    assert what_if(profile, Deployment(0, 4)).speed == pytest.approx(1.0)
    assert what_if(profile, Deployment(0, 40)).batch_s == profile.step_s
    assert what_if(profile, Deployment(0, 40)).wait_share == 0.0


def test_a_forecast_says_speed_and_dollars_in_one_sentence() -> None:
    said = str(what_if(PROFILE, Deployment(1, 4)))
    # From 10 to 16 batches a second; $12 an hour become $14: 1000 batches cost $0.333 before and $0.243 after.
    assert said == "1 local + 4 remote: +60%, 16 batches/s, $0.243 per epoch (-$0.0903)"


def test_without_prices_no_dollars_are_told() -> None:
    assert "$" not in str(what_if(replace(PROFILE, prices=None), Deployment(1, 4)))


def test_rates_of_workers_that_nobody_waited_for_are_lower_bounds() -> None:
    idle = replace(PROFILE, rates_known=False)
    assert what_if(idle, Deployment(1, 1)).certain is False
    assert "at least" in str(what_if(idle, Deployment(1, 1)))


@pytest.mark.parametrize(
    ("asked", "told"), [((1, 0), "no local worker"), ((1, 3), "no local worker"), ((0, 0), "one worker")]
)
def test_what_a_run_cannot_tell_is_refused(asked: tuple[int, int], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        what_if(replace(PROFILE, local_rate=0.0, deployment=Deployment(0, 2)), Deployment(*asked))


def test_suggestions_go_up_and_down_from_what_ran() -> None:
    found = {forecast.deployment for forecast in suggestions(PROFILE)}
    assert {Deployment(1, 4), Deployment(1, 1), Deployment(2, 2), Deployment(0, 2)} <= found
    assert all(deployment.workers for deployment in found)


def test_a_profile_survives_writing_and_reading() -> None:
    assert from_json(to_json(PROFILE)) == PROFILE


def test_the_report_of_a_run_without_windows_is_enough() -> None:
    profile = from_json(json.dumps(report_of()))
    assert profile.deployment == Deployment(1, 0)
    assert profile.step_s == pytest.approx(0.05)
    assert profile.local_rate == pytest.approx(10.0)
    assert profile.remote_rate == 0.0
    assert profile.wait_share == 0.5


def test_local_and_remote_rates_are_told_apart_by_the_windows_of_a_search() -> None:
    timeline = [window(1, 0, 0.25, 0.2), window(1, 2, 0.1, 0.05), window(2, 2, 1 / 14, 0.02)]
    profile = from_json(json.dumps(report_of(timeline=timeline)))
    assert profile.local_rate == pytest.approx(4.0, rel=0.01)
    assert profile.remote_rate == pytest.approx(3.0, rel=0.01)


def test_the_prices_of_a_run_follow_from_its_costs() -> None:
    fields = report_of(
        deployments=[[0.0, {"local": 0, "remote": 2}]],
        seconds=3600.0,
        cost={"host": 5.0, "remote": 0.8, "wasted": 1.0},
    )
    prices = from_json(json.dumps(fields)).prices
    assert prices is not None
    assert (prices.accelerator_host, prices.remote_worker) == pytest.approx((5.0, 0.4))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{}",
        '{"profile": {}}',
        json.dumps(report_of(batches=0)),
        json.dumps(report_of(workers={}, deployments=[])),
    ],
)
def test_what_is_no_report_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(PlanError, match="report"):
        from_json(text)


@given(
    local=st.integers(0, 50),
    remote=st.integers(0, 500),
    step_s=st.floats(1e-4, 10),
    rates=st.tuples(st.floats(0.01, 1e3), st.floats(0.01, 1e3)),
)
@settings(max_examples=100, deadline=None)
def test_one_more_worker_never_makes_a_forecast_slower(
    local: int, remote: int, step_s: float, rates: tuple[float, float]
) -> None:
    profile = replace(PROFILE, step_s=step_s, local_rate=rates[0], remote_rate=rates[1])
    fewer, more = Deployment(local, remote + 1), Deployment(local + 1, remote + 1)
    assert what_if(profile, more).batch_s <= what_if(profile, fewer).batch_s
    assert what_if(profile, more).batch_s >= step_s
