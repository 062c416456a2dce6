"""Plans that run as a whole: repeats without end that let nothing through, and values that nobody holds any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

Made = Callable[[PecanPipeline], PecanPipeline]


def rows(count: int = 10) -> PecanPipeline:
    return PecanPipeline(Arrays({"x": np.arange(count)}, split_rows=count), name="rows")


def negative(x: Any) -> Any:
    return x < 0


def in_y(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["x"]}


IN_VAIN: dict[str, Made] = {
    "take behind": lambda p: p.repeat().map(in_y, keep_position=True).filter(negative, on="y", name="op").take(3),
    "a batch between": lambda p: p.repeat().batch(4).filter(lambda batch: False, name="op").take(3),
    "a shuffle between": lambda p: p.repeat().shuffle(5).filter(negative, on="x", name="op").take(3),
    "flat_map": lambda p: p.repeat().flat_map(lambda row: iter(()), name="op").take(3),
    "take before": lambda p: p.take(5).repeat().filter(negative, on="x", name="op").batch(2),
    "zip": lambda p: p.repeat().zip(p.map(in_y).repeat()).filter(negative, on="x", name="op"),
    "mix": lambda p: p.repeat().mix(rows(50).repeat(), weights=[1, 1]).filter(negative, on="x", name="op").take(3),
}


@pytest.mark.parametrize("made", IN_VAIN.values(), ids=IN_VAIN)
def test_a_filter_behind_an_endless_repeat_that_keeps_nothing_is_an_error(made: Made) -> None:
    with pytest.raises(PlanError, match=r"repeat\w* has no end, and .* op \(\w+\) lets no element through"):
        next(made(rows()).iter_batches(debug=True))


ROWS = 200
MOST_ALIVE = 8
"""Values that may be alive at a time: with the loop, with each operator behind, and one of each branch."""


def of_rows(element: dict[str, Any]) -> dict[str, Any]:
    return {name: np.repeat(value, ROWS) for name, value in element.items()}


FORGETFUL: dict[str, Made] = {
    "shuffle": lambda p: p.shuffle(ROWS),
    "shuffle of a few": lambda p: p.shuffle(20),
    "unbatch": lambda p: p.batch(ROWS).unbatch(),
    "unbatch of elements": lambda p: p.take(2).map(of_rows).unbatch(),
    "flat_map": lambda p: p.take(2).flat_map(lambda row: [row] * ROWS).prefetch(1),
    "mix": lambda p: p.mix(p, weights=[1, 1]),
    "concat": lambda p: p.concat(p),
    "zip": lambda p: p.zip(p.map(in_y)),
    "repeat": lambda p: p.take(ROWS).repeat(2),
    "take and skip": lambda p: p.skip(2).take(ROWS),
    "pack": lambda p: p.map(lambda x: np.arange(x % 7), on="x").pack(4, on="x"),
}


@pytest.mark.parametrize("plan", FORGETFUL)
def test_values_that_were_given_on_are_forgotten(plan: str) -> None:
    """What is made of them behind an operator would stay in memory too."""
    made: list[weakref.ref[Any]] = []

    def load(element: dict[str, Any]) -> dict[str, Any]:
        image = np.zeros(4)
        made.append(weakref.ref(image))
        return {"image": image}

    alive = []
    for _ in FORGETFUL[plan](rows(ROWS)).map(load).shuffle(1).iter_batches(debug=True):
        alive.append(sum(ref() is not None for ref in made))
    assert len(alive) >= 100 and max(alive) <= MOST_ALIVE
