"""Tuning: Optuna on workloads that nobody is judged by, and settings that leave nothing behind."""

from __future__ import annotations

import pytest

from pecan_ray.errors import PlanError
from pecan_ray.placement import AutoSettings
from pecan_ray.simulator.random_workloads import TUNED
from pecan_ray.simulator.tune import DEFAULTS, attempt, report, search_settings, tasks, tune

pytest.importorskip("optuna")


def test_a_study_tries_the_defaults_and_reports_what_they_cost() -> None:
    tuned = tune("auto", trials=2, workloads=2, ladder={"threshold": (0.1,)})
    assert len(tuned.attempts) == 2
    assert any(one.settings == DEFAULTS["auto"] for one in tuned.attempts)
    assert tuned.attempts[0].cost <= tuned.attempts[-1].cost
    assert all(0.95 < one.cost < 3 for one in tuned.attempts), "1 is the cheapest deployment from the first batch on"
    assert [(name, value) for name, value, _ in tuned.alone] == [("threshold", 0.1)]
    page = report(tuned)
    assert "| default | 0.03 |" in page
    assert "| threshold = 0.1 |" in page


def test_the_same_seed_makes_the_same_study() -> None:
    first, second = (tune("cachew", trials=2, workloads=1, seed=3) for _ in range(2))
    assert first == second


def test_our_search_is_cheaper_than_the_papers_with_the_defaults_of_each() -> None:
    """On average: on one workload or the other, chance may favour theirs."""
    on = tasks(6)
    assert attempt("auto", DEFAULTS["auto"], on).cost < attempt("pecan", DEFAULTS["pecan"], on).cost


def test_a_trial_changes_the_settings_of_its_own_search_and_no_other() -> None:
    found = search_settings({"jump": 7.0, "optimism": 1.0, "threshold": 0.1})
    assert found == AutoSettings(jump=7, optimism=1.0) and isinstance(found.jump, int)
    assert search_settings(DEFAULTS["auto"]) == search_settings(DEFAULTS["pecan"]) == AutoSettings()


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"optimism": -1}, {"tie": -1}, {"most_probes": 0}, {"some": 0}):
        with pytest.raises(PlanError):
            AutoSettings(**wrong)


@pytest.mark.parametrize(
    ("mode", "trials", "workloads"), [("auto", 0, 1), ("auto", 1, 0), ("auto", 1, TUNED), ("collocated", 1, 1)]
)
def test_a_study_that_cannot_be_is_refused(mode: str, trials: int, workloads: int) -> None:
    with pytest.raises(PlanError):
        tune(mode, trials=trials, workloads=workloads)
