"""AutoPlacement on a running job: real actors on three nodes, transforms that wait instead of compute.

How long something takes decides no test: deployments are compared within one worker, and reasons are read.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import ray

import pecan_ray as pecan
from pecan_ray.placement import Deployment
from pecan_ray.plan.prices import GCP_TPU_V2, Prices, PriceTier
from tests.ray.waiting import until
from tests.ray.waiting_transforms import SMALL, train, waiting

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")


def auto(**options: Any) -> pecan.AutoWorkers:
    settings: dict[str, Any] = {"max_local": 2, "window_batches": 10, "window_s": 0.5, "prices": GCP_TPU_V2}
    return pecan.AutoWorkers(**settings | options)


def test_a_trainer_that_waits_gets_remote_workers_and_is_told_why() -> None:
    """How many are cheapest is decided by speed: the simulation of AutoPlacement looks at that."""
    workers = auto(max_remote=1)
    with waiting(0.02).iter_batches(workers=workers, **SMALL) as batches:
        train(batches, 0.0, lambda timeline: any(one.deployment.remote for one in timeline), look_every=5)
        order_text, report = batches.explain(), batches.report()
    assert all(str(step.decision.target) in step.decision.reason for step in report.timeline)
    why, _, _, *rest = order_text.splitlines()
    (then,) = [place for place, line in enumerate(rest) if line.strip().startswith("next: AutoPlacement ")]
    assert "AutoPlacement looks for the cheapest deployment." in why and "per 1000 batches" in order_text
    ran = {str(step.deployment) for step in report.timeline if step.window.batches}
    assert {row.strip().split("  ")[0] for row in rest[:then]} == ran
    targets = [Deployment(1, 0), *(step.decision.target for step in report.timeline)]
    told = [event.text for event in report.events if event.kind == "placement" and " -> " in event.text]
    assert len(told) == sum(new != old for old, new in itertools.pairwise(targets))
    assert all(any(step.decision.reason in text for step in report.timeline) for text in told)
    assert f"AutoPlacement: {targets[-1]} after {len(report.timeline)} windows" in str(report)
    assert report.cost is not None and report.cost.total > report.cost.wasted > 0


def test_remote_workers_go_to_the_cheapest_nodes_with_room_and_the_dearest_are_drained_first() -> None:
    """Each of the two remote nodes holds two workers; the tier says that four fit on the cheap one."""
    prices = Prices(1.0, 3.0, (PriceTier("cheap", 0.1, 4, {"market": "ondemand"}),))
    workers = auto(prices=prices, max_local=0, min_remote=3, max_remote=3)
    resources: Any = ray.available_resources
    until(lambda: resources().get("CPU") == 12, "workers of another job hold CPUs")
    with waiting(0.001, cpus_per_worker=2.0).iter_batches(workers=workers, **SMALL) as batches:

        def per_hour() -> float | None:
            next(batches)
            return next((rate for rate in reversed(batches.report().remote_rates)), None)

        until(lambda: per_hour() == pytest.approx(3.2), "no two workers on the cheap node and one on the other")
        batches.scale(local=0, remote=2)
        until(lambda: per_hour() == pytest.approx(0.2), "the dear worker does not go")
        rates = [rate for rate in batches.report().remote_rates if rate]
    assert max(rates) == pytest.approx(3.2), "no worker has moved"
