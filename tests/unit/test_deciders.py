"""Filters, and flat maps that make more of some elements: they decide by the values of the user's order."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.op_runner import SampleLimits
from pecan_ray.autoorder.sample import sample_stretch
from pecan_ray.autoorder.trial import Trial
from pecan_ray.images import Decode, Resize
from pecan_ray.plan.splits import Element
from pecan_ray.plan.stretches import stretches
from tests.unit.sampled_orders import blur, half, images

DECIDES = "'decide' decides by column 'image' which elements there are, and it has other values"


def bright(element: Element) -> bool:
    return bool(element["image"].mean() > 1)


def large(element: Element) -> bool:
    return bool(min(element["image"].shape[:2]) >= 32)


def twice_if_dark(element: Element) -> list[Element]:
    return [element] * (1 + int(element["image"].mean() < 100))


def tiles(element: Element) -> list[Element]:
    return [{**element, "image": part} for part in np.split(element["image"], 2)]


def trial(pipe: pecan.PecanPipeline) -> Trial:
    (stretch,) = stretches(pipe.plan)
    sampled = sample_stretch(stretch, "python", 0, SampleLimits())
    return Trial(sampled, None, "python", mode="cost")


@pytest.mark.parametrize("keep", [bright, large])
def test_a_filter_is_given_the_values_of_the_users_order(keep: Any) -> None:
    pipe = images().map(blur, on="image").map(half, on="image").filter(keep, name="decide")
    refused = trial(pipe).look(("half", "blur", "decide"))
    assert refused == (DECIDES if keep is bright else ""), "one that asks for the shape alone may be given others"


@pytest.mark.parametrize("spread", [twice_if_dark, tiles])
def test_a_flat_map_that_makes_more_of_some_elements_is_too(spread: Any) -> None:
    pipe = images().map(blur, on="image").map(half, on="image").flat_map(spread, name="decide")
    refused = trial(pipe).look(("half", "blur", "decide"))
    assert refused == (DECIDES if spread is twice_if_dark else "")


@pytest.mark.parametrize("keep", [bright, large])
def test_what_a_filter_decides_by_is_not_decoded_smaller(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pecan_ray.autoorder.trial.TAKEN_OVER_S", 60.0)
    items = [{"image": bytes(cv2.imencode(".jpg", one["image"])[1])} for one in images().iter_batches(debug=True)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items)).map(Decode(), on="image").map(Resize(64, 64), on="image")
    found = trial(pipe.filter(keep, name="decide")).taken_over(("Decode", "Resize", "decide"))
    assert bool(found.pushed) == (keep is large)
    if keep is bright:
        assert any(DECIDES in one.reason for one in found.refused)
