"""AutoOrder in a real job: workers run the order that was adopted; trainers that share a job run one plan."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any, cast

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import Ordering
from pecan_ray.autoorder.job_order import STILL_LOOKING
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.run_of_job import JobRun
from tests.ray.pipelines import ONE, TWO
from tests.ray.waiting import ENDS_S
from tests.ray.workers import ONE_BY_ONE

pytestmark = pytest.mark.usefixtures("three_nodes", "no_actor_left")

ELEMENTS = 64


@pytest.fixture(autouse=True)
def looks_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job begins with what its look for an order has found, however loaded the machine is."""
    monkeypatch.setattr("pecan_ray.autoorder.job_order.WAITED_S", ENDS_S)


def blur(image: Any) -> Any:
    return cv2.GaussianBlur(image, (15, 15), 3.0)


def half(image: Any) -> Any:
    return cv2.resize(image, (image.shape[1] // 2, image.shape[0] // 2))


def shape_before(element: dict[str, Any]) -> dict[str, Any]:
    """Note the side of the image that the blurring is given."""
    return {**element, "image": blur(element["image"]), "side": np.int64(len(element["image"]))}


def images() -> pecan.PecanPipeline:
    """Make a pipeline that shows its order by a column of the results: in mode "safe" that would speak against it."""
    noise = np.random.default_rng(0).integers(0, 255, (ELEMENTS, 128, 128, 3), np.uint8)
    config = pecan.Config(sample_elements=32, reorder="pecan")
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(image=noise), name="images", config=config)
    return pipe.map(shape_before).map(half, on="image").batch(8)


def reorderings(batches: pecan.Batches) -> list[str]:
    return [event.text for event in batches.report().events if event.kind == "reorder"]


def test_one_rank_looks_for_all_and_workers_run_the_order_that_was_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[OrderRequest] = []

    def look(request: OrderRequest, job: Any) -> Ordering:
        looks.append(request)
        return order_plan(request, job=job)

    def sides(batches: pecan.Batches) -> list[int]:
        return [side for batch in batches for side in batch["side"].tolist()]

    monkeypatch.setattr("pecan_ray.autoorder.job_order.order_plan", look)
    options: dict[str, Any] = {"world_size": 2, "job": "ranks", "workers": TWO}
    later, first = (images().iter_batches(rank=rank, **options) for rank in (1, 0))
    with ThreadPoolExecutor(2) as threads, later, first:
        assert [*chain.from_iterable(threads.map(sides, (later, first)))] == [64] * ELEMENTS
        told = reorderings(first)
    assert len(looks) == 1 and "AutoOrder moved half before shape_before" in told[0]


def test_what_a_look_beside_its_job_finds_is_run_from_a_later_epoch_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecan_ray.autoorder.job_order.WAITED_S", 0.0)
    sides: dict[int, set[int]] = {}
    with images().iter_batches(epochs=None, workers=ONE, **ONE_BY_ONE) as batches:
        for batch in batches:
            assert batches.provenance is not None
            epoch = batches.provenance.epoch
            sides.setdefault(epoch, set()).update(batch["side"].tolist())
            if sides.get(epoch - 1) == {64}:
                break
        begun, found = reorderings(batches)[:2]
        session = cast(JobRun, batches._run).session
        assert json.loads(session._ask(session.controller.view).order_text)["changed"], (
            "what a page about the job shows"
        )
    assert all(seen == {64} or not seen & {64} for seen in sides.values()), "an epoch has one order"
    assert begun == STILL_LOOKING
    assert found.startswith("AutoOrder moved half before shape_before")
    first = min(epoch for epoch, seen in sides.items() if seen == {64})
    assert f"it is run from epoch {first} on" in found
