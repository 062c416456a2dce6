"""What if: a finished run's own numbers, with other workers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pecan_ray.errors import PlanError
from pecan_ray.plan.prices import Prices
from pecan_ray.plan.windows import Deployment, Window
from pecan_ray.simulator.run_profile import RunProfile, from_json
from pecan_ray.simulator.what_if import what_if
from tests.long_form import examples

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


def profile_of(**changes: Any) -> RunProfile:
    return from_json(json.dumps(report_of(**changes)))


def window(local: int, remote: int, batch_s: float, wait_s: float) -> dict[str, Any]:
    return {"deployment": {"local": local, "remote": remote}, "window": asdict(Window(batch_s, 1.0, 1000, wait_s))}


def test_a_forecast_says_speed_and_dollars_in_one_sentence() -> None:
    said = str(what_if(PROFILE, Deployment(1, 4)))
    # From 10 to 16 batches a second; $12 an hour become $14: 1000 batches cost $0.333 before and $0.243 after.
    assert said.startswith("1 local + 4 remote: +60% (")
    assert "16 batches/s, $0.243 per epoch (-$0.0903); uncertain: so many workers were never measured" in said
    sure = str(what_if(PROFILE, Deployment(10, 20)))
    assert sure.endswith("20 batches/s, $0.417 per epoch (+$0.0833)")
    assert "$" not in str(what_if(replace(PROFILE, prices=None), Deployment(1, 4))), "without prices no dollars"


@pytest.mark.parametrize(("asked", "told"), [((1, 0), "no local worker"), ((0, 0), "one worker")])
def test_what_a_run_cannot_tell_is_refused(asked: tuple[int, int], told: str) -> None:
    with pytest.raises(PlanError, match=told):
        what_if(replace(PROFILE, local_rate=0.0, deployment=Deployment(0, 2)), Deployment(*asked))


@pytest.mark.parametrize("steps", [True, False])
def test_what_the_trainer_waited_for_at_the_start_is_no_waiting(steps: bool) -> None:
    """Ten seconds until the first batch, then one of 0.05 s after the other, none of which was waited for."""
    told = {"steps": {"batches": 198, "seconds": 9.9, "squares": 0.5, "waited": 0.0}} if steps else {}
    profile = profile_of(seconds=20.0, waited_s=10.0, first_batch_s=10.0, batches=201, **told)
    assert (profile.wait_share, profile.start_s) == (0.0, 10.0)
    assert profile.step_s == pytest.approx(0.05)


def test_a_profile_is_learned_from_the_report_of_a_run() -> None:
    profile = profile_of()
    assert (profile.deployment, profile.remote_rate, profile.wait_share) == (Deployment(1, 0), 0.0, 0.5)
    assert (profile.step_s, profile.local_rate) == pytest.approx((0.05, 10.0))
    profile = profile_of(windows=[window(1, 0, 0.2, 0.1), window(2, 0, 0.11, 0.01)])
    assert {pace.deployment.local for pace in profile.measured} == {1, 2}
    assert what_if(profile, Deployment(2, 0)).batch_s == pytest.approx(0.11)
    profile = profile_of(timeline=[window(1, 0, 0.25, 0.2), window(1, 2, 0.1, 0.05), window(2, 2, 1 / 14, 0.02)])
    assert (profile.local_rate, profile.remote_rate) == pytest.approx((4.0, 3.0), rel=0.01)
    cost = {"host": 5.0, "remote": 0.8, "wasted": 1.0}
    prices = profile_of(deployments=[[0.0, {"local": 0, "remote": 2}]], seconds=3600.0, cost=cost).prices
    assert prices is not None and (prices.accelerator_host, prices.remote_worker) == pytest.approx((5.0, 0.4))
    tiered = {"accelerator_host": 5.0, "remote_worker": 1.0, "tiers": [{"label": "spot", "price": 0.2, "limit": 4}]}
    profile = profile_of(deployments=[[0.0, {"local": 0, "remote": 2}]], prices=tiered, hosts=2, trainers=2)
    # Batches of 0.1 s, half of it waiting: four workers are twice as fast, and on cheap nodes.
    assert what_if(profile, Deployment(0, 4)).epoch_cost == pytest.approx(200 * 0.05 / 3600 * (10.0 + 0.8))


NO_REPORTS = (json.dumps(report_of(batches=0)), json.dumps(report_of(workers={}, deployments=[])))


@pytest.mark.parametrize("text", ["", "[1]", "{}", *NO_REPORTS])
def test_what_is_no_report_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(PlanError, match="report"):
        from_json(text)


@given(
    local=st.integers(0, 50),
    remote=st.integers(0, 500),
    step_s=st.floats(1e-4, 10),
    rates=st.tuples(st.floats(0.01, 1e3), st.floats(0.01, 1e3)),
)
@examples(100)
def test_one_more_worker_never_makes_a_forecast_slower(
    local: int, remote: int, step_s: float, rates: tuple[float, float]
) -> None:
    profile = replace(PROFILE, step_s=step_s, local_rate=rates[0], remote_rate=rates[1])
    fewer, more = (what_if(profile, Deployment(local + extra, remote + 1)) for extra in (0, 1))
    assert more.batch_s <= fewer.batch_s * (1 + 1e-9)
    for told in (fewer, more):
        assert told.low_s <= told.batch_s <= told.high_s
