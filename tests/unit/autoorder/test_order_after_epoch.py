"""The look after the first epoch, in mode "pecan"."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.order import order_plan
from pecan_ray.autoorder.order_check import LEAST_COUNTED, reorder_after_epoch
from pecan_ray.autoorder.order_request import OrderRequest
from pecan_ray.engines.counting import OpCount

LARGE, SMALL, TARGET = 48, 16, 32


def work(image: Any) -> Any:
    return np.sin(image)


def fit(image: Any) -> Any:
    return cv2.resize(image, (TARGET, TARGET), interpolation=cv2.INTER_NEAREST)


def counted(elements: int, side: int) -> dict[str, OpCount]:
    """What an epoch says of `fit` if images have sides of so many pixels."""
    return {"fit": OpCount(elements, elements, elements * side**2 * 4, elements * TARGET**2 * 4)}


@pytest.mark.parametrize(
    ("counts", "changes"),
    [
        (counted(1000, SMALL), True),
        (counted(1000, LARGE), False),
        (counted(LEAST_COUNTED - 1, SMALL), False),
        ({}, False),
    ],
    ids=["it inflates most elements", "it deflates them as the sample did", "too few were counted", "none was"],
)
def test_an_operator_moves_where_the_whole_pass_says_otherwise_than_the_sample(
    counts: dict[str, OpCount], changes: bool
) -> None:
    items = [{"image": np.full((LARGE, LARGE), n, np.float32)} for n in range(24)]
    pipe = pecan.PecanPipeline(pecan.sources.Items(items), name="sizes").map(work, on="image").map(fit, on="image")
    request = OrderRequest(pipe.plan, "python", "pecan", elements=24, seconds=60.0)
    ordering = order_plan(request)
    assert ordering.stretches[0].adopted.order == ("fit", "work")
    found = reorder_after_epoch(ordering, counts, request)
    if not changes:
        assert found is None
    else:
        assert found is not None and [op.name for op in found[0].ops] == ["work", "fit"]
        assert "AutoOrder now runs work -> fit, as the first epoch shows: 'fit' inflates" in found[1]
