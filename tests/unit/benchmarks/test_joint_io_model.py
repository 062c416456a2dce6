"""Two jobs that share a pipe and a cache, played through block by block: how near they come to the best split."""

from __future__ import annotations

import pytest

from benchmarks.joint_io import MIB, TwoJobs, best_splits, speeds_of
from benchmarks.joint_io_model import WARM_S, modelled

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
