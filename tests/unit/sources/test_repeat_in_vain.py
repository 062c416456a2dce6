"""A filter behind a repeat without end, in a plan that runs as a whole, which lets nothing through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pecan_ray.errors import PlanError
from pecan_ray.pipeline import PecanPipeline
from pecan_ray.sources import Arrays

Made = Callable[[PecanPipeline], PecanPipeline]


def rows(count: int = 10) -> PecanPipeline:
    return PecanPipeline(Arrays(x=np.arange(count)), name="rows")


def negative(x: Any) -> Any:
    return x < 0


def in_y(row: dict[str, Any]) -> dict[str, Any]:
    return {"y": row["x"]}


def nothing(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return iter(())


def seldom(x: Any, rng: np.random.Generator) -> Any:
    return rng.random() < 0.05


IN_VAIN: dict[str, Made] = {
    "take before": lambda p: p.take(5).repeat().filter(negative, on="x", name="op").batch(2),
    "take behind": lambda p: p.repeat().map(in_y, keep_position=True).filter(negative, on="y", name="op").take(3),
    "a batch between": lambda p: p.repeat().batch(4).filter(lambda batch: False, name="op").take(3),
    "a shuffle between": lambda p: p.repeat().shuffle(5).filter(negative, on="x", name="op").take(3),
    "flat_map": lambda p: p.repeat().flat_map(nothing, name="op").take(3),
    "zip": lambda p: p.repeat().zip(p.map(in_y).repeat()).filter(negative, on="x", name="op"),
    "mix": lambda p: p.repeat().mix(rows(50).repeat(), weights=[1, 1]).filter(negative, on="x", name="op").take(3),
}


@pytest.mark.parametrize("made", IN_VAIN.values(), ids=IN_VAIN)
def test_a_filter_behind_an_endless_repeat_that_keeps_nothing_is_an_error(made: Made) -> None:
    with pytest.raises(PlanError, match=r"repeat\w* has no end, and .* op \(\w+\) lets no element through"):
        next(made(rows()).iter_batches(debug=True))


ENDING: dict[str, tuple[Made, int]] = {
    "an element of a pass": (lambda p: p.repeat().filter(lambda x: x == 7, on="x").take(12), 12),
    "of one branch": (
        lambda p: rows(1).repeat().mix(rows(60).repeat(), weights=[1, 1]).filter(lambda x: x == 7, on="x").take(2),
        2,
    ),
    "now and then": (lambda p: p.repeat().filter(seldom, on="x").take(12), 12),
    "finite": (lambda p: p.repeat().take(100).filter(negative, on="x"), 0),
}


@pytest.mark.parametrize(("made", "count"), ENDING.values(), ids=ENDING)
def test_what_keeps_some_or_has_an_end_is_none(made: Made, count: int) -> None:
    assert len(list(made(rows()).iter_batches(debug=True))) == count
