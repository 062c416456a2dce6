"""Labelled exchanges, and how far each moves results beside what its operators do."""

from __future__ import annotations

import math

import pytest

from benchmarks.guard.effect import effect
from benchmarks.guard.elements import elements
from benchmarks.guard.exchange import Exchange
from benchmarks.guard.exchanges import all_exchanges
from pecan_ray.plan.splits import Element


@pytest.fixture(scope="module")
def exchanges() -> dict[str, Exchange]:
    return {one.name: one for one in all_exchanges()}


@pytest.fixture(scope="module")
def sample() -> list[Element]:
    return elements(6)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("resized: flip / resize", 0.0, 0.05),
        ("resized: brightness / resize", 0.0, 0.15),
        ("resized: to_float / resize", 0.0, 0.05),  # rounding alone: the cast has no effect of its own
        ("small: to_bytes / unit (to_float)", 1.0, math.inf),
        ("resized: blur / resize", 0.5, math.inf),
        ("faces: faces_blurred / resize", 0.5, math.inf),
        ("faces: rare_faces_blurred / resize", 0.5, math.inf),
        ("video: smoothed / every_4th", 0.5, math.inf),
        ("boxes: size / resize", math.inf, math.inf),  # whole numbers are equal or not
        ("text: stop_words / first_60", math.inf, math.inf),
    ],
)
def test_how_far_an_exchange_moves_results(
    exchanges: dict[str, Exchange], sample: list[Element], name: str, least: float, most: float
) -> None:
    found = effect(exchanges[name], sample)
    assert least <= found.ratio <= most, found
