"""Is another order worth it?  Ten looks, each with noise of its own, decide alike."""

from __future__ import annotations

import numpy as np
import pytest

from pecan_ray.autoorder.speed import CHUNK, LEAST_COMPARED, REPEATS, SpeedComparison, comparison

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
        if len(runs) >= LEAST_COMPARED and place % CHUNK == 0 and comparison(list(runs.values()), ELEMENTS).is_clear:
            break
    return comparison(list(runs.values()), ELEMENTS)


@pytest.mark.parametrize("noise", [0.02, 0.1])
@pytest.mark.parametrize(("gain", "worth_it"), [(0.9, False), (1.0, False), (1.02, False), (1.1, True), (1.6, True)])
def test_ten_looks_decide_alike(gain: float, noise: float, worth_it: bool) -> None:
    assert {look(gain, noise, seed).is_better for seed in range(10)} == {worth_it}


@pytest.mark.parametrize(
    ("speedup", "error", "faster", "is_clear"),
    [
        (1.10, 0.01, True, True),
        (1.10, 0.02, True, False),
        (1.10, 0.03, False, False),
        (1.04, 0.01, False, False),
        (1.02, 0.01, False, True),
        (3.00, 0.50, True, True),
    ],
)
def test_what_is_within_the_noise_is_not_worth_it(speedup: float, error: float, faster: bool, is_clear: bool) -> None:
    found = SpeedComparison(speedup, error, 1.0, 1.0 / speedup, ELEMENTS)
    assert (found.is_better, found.is_clear) == (faster, is_clear)
