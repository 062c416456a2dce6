"""The search on a sampled stretch where time is over, and exchanges that measuring shows not to be missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pecan_ray.autoorder.exchange_check import NO_TIME, OpOrder
from pecan_ray.autoorder.explain import as_html
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.sample import Sampled
from pecan_ray.autoorder.trial import Trial, make_trial
from pecan_ray.reorder.policy import Pair
from tests.unit.autoorder.sampled_orders import half, images, measured_ordering, order, rejects, tone


def test_mode_paper_adopts_nothing_that_was_not_run_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(sampled: Sampled, request: OrderRequest) -> Trial:
        sampled.limits = replace(sampled.limits, deadline=0.0)
        return make_trial(sampled, request)

    pipe = images().map(tone, on="image").map(half, on="image")
    assert order(pipe, "pecan").adopted.order == ("half", "tone")
    monkeypatch.setattr("pecan_ray.autoorder.order.make_trial", late)
    found = order(pipe, "pecan")
    assert found.sample.complete and found.policy_order.order == ("half", "tone"), "it was sampled"
    assert found.adopted.order == ("tone", "half") and NO_TIME in rejects(found)


def darker(image: Any) -> Any:
    return (255.0 * (image / 255.0) ** 1.3).astype(np.uint8)


def corner(image: Any) -> Any:
    return image[:64, :64]


@pytest.mark.parametrize("faster", [corner, half])
def test_a_look_that_is_cut_short_adopts_only_what_is_equal_and_much_faster(
    faster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Trial.verify

    def late(trial: Trial, names: OpOrder) -> tuple[str, Pair | None, int]:
        trial._sampled.limits = replace(trial._sampled.limits, deadline=0.0)
        return verify(trial, names)

    pipe = images().map(darker, on="image", name="darker").map(faster, on="image", name="faster")
    whole = measured_ordering(pipe, moved="faster")
    assert whole.changed
    shown = as_html("images", whole).count("<img src='data:image/png;base64,")
    assert shown == (0 if faster is corner else 2), "the element that differs most, both ways"
    monkeypatch.setattr(Trial, "verify", late)
    found = order(pipe)
    if faster is corner:
        assert found.adopted.order == ("faster", "darker")
    else:
        assert not found.adopted.changed
        assert "it changes values, and there was time to run it on 16 of 48 elements" in rejects(found)
