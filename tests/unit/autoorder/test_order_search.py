"""The search on a sampled stretch where time is over, and exchanges that measuring shows not to be missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pecan_ray.autoorder.exchange_check import NO_TIME
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.trial import Trial, make_trial
from tests.unit.autoorder.sampled_orders import half, images, order, refusals, tone

COUNT = 64


def test_mode_paper_adopts_nothing_that_was_not_run_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(sampled: Sampled, request: OrderRequest) -> Trial:
        sampled.limits = replace(sampled.limits, deadline=0.0)
        return make_trial(sampled, request)

    pipe = images().map(tone, on="image").map(half, on="image")
    assert order(pipe, "pecan").adopted.order == ("half", "tone")
    monkeypatch.setattr("pecan_ray.autoorder.order.make_trial", late)
    found = order(pipe, "pecan")
    assert found.sample.complete and found.proposed.order == ("half", "tone"), "it was sampled"
    assert found.adopted.order == ("tone", "half") and NO_TIME in refusals(found)
