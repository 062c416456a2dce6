"""Is another order worth it?  Ten looks, each with noise of its own, decide alike."""

from __future__ import annotations

import numpy as np
import pytest

from pecan_ray.autoorder.speed import (
    CHUNK,
    LEAST_COMPARED,
    REPEATS,
    WORTH_A_MOVE,
    SpeedComparison,
    comparison,
    too_slow,
)

ELEMENTS = 300
MOST_RUNS = 20 * ELEMENTS


def look(gain: float, noise: float, seed: int) -> SpeedComparison:
    """Measure an order that is so many times as fast until that is clear; noise makes runs longer, never shorter."""
    rng = np.random.default_rng(seed)
    sizes = np.random.default_rng(0).uniform(0.5, 2.0, ELEMENTS)  # of the elements, the same ones in each look
    runs: dict[int, np.ndarray] = {}
    for place in range(MOST_RUNS):
        number = int(rng.integers(ELEMENTS))
        pair = sizes[number] * np.array([1.0, 1.0 / gain]) * (1.0 + noise * rng.exponential(size=(REPEATS, 2)))
        runs[number] = np.concatenate([runs.get(number, pair[:0]), pair])
        if len(runs) >= LEAST_COMPARED and place % CHUNK == 0:
            found = comparison(list(runs.values()), ELEMENTS)
            if found.is_clear(WORTH_A_MOVE):
                break
    return found


@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize(("gain", "worth_it"), [(0.9, False), (1.0, False), (1.06, False), (1.15, True), (1.6, True)])
def test_ten_looks_decide_alike(gain: float, noise: float, worth_it: bool) -> None:
    assert {look(gain, noise, seed).is_faster(WORTH_A_MOVE) for seed in range(10)} == {worth_it}


@pytest.mark.parametrize(
    ("speedup", "error", "faster", "is_clear", "lacks"),
    [
        (1.15, 0.01, True, True, ""),
        (1.15, 0.02, True, False, ""),
        (
            1.15,
            0.06,
            False,
            False,
            "it is 1.150 times as fast (±0.060, measured on 300 elements), and that is not certain",
        ),
        (1.09, 0.01, False, False, "it is 1.090 times as fast (±0.010, measured on 300 elements), and needs to be 1.1"),
        (1.06, 0.01, False, True, "and needs to be 1.1 times"),
        (3.00, 0.50, True, True, ""),
    ],
)
def test_what_is_within_the_noise_is_not_worth_it_and_is_told_with_what_it_lacks(
    speedup: float, error: float, faster: bool, is_clear: bool, lacks: str
) -> None:
    found = SpeedComparison(speedup, error, ELEMENTS)
    assert (found.is_faster(WORTH_A_MOVE), found.is_clear(WORTH_A_MOVE)) == (faster, is_clear)
    told = too_slow(found, WORTH_A_MOVE)
    assert lacks in told and bool(lacks) == bool(told)


def test_running_all_elements_again_makes_the_error_smaller() -> None:
    rng = np.random.default_rng(0)
    once, again = (1.0 + 0.1 * rng.exponential(size=(ELEMENTS, runs, 2)) for runs in (REPEATS, 8 * REPEATS))
    assert comparison([*again], ELEMENTS).error < 0.5 * comparison([*once], ELEMENTS).error
