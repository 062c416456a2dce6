"""The length that is told from a plan, held against what running it yields; `test_plan_decided` shows the rest."""

from __future__ import annotations

import random

import pytest

from pecan_ray.errors import PecanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.shape import num_batches
from pecan_ray.sources import TextLines
from tests.unit.plan.test_plan_decided import drawn

PLANS = 500


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


def test_a_length_that_does_not_follow_from_the_plan_is_not_told() -> None:
    with pytest.raises(TypeError, match="the length of pipeline pipeline is not known without reading its data"):
        len(PecanPipeline(TextLines(__file__)))
