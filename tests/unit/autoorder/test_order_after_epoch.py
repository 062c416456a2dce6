"""The look after the first epoch: another order has to earn its place as before a job."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.adopted import Ordering
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.autoorder.reorder_after_epoch import reorder_after_epoch
from pecan_ray.engines.counting import OpCount
from pecan_ray.reorder import Mode
from tests.long_form import some_later

SPLITS, EACH, SAMPLED = 16, 64, 64
TRIES = 4
LARGE, SMALL, TARGET = 128, 32, 64


def work(image: Any) -> Any:
    """Take time with every number, which becomes another one by itself."""
    for _ in range(4):
        image = np.sin(image)
    return image


def fit(image: Any) -> Any:
    return cv2.resize(image, (TARGET, TARGET), interpolation=cv2.INTER_NEAREST)


def of_sizes(large: int) -> pecan.PecanPipeline:
    """Images, of which so many come first in each split that are large, as the sample sees."""
    rng = np.random.default_rng(0)
    sides = [LARGE if n % EACH < large else SMALL for n in range(SPLITS * EACH)]
    items = [{"image": rng.random((side, side), np.float32)} for side in sides]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="sizes")
    return pipe.map(work, on="image").map(fit, on="image").batch(32)


def request(pipe: pecan.PecanPipeline, mode: Mode) -> OrderRequest:
    return OrderRequest(pipe.plan, "python", mode, elements=SAMPLED, seconds=60.0)


def first_look(pipe: pecan.PecanPipeline, mode: Mode) -> Ordering:
    for _ in range(TRIES):
        found = order_plan(request(pipe, mode))
        if found.changed:
            break
    assert found.stretches[0].adopted.order == ("fit", "work")
    return found


INFLATES = {"fit": OpCount(1000, 1000, 1000 * SMALL**2 * 4, 1000 * TARGET**2 * 4)}
"""What an epoch says if nearly all images are small."""


@pytest.mark.parametrize("mode", some_later(["safe", "strict"], "strict"))
def test_an_order_that_other_elements_show_to_be_faster_is_adopted(mode: Mode) -> None:
    pipe = of_sizes(large=SAMPLED // SPLITS)
    ordering = first_look(pipe, mode)
    for _ in range(TRIES):
        found = reorder_after_epoch(ordering, INFLATES, request(pipe, mode))
        if found is not None:
            break
    assert found is not None
    plan, decoders, why = found
    assert [op.name for op in plan.ops] == ["work", "fit", "batch"] and decoders == ()
    assert "AutoOrder now runs work -> fit, as the first epoch shows" in why and "measured on" in why


def test_a_gain_that_the_whole_pipeline_does_not_feel_is_none(caplog: pytest.LogCaptureFixture) -> None:
    pipe = of_sizes(large=SAMPLED // SPLITS)
    ordering = first_look(pipe, "safe")
    small = tuple(replace(one, share=0.01) for one in ordering.stretches)
    with caplog.at_level(logging.INFO, "pecan_ray"):
        assert reorder_after_epoch(replace(ordering, stretches=small), INFLATES, request(pipe, "safe")) is None
    assert "it would make the whole pipeline 1.0" in caplog.text
