"""Exchanges that move results are told from others; jobs that share pipe and cache come near the best split."""

from __future__ import annotations

import math

import pytest

from benchmarks.guard.effect import effect
from benchmarks.guard.elements import elements
from benchmarks.guard.exchanges import all_exchanges
from benchmarks.joint_io import MIB, TwoJobs, best_splits, speeds_of
from benchmarks.joint_io_model import WARM_S, modelled
from benchmarks.random_pipelines import encoded, judged


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("resized: brightness / resize", 0.0, 0.15),
        ("resized: to_float / resize", 0.0, 0.05),  # rounding alone: the cast has no effect of its own
        ("small: to_bytes / unit (to_float)", 1.0, math.inf),
        ("resized: blur / resize", 0.5, math.inf),
        ("faces: rare_faces_blurred / resize", 0.5, math.inf),
        ("video: smoothed / every_4th", 0.5, math.inf),
        ("boxes: size / resize", math.inf, math.inf),  # whole numbers are equal or not
    ],
)
def test_how_far_an_exchange_moves_results(name: str, least: float, most: float) -> None:
    exchange = next(one for one in all_exchanges() if one.name == name)
    found = effect(exchange, elements(6))
    assert least <= found.ratio <= most, found


COUNT = 24
SEEDS = range(12)


@pytest.mark.slow
def test_no_order_changes_what_a_random_pipeline_means() -> None:
    drawn = encoded(elements(2 * COUNT))
    outcomes = [judged(seed, drawn[:COUNT], drawn[COUNT:], 30.0) for seed in SEEDS]
    assert [(one.case.seed, one.order, one.wrong) for one in outcomes if one.wrong] == []


SETTINGS = [(8e6, 64, 12e6), (16e6, 128, 24e6), (10e6, 128, 24e6)]


@pytest.mark.parametrize(("pipe", "cache", "ideal"), SETTINGS)
def test_what_jobs_measure_of_themselves_is_enough_for_the_best_split(pipe: float, cache: int, ideal: float) -> None:
    setting = TwoJobs("", pipe, cache * MIB, ideal, WARM_S, 30.0, 0.0)
    by_sum, by_slower = best_splits(setting).values()
    assert sum(modelled("greedy", setting, blind=False)) > 0.95 * sum(by_sum)
    equal = speeds_of(setting, setting.cache_bytes / 2, setting.pipe / 2)
    speeds = modelled("max_min", setting, blind=False)
    least, best = (min(one / other for one, other in zip(both, equal, strict=True)) for both in (speeds, by_slower))
    assert least > 0.95 * best
