"""Tuning: Optuna on workloads that nobody is judged by."""

from __future__ import annotations

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.simulator.random_workloads import TUNED
from pecan_ray.simulator.tune import DEFAULTS, report, tune

pytest.importorskip("optuna")


def test_a_study_tries_the_defaults_reports_what_they_cost_and_is_the_same_with_the_same_seed() -> None:
    tuned = tune("pecan", trials=2, workloads=2, ladder={"threshold": (0.1,)})
    assert len(tuned.attempts) == 2
    assert any(one.settings == DEFAULTS["pecan"] for one in tuned.attempts)
    assert tuned.attempts[0].cost <= tuned.attempts[-1].cost
    assert all(0.95 < one.cost < 3 for one in tuned.attempts), "1 is the cheapest deployment from the first batch on"
    assert [(name, value) for name, value, _ in tuned.alone] == [("threshold", 0.1)]
    page = report(tuned)
    assert "| default | 0.03 |" in page
    assert "| threshold = 0.1 |" in page
    first, second = (tune("cachew", trials=2, workloads=1, seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("mode", "trials", "workloads"),
    [("pecan", 0, 1), ("pecan", 1, 0), ("pecan", 1, TUNED), ("auto", 1, 1), ("collocated", 1, 1)],
)
def test_a_study_that_cannot_be_is_refused(mode: str, trials: int, workloads: int) -> None:
    with pytest.raises(PlanError):
        tune(mode, trials=trials, workloads=workloads)
