"""Functions whose generator of random numbers the user has given already: that one is used."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from pecan_ray.pipeline import PecanPipeline
from pecan_ray.plan.operators import wants_rng
from pecan_ray.sources import Items
from tests.unit.engines.engine_leases import column, run_engine


def drawn(i: Any, rng: Any) -> float:
    return float(rng.random())


@functools.wraps(drawn)
def with_its_own(i: Any) -> float:
    return drawn(i, rng=np.random.default_rng(7))


@functools.wraps(drawn)
def passing_on(*args: Any, **keywords: Any) -> float:
    return drawn(*args, **keywords)


def bound() -> Any:
    return functools.partial(drawn, rng=np.random.default_rng(7))


def test_which_functions_are_given_a_generator() -> None:
    given: list[Any] = [drawn, passing_on, functools.partial(drawn, 1), functools.partial(passing_on, 1)]
    assert [wants_rng(function) for function in given] == [True] * len(given)
    left = [bound(), functools.partial(bound()), functools.partial(drawn, 1, 2), with_its_own, lambda i: drawn(i, 1)]
    assert [wants_rng(function) for function in [*left, len]] == [False] * 6


def test_the_users_generator_goes_on_from_element_to_element_in_another_process_too() -> None:
    mine = np.random.default_rng(7).random(3).tolist()
    pipe = PecanPipeline(Items([{"i": row} for row in range(3)], split_rows=3))
    for function, processes, wanted in ((bound(), False, mine), (bound(), True, mine), (with_its_own, False, mine[:1])):
        made = run_engine(pipe.map(function, on="i", processes=processes, name="draw").batch(3), order="strict")
        assert column(made, "i") == wanted * (3 // len(wanted))
