"""What an operator has given on is not kept by it: what is made of it behind would stay in memory too."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

ROWS = 200
MOST_ALIVE = 8
"""Values that may be alive at a time: with the loop, with each operator behind, and one of each branch."""


def numbers(name: str = "i") -> PecanPipeline:
    return PecanPipeline(Arrays({name: np.arange(ROWS)}, split_rows=ROWS))


def several(element: dict[str, Any]) -> list[dict[str, Any]]:
    return [element] * ROWS


def rows(element: dict[str, Any]) -> dict[str, Any]:
    return {name: np.repeat(value, ROWS) for name, value in element.items()}


PLANS: dict[str, Callable[[], PecanPipeline]] = {
    "shuffle": lambda: numbers().shuffle(ROWS),
    "shuffle of a few": lambda: numbers().shuffle(20),
    "unbatch": lambda: numbers().batch(ROWS).unbatch(),
    "unbatch of elements": lambda: numbers().take(2).map(rows).unbatch(),
    "flat_map": lambda: numbers().take(2).flat_map(several).prefetch(1),
    "mix": lambda: numbers().mix(numbers(), weights=[1, 1]),
    "concat": lambda: numbers().concat(numbers()),
    "zip": lambda: numbers().zip(numbers("j")),
    "repeat": lambda: numbers().take(ROWS).repeat(2),
    "take and skip": lambda: numbers().skip(2).take(ROWS),
    "pack": lambda: numbers().map(lambda i: np.arange(i % 7), on="i").pack(4, on="i"),
}


@pytest.mark.parametrize("plan", PLANS)
def test_values_that_were_given_on_are_forgotten(plan: str) -> None:
    made: list[weakref.ref[Any]] = []

    def load(element: dict[str, Any]) -> dict[str, Any]:
        image = np.zeros(4)
        made.append(weakref.ref(image))
        return {"image": image}

    alive = []
    for _ in PLANS[plan]().map(load).shuffle(1).iter_batches(debug=True):
        alive.append(sum(ref() is not None for ref in made))
    assert len(alive) >= 100 and max(alive) <= MOST_ALIVE
