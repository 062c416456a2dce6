"""The length that is told from a plan, held against what running it yields; `test_plan_decided` shows the rest."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pecan_ray.errors import PecanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import num_batches
from pecan_ray.sources import Arrays, TextLines
from tests.unit.plan.test_plan_decided import drawn

PLANS = 500


def numbers() -> PecanPipeline:
    return PecanPipeline(Arrays(x=np.arange(10), split_rows=4))


def test_the_length_that_is_told_is_the_length_that_comes() -> None:
    compared = 0
    for seed in range(PLANS):
        text, pipe = drawn(random.Random(seed), 5, 0.25)
        told = num_batches(pipe.plan)
        if told is None:
            continue
        try:
            came = len(list(pipe.iter_batches(debug=True)))
        except (PecanError, LookupError, TypeError, ValueError):  # rows of unequal shapes, say, or one name twice
            continue
        assert (told, len(pipe)) == (came, came), text
        compared += 1
    assert compared >= PLANS / 10


@pytest.mark.parametrize(
    "pipe",
    [
        numbers().filter(bool),
        numbers().batch(2).unbatch(),
        numbers().bucket_by_length([3], sizes=2, length="x"),
        numbers().repeat(),
        numbers().mix(numbers(), weights=[1, 1], stop="first"),
        PecanPipeline(TextLines(__file__)),
    ],
)
def test_a_length_that_does_not_follow_from_the_plan_is_not_told(pipe: PecanPipeline) -> None:
    assert num_batches(pipe.plan) is None
    with pytest.raises(TypeError, match="the length of pipeline pipeline is not known without reading its data"):
        len(pipe)
