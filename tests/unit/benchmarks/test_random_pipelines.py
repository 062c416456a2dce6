"""AutoOrder on a dozen pipelines drawn at random: the short form of `benchmarks/random_pipelines.py`."""

from __future__ import annotations

import pytest

from benchmarks.guard.elements import elements
from benchmarks.random_pipelines import encoded, judged

COUNT = 24
SEEDS = range(12)


@pytest.mark.slow
def test_no_order_changes_what_a_random_pipeline_means() -> None:
    drawn = encoded(elements(2 * COUNT))
    outcomes = [judged(seed, drawn[:COUNT], drawn[COUNT:], 30.0) for seed in SEEDS]
    assert [(one.case.seed, one.order, one.wrong) for one in outcomes if one.wrong] == []
